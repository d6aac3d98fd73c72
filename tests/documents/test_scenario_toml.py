from __future__ import annotations

import math
import re
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.documents import scenario_toml
from pipesim.documents.scenario_toml import load_scenario, save_scenario
from pipesim.errors import FormatError
from pipesim.scenario import Scenario
from tests.formats.mutations import damaged
from tests.strategies import scenarios, tries

SMALL = """\
format = "pipesim-scenario"
version = 1

[pipeline]
stages = 4
microbatches = 2

[operators]
forward_ms = 10
backward_ms = [10.0, 11.0, 12.0, 13.0]
weight_ms = [[1, 2], [1, 2], [1, 2], [1, 2]]
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "scenario.toml"


def load(path: Path, content: str) -> Scenario:
    path.write_text(content)
    return load_scenario(path)


def test_a_scenario_by_hand(path: Path) -> None:
    scenario = load(
        path,
        SMALL
        + """
        [memory]
        activation_limit = [7, "unlimited", 5, 4.5]
        [[delay]]
        link = 2
        occupancy_ms = 60
        latency_ms = [1.0, 0.5]
        """,
    )
    assert scenario == Scenario(
        microbatches=2,
        backward_ms=[10, 11, 12, 13],
        weight_ms=[[1, 2]] * 4,
        activation_limit=[7, math.inf, 5, 4.5],
        occupancy_ms=[[0, 0], [0, 0], [60, 60]],
        latency_ms=[[0, 0], [0, 0], [1, 0.5]],
    )


def test_the_documented_example(path: Path) -> None:
    example = dedent(scenario_toml.__doc__.split("code-block:: toml")[1])
    scenario = load(path, example)
    assert scenario.host_limit.tolist() == [48] * 4
    assert scenario.slow_links == (2,)
    save_scenario(scenario, path)
    assert load_scenario(path) == scenario


def test_exact_text(path: Path) -> None:
    scenario = Scenario(
        stages=6,
        placement=Scenario.place("v", 3, 2),
        microbatches=2,
        forward_ms=0.1,
        backward_ms=[1, 2, 3, 4, 5, 1e-300],
        weight_ms=[[1, 1.5]] * 6,
        fused_backward_ms=3,
        latency_ms=[[0, 0], [2.5, 3], [0, 0], [0, 0], [4, 4]],
        occupancy_ms=[[0, 0], [1, 1], [0, 0], [0, 0], [0, 0]],
        message_bytes=2**23,
        activation_limit=[2, math.inf, 2.5],
        activation_bytes=1e9,
        released_by_b=0.25,
        name='a "name" [\n1\n] \x7f',
        source="gémessen",
    )
    save_scenario(scenario, path)
    assert path.read_text(encoding="utf-8") == (
        r"""format = "pipesim-scenario"
version = 1
name = "a \"name\" [\n1\n] \u007f"
source = "gémessen"

[pipeline]
stages = 6
microbatches = 2
placement = "v"
chunks = 2

[operators]
forward_ms = 0.1
backward_ms = [1.0, 2.0, 3.0, 4.0, 5.0, 1e-300]
weight_ms = [
    [1.0, 1.5],
    [1.0, 1.5],
    [1.0, 1.5],
    [1.0, 1.5],
    [1.0, 1.5],
    [1.0, 1.5],
]
fused_backward_ms = 3.0

[links]
message_bytes = 8388608

[memory]
activation_limit = [2, "unlimited", 2.5]
activation_bytes = 1000000000
released_by_b = 0.25

[[delay]]
link = 1
latency_ms = [2.5, 3.0]
occupancy_ms = 1.0

[[delay]]
link = 4
latency_ms = 4.0
"""
    )
    assert load_scenario(path) == scenario


def test_defaults_are_short(path: Path) -> None:
    save_scenario(Scenario(), path)
    assert "memory" not in path.read_text()
    assert "inf" not in path.read_text()
    assert load_scenario(path) == Scenario()


@given(scenarios(limited=True), st.text(), st.text(), st.floats(0, 1e15), st.integers(0, 5))
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory,
    scenario: Scenario,
    name: str,
    source: str,
    size: float,
    host: int,
) -> None:
    path = tmp_path_factory.getbasetemp() / "round_trip.toml"
    scenario = scenario.replaced(
        name=name,
        source=source,
        activation_bytes=size,
        host_limit=np.where(np.arange(scenario.devices) < host, 3.5, np.inf),
        message_bytes=np.arange(scenario.stages - 1) * (size / 100),
    )
    save_scenario(scenario, path)
    assert load_scenario(path) == scenario


@pytest.mark.parametrize(
    ("placement", "saved"),
    [
        ((0, 1, 0, 1), 'placement = "interleaved"'),
        ((0, 1, 1, 0), 'placement = "v"'),
        ((0, 0, 1, 1), "placement = [0, 0, 1, 1]"),
        ((0, 1, 2, 0), "placement = [0, 1, 2, 0]"),
        ((0, 0, 0, 0), 'placement = "interleaved"'),
    ],
)
def test_placements(path: Path, placement: tuple[int, ...], saved: str) -> None:
    scenario = Scenario(placement=placement)
    save_scenario(scenario, path)
    assert saved in path.read_text()
    assert load_scenario(path).placement == placement


OPERATORS = "forward_ms = 10\n"


@pytest.mark.parametrize(
    ("old", "new", "place", "says"),
    [
        ("stages = 4", "stages = ", ":5:10", "not TOML: Invalid value"),
        ("stages = 4", "stages = 4\nstages = 5", ":6:11", "not TOML: Cannot overwrite a value"),
        ('"pipesim-scenario"', '"pipesim-', ":1:19", "not TOML: Illegal character"),
        ("[1, 2]]\n", "[1, 2]", ":11:44", "not TOML.*ends too early"),
        ('format = "pipesim-scenario"', "", "", "is not a pipesim-scenario file"),
        ('"pipesim-scenario"', '"pipesim-plan"', ": format", "must be 'pipesim-scenario'"),
        ("version = 1", "", "", "the key version is missing"),
        ("version = 1", "version = 2", ": version", "reads version 1, not 2"),
        ("version = 1", "version = true", ": version", "must be a whole number"),
        ("version = 1", "version = 1\nname = 3", ": name", "must be text, not 3"),
        ("version = 1", "version = 1\ncolor = 3", ": color", r"unknown key \(known: format"),
        ("[operators]", "[operations]", "", "the key operators is missing"),
        ("[pipeline]", "[[pipeline]]", ": pipeline", "must be a table, not a list"),
        ("stages = 4", "stages = 0", "", "stages must be a whole number of at least 1"),
        ("stages = 4", "stages = 4.0", ": pipeline.stages", "must be a whole number"),
        ("stages = 4", "stages = 1000000000", ": pipeline", "more than 1,000,000 operators"),
        ("stages = 4", "stages = 3", "", r"backward_ms has shape \[4\]"),
        (OPERATORS, "", "", "the key operators.forward_ms is missing"),
        (OPERATORS, "forwards_ms = 10\n", "", "the key operators.forward_ms is missing"),
        (
            OPERATORS,
            OPERATORS + "fused_backwards_ms = 1\n",
            ": operators.fused_backwards_ms",
            r"unknown key \(did you mean fused_backward_ms\?\)",
        ),
        ("10\n", '"10"\n', ": operators.forward_ms", "must be a finite number, not '10'"),
        ("10\n", "true\n", ": operators.forward_ms", "must be a finite number, not True"),
        ("10\n", "nan\n", ": operators.forward_ms", "must be a finite number"),
        ("10\n", "inf\n", ": operators.forward_ms", "not inf; leave the key out"),
        ("10\n", "1" + "0" * 400 + "\n", ": operators.forward_ms", "not a number that long"),
        ("10\n", "-10\n", "", "forward_ms must be a number from 0 to"),
        ("12.0,", "inf,", r": operators.backward_ms[2]", "must be a finite"),
        ("[[1, 2],", "[[1, {}],", ": operators.weight_ms[0][1]", "not a table"),
        ("[[1, 2],", "[[1],", "", "weight_ms must hold numbers, in rows of one length"),
        ("microbatches = 2", "microbatches = 2\nchunks = 1", ": pipeline.chunks", "is for the"),
        ("microbatches = 2", 'microbatches = 2\nplacement="v"', ": pipeline.chunks", "divides 4"),
        (
            "microbatches = 2",
            'microbatches = 2\nplacement="v"\nchunks = 3',
            ": pipeline.chunks",
            "divides 4",
        ),
        ("microbatches = 2", 'microbatches = 2\nplacement="x"', ": pipeline.placement", "plain"),
        (
            "microbatches = 2",
            "microbatches = 2\nplacement=[0, 1, 2, 99999999999]",
            ": pipeline.placement",
            "a device, 0 to 3 at most",
        ),
        ("microbatches = 2", "microbatches = 2\nplacement=[0,2,2,2]", "", "must use devices"),
        ("[operators]", "[memory]\nhost_limit=inf\n[operators]", ": memory.host_limit", "leave"),
        ("[operators]", "[memory]\nreleased_by_b=2\n[operators]", "", "between 0 and 1"),
        ("[operators]", "[links]\ndelay = 2\n[operators]", ": links.delay", "unknown key"),
        ("[operators]", "[[delay]]\nlink = 3\n[operators]", ": delay[0].link", "no link 3"),
        ("[operators]", "[[delay]]\n[operators]", "", r"the key delay\[0\].link is missing"),
        ("[operators]", "[delay]\nlink = 2\n[operators]", ": delay", "must be a list"),
        (
            "[operators]",
            "[[delay]]\nlink = 1\n[[delay]]\nlink = 1\n[operators]",
            ": delay[1].link",
            "link 1 already has a delay above",
        ),
        (
            "[operators]",
            "[[delay]]\nlink = 1\nlatency_ms = [1, 2, 3]\n[operators]",
            ": delay[0].latency_ms",
            "two: ",
        ),
    ],
)
def test_errors_name_file_and_place(path: Path, old: str, new: str, place: str, says: str) -> None:
    assert old in SMALL
    with pytest.raises(FormatError, match=re.escape(f"{path}{place}: ") + f".*{says}") as error:
        load(path, SMALL.replace(old, new, 1))
    assert "\n" not in str(error.value)


def test_a_delay_inside_a_device_names_the_file(path: Path) -> None:
    content = SMALL.replace("microbatches = 2", "microbatches = 2\nplacement = [0, 0, 1, 1]")
    with pytest.raises(FormatError, match=r"scenario.toml: link 0 joins .* both on device 0"):
        load(path, content + "[[delay]]\nlink = 0\nlatency_ms = 1.0\n")


def test_fuzz(path: Path) -> None:
    save_scenario(Scenario(weight_ms=[1, 2, 3, 4], name="é").with_delay(20, [1]), path)
    valid = path.read_bytes() + b"[memory]\nactivation_limit = [1, 2, 3, 'unlimited']\n"
    errors = 0
    for content in damaged(valid, tries(20)):
        path.write_bytes(content)
        try:
            assert isinstance(load_scenario(path), Scenario)
        except FormatError as error:
            assert str(error).startswith(str(path))  # noqa: PT017
            errors += 1
    assert errors > tries(10)
