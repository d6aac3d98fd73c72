"""``pipesim trace make`` and ``pipesim trace show``."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests import ROOT
from tests.cli.running import error, invoke, stdout

SUPERPOD = str(ROOT / "traces/superpod.csv")
SHIPPED = ROOT / "traces/production_hour.csv"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_make_then_show() -> None:
    made = stdout("trace", "make", "--links", "3", "--duration", "20min", "-o", "t.csv")
    assert made.startswith("3 links, 20 min, ")
    assert "Slowest link at each moment, over all of it: median 13 ms, P99 79.3 ms\n" in made
    assert made in stdout("trace", "show", "t.csv")


def test_the_shipped_hour_is_made_as_its_readme_says() -> None:
    readme = (ROOT / "traces/README.md").read_text()
    (command,) = [line for line in readme.splitlines() if line.startswith("pipesim trace make ")]
    assert stdout(*command.split()[1:], "--quiet") == ""
    assert Path("production_hour.csv").read_bytes() == SHIPPED.read_bytes()
    hour = json.loads(stdout("trace", "show", str(SHIPPED), "--json"))
    assert (hour["slowest"]["median_ms"], hour["slowest"]["p99_ms"]) == (13.0, 79.3)
    slow = hour["while_slow"]
    calm = 100 * (1 - hour["slowest"]["slow_share"])
    for figure in (
        f"the {calm:.1f} % without any slow link",
        f"median is {slow['median_ms']} ms and the 99th percentile {slow['p99_ms']} ms",
        f"{hour['changes']} changes",
    ):
        assert figure in " ".join(readme.split())


def test_options_of_make_are_used() -> None:
    args = ["--median", "5ms", "--p99", "20ms", "--burst", "10s", "--level", "5s", "--seed", "3"]
    made = stdout("trace", "make", "--duration", "10min", *args, "-o", "t.csv")
    assert "7 links, 10 min, " in made
    assert "over all of it: median 5 ms, P99 20 ms\n" in made


def test_show_superpod() -> None:
    text = stdout("trace", "show", SUPERPOD)
    assert "7 links, 1200 iterations, 34 changes; no link is slow for 47.5 % of it\n" in text
    assert "link 3    5.8      50   50       50        2\n" in text
    assert f"{'60 ms':<29}11.7\n" in text
    figures = json.loads(stdout("trace", "show", SUPERPOD, "--json"))
    assert (figures["by"], figures["end"], figures["changes"]) == ("iteration", 1200, 34)
    assert figures["slowest"]["median_ms"] == 20
    assert figures["per_link"][3]["slow_share"] == 70 / 1200
    assert sum(level["share"] for level in figures["levels"]) == pytest.approx(1)


def test_show_a_part_and_write_files() -> None:
    args = ["--from", "100", "--to", "130", "--links", "9", "--csv", "t.csv", "--plot", "t.png"]
    text = stdout("trace", "show", SUPERPOD, *args)
    assert "9 links, 30 iterations, 2 changes" in text
    rows = list(csv.DictReader(Path("t.csv").read_text().splitlines()))
    assert [row["slow_share"] for row in rows[4:6]] == ["0.0", str(10 / 30)]
    assert rows[4]["median_ms"] == ""
    assert Path("t.png").read_bytes().startswith(b"\x89PNG")


def test_a_trace_without_an_end_counts_up_to_its_last_change() -> None:
    Path("t.csv").write_text("time_ms,slow_links,delay_ms\n0,0,5\n1000,0,failed\n1500,0,0\n")
    result = invoke("trace", "show", "t.csv")
    assert result.stderr == "t.csv has no end: counted up to its last change\n"
    assert "1 link, 1.5 s, 1 change; no link is slow for 0.0 % of it\n" in result.stdout
    assert "failed" in result.stdout
    assert "no end" not in invoke("trace", "show", "t.csv", "--to", "2s").stderr
    figures = json.loads(stdout("trace", "show", "t.csv", "--json", "--to", "1200ms"))
    assert figures["slowest"]["failed_share"] == pytest.approx(200 / 1200)
    assert figures["slowest"]["p99_ms"] is None


def test_bad_input() -> None:
    Path("t.csv").write_text("time_ms,delay_link0_ms\n2,1\n1,1\n")
    assert error("trace", "show", "t.csv") == "error: t.csv:3: goes back from 2 ms\n"
    assert "there is no link 5: links are 0 to 2" in error(
        "trace", "show", SUPERPOD, "--links", "3"
    )
    assert "nothing of the trace from 1200" in error("trace", "show", SUPERPOD, "--from", "1200")
    assert "'5ms' is not the number of an iteration" in error(
        "trace", "show", SUPERPOD, "--to", "5ms"
    )
    Path("t.csv").write_text("time_ms,delay_link0_ms\n0,1\n")
    assert "say what to show with --from and --to" in error("trace", "show", "t.csv")
    assert "cannot be read" in error("trace", "show", "absent.csv")
    assert "too short for bursts" in error("trace", "make", "--duration", "1s", "-o", "t.csv")
    assert "--median: '5' has no unit" in error("trace", "make", "--median", "5", "-o", "t.csv")
    assert "would overwrite an input" in error("trace", "show", "t.csv", "--csv", "t.csv")


def test_a_trace_of_healthy_links_has_no_quantiles() -> None:
    Path("calm.csv").write_text("time_s,slow_links,delay_ms\n60,,\n")
    shown = stdout("trace", "show", "calm.csv", "--links", "2")
    assert shown.startswith("2 links, 1 min, 0 changes; no link is ever slow\n\n")
