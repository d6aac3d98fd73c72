from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from pipesim.cli.app import app
from pipesim.documents.plan_json import load_plan, save_plan
from pipesim.errors import FormatError, ScheduleError
from pipesim.formats.torch_csv import TorchKind, load_torch_csv, save_torch_csv, torch_csv
from pipesim.scenario import Scenario
from pipesim.schedule import Op, Schedule
from planners import plan
from tests.formats.mutations import damaged
from tests.strategies import cases, tries

KINDS: tuple[TorchKind, ...] = ("compute_only", "compute_comms")

ONLY = """\
0F0,0F1,,0B0,,0B1
,1F0,1I0,1F1,1B1,1W0
"""
COMMS = """\
0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD
1RECV_F0,1RECV_F1,1F0,1I0,1SEND_B0,1F1,1B1,1SEND_B1,1W0,1REDUCE_GRAD
"""


def parsed(*orders: str, placement: tuple[int, ...], microbatches: int) -> Schedule:
    ops = [[Op.parse(text) for text in order.split()] for order in orders]
    return Schedule(ops, placement, microbatches)


SMALL = parsed("0F0 0F1 0BW0 0BW1", "1F0 1B0 1F1 1BW1 1W0", placement=(0, 1), microbatches=2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "schedule.csv"


def load(path: Path, content: str) -> Schedule:
    path.write_bytes(content.encode())
    return load_torch_csv(path)


# -- writing -----------------------------------------------------------------------------


def test_exact_text(path: Path) -> None:
    for kind, text in zip(KINDS, (ONLY, COMMS), strict=True):
        save_torch_csv(SMALL, path, kind)
        assert path.read_text() == text
        assert load_torch_csv(path) == SMALL
    assert torch_csv(SMALL) == ONLY


def test_stages_of_one_rank_send_nothing_to_each_other() -> None:
    v = parsed("0F0 3F0 3BW0 0BW0", "1F0 2F0 2BW0 1BW0", placement=(0, 1, 1, 0), microbatches=1)
    assert torch_csv(v, "compute_comms") == (
        "0F0,0SEND_F0,3RECV_F0,3F0,3B0,3SEND_B0,3REDUCE_GRAD,0RECV_B0,0B0,0REDUCE_GRAD\n"
        "1RECV_F0,1F0,2F0,2SEND_F0,2RECV_B0,2B0,2REDUCE_GRAD,1B0,1SEND_B0,1REDUCE_GRAD\n"
    )
    assert torch_csv(v) == "0F0,,,3F0,3B0,,,0B0\n,1F0,2F0,,,2B0,1B0\n"


def test_torch_wants_the_last_forwards_in_order(path: Path) -> None:
    late = parsed("0F1 0F0 0BW0 0BW1", "1F1 1F0 1BW0 1BW1", placement=(0, 1), microbatches=2)
    for kind in KINDS:
        with pytest.raises(ScheduleError, match="1F1 is not in its place"):
            save_torch_csv(late, path, kind)
    assert not path.exists()
    fine = parsed("0F1 0F0 0BW0 0BW1", "1F0 1F1 1BW1 1BW0", placement=(0, 1), microbatches=2)
    assert torch_csv(fine).startswith("0F1,0F0,")


def shuffled(schedule: Schedule, chance: Random) -> Schedule:
    """The same operators in some other order that torch can run."""
    todo = [list(order) for order in schedule.orders]
    last = schedule.stages - 1
    done: set[Op] = set()
    orders: list[list[Op]] = [[] for _ in todo]

    def ready(op: Op) -> bool:
        earlier = op.kind == "F" and op.stage == last and op.microbatch > 0
        needs = (*schedule.needs(op), *([Op("F", last, op.microbatch - 1)] if earlier else []))
        return all(need in done for need in needs)

    while any(todo):
        able = [op for device in todo for op in device if ready(op)]
        op = chance.choice(able)
        device = schedule.placement[op.stage]
        todo[device].remove(op)
        orders[device].append(op)
        done.add(op)
    return Schedule(orders, schedule.placement, schedule.microbatches)


@given(cases(), st.booleans(), st.integers(0, 2**32))
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory,
    case: tuple[Scenario, Schedule],
    shuffle: bool,
    seed: int,
) -> None:
    path = tmp_path_factory.getbasetemp() / "round_trip.csv"
    made = Schedule(case[1].orders, case[1].placement, case[1].microbatches)
    if shuffle:
        made = shuffled(made, Random(seed))
    for kind in KINDS:
        save_torch_csv(made, path, kind)
        assert load_torch_csv(path) == made
    _check_columns(made)
    _check_blocking(made)


def _check_columns(schedule: Schedule) -> None:
    """Whatever an operator needs stands in an earlier column."""
    letters = {"F": "F", "B": "I", "W": "W", "BW": "B"}
    column = {
        cell: number
        for line in torch_csv(schedule).splitlines()
        for number, cell in enumerate(line.split(","))
    }
    for op in schedule.topological_order:
        own, *needs = (
            f"{o.stage}{letters[o.kind]}{o.microbatch}" for o in (op, *schedule.needs(op))
        )
        assert all(column[need] < column[own] for need in needs)


def _check_blocking(schedule: Schedule) -> None:
    """All ranks come through even if every message holds up both its ends until they meet."""
    rows = [line.split(",") for line in torch_csv(schedule, "compute_comms").splitlines()]
    moved = True
    while moved:
        moved = False
        for row in rows:
            while row and "_" not in row[0].replace("REDUCE_GRAD", ""):
                row.pop(0)
                moved = True
            if row and "SEND" in row[0]:
                stage, letter, m = re.fullmatch(r"(\d+)SEND_(.)(\d+)", row[0]).groups()  # type: ignore[union-attr]
                end = f"{int(stage) + (1 if letter == 'F' else -1)}RECV_{letter}{m}"
                other = next((other for other in rows if other and other[0] == end), None)
                if other:
                    row.pop(0)
                    other.pop(0)
                    moved = True
    assert not any(rows)


# -- reading -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("\n", "\r\n"),
        (",", " ,\t"),
        ("0B1\n", "0B1,,\n"),
        ("1W0\n", "1W0"),
        ("0F0,0F1,,", "0UNSHARD,0F0,0F1,"),
        ("1F1,1B1,", "1F1,1B1,1REDUCE_GRAD,1RESHARD,"),
        ("0F0", "\ufeff0F0"),
    ],
)
def test_what_says_nothing_is_left_out(path: Path, old: str, new: str) -> None:
    assert old in ONLY
    assert load(path, ONLY.replace(old, new)) == SMALL


@pytest.mark.parametrize("cell", ["(1F1;1I0)OVERLAP_F_B", "( 1F1 ; 1I0 )OVERLAP_F_B"])
def test_an_overlap_is_forward_then_backward(path: Path, cell: str) -> None:
    wanted = parsed("0F0 0F1 0BW0 0BW1", "1F0 1F1 1B0 1BW1 1W0", placement=(0, 1), microbatches=2)
    assert load(path, ONLY.replace("1I0,1F1", cell)) == wanted
    comms = COMMS.replace("1I0,1SEND_B0,1F1", f"{cell},1SEND_B0")
    assert load(path, comms) == wanted


BAD_CELLS = [
    "0F0xyz", "0BW0", "0F", "F0", "0", "0F0 1", "0 F0", "00F0", "0F00", "-1F0", "+0F0", "0f0",
    "0F٣", "0F1000000000", "1" * 5000 + "F0", "0SEND0", "0SEND_F", "0SEND_W0", "0X0", '"0F0"',
    "None", "0UNSHARD0", "UNSHARD", "0REDUCE_GRADx", "0OVERLAP_F_B", "(0F0)OVERLAP_F_B",
    "(0F0;0F1)OVERLAP_F_B", "(0B0;0F0)OVERLAP_F_B", "(0F0;0B0;0F1)OVERLAP_F_B",
    "(0F0;0B0)OVERLAP_F_Bx", "(0F0;0BW0)OVERLAP_F_B", "(0F0;0SEND_F0)OVERLAP_F_B", "0F0;0B0",
    "((0F0;0B0)OVERLAP_F_B;0B0)OVERLAP_F_B", "0F0\r", "0F0\x00", "0F0\u00a0",
]  # fmt: skip


@pytest.mark.parametrize("cell", BAD_CELLS)
def test_a_cell_is_an_action_or_an_error(path: Path, cell: str) -> None:
    place = re.escape(f"{path}:1:3: ")
    with pytest.raises(FormatError, match=place + ".* is not an action, such as 0F0") as error:
        load(path, ONLY.replace(",,", f",{cell},", 1))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < len(str(path)) + 150


@pytest.mark.parametrize(
    ("old", "new", "place", "says"),
    [
        (ONLY, "", "", "holds no action"),
        (ONLY, "\n", ":1", "rank 0 computes nothing"),
        ("\n,1F0", "\n\n,1F0", ":2", "rank 1 computes nothing"),
        ("1W0\n", "1W0\n,,\n", ":3", "rank 2 computes nothing"),
        ("1W0\n", "1W0\n1UNSHARD\n", ":3", "rank 2 computes nothing"),
        ("1W0\n", "1W0,0F2\n", ":2:7", "stage 0 is on rank 0 too"),
        ("1W0\n", "1W0,0RESHARD\n", ":2:7", "0RESHARD: stage 0 is not on rank 1"),
        ("1W0\n", "1W0,2UNSHARD\n", ":2:7", "2UNSHARD: stage 2 is not on rank 1"),
        ("1W0\n", "1W0,7F0\n", "", "stage 2 is on no rank, but stage 7 is"),
        ("1W0\n", "1W0,999999999F999999999\n", "", "stage 2 is on no rank, but stage 999999999 is"),
        ("1W0\n", "1W0,1F999999999\n", "", "0F2 is missing from device 0"),
        ("0F1", "", "", "0F1 is missing from device 0"),
        ("0B0", "0I0", "", "0W0 is missing from device 0"),
        ("1I0", "", "", "1I0 is missing from device 1"),
        ("0B1", "0B0", "", "0B0 is scheduled 2 times"),
        ("1W0", "1B0", "", "1I0 and 1B0 do the same work twice"),
        ("0F0,0F1,,0B0", "0B0,0F0,0F1", "", "device 0 waits in 0B0 for 0F0"),
        ("0F1,,", "0F1,0SEND_F0,", ":1:5", "a blank cell: torch loads none"),
    ],
)
def test_errors_name_file_and_place(path: Path, old: str, new: str, place: str, says: str) -> None:
    assert old in ONLY
    with pytest.raises(FormatError, match=re.escape(f"{path}{place}: ") + ".*" + re.escape(says)):
        load(path, ONLY.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "place", "says"),
    [
        ("0SEND_F0,", "", ":1", "rank 0 lacks 0SEND_F0"),
        ("1RECV_F1,", "", ":2", "rank 1 lacks 1RECV_F1"),
        ("0RECV_B1,", "", ":1", "rank 0 lacks 0RECV_B1"),
        ("0SEND_F0", "0SEND_F0,0SEND_F0", ":1:3", "0SEND_F0 comes twice"),
        ("0SEND_F0", "1SEND_F0", ":1:2", "1SEND_F0: stage 1 is not on rank 0"),
        ("0SEND_F0", "0SEND_F0,0SEND_F2", ":1:3", "0SEND_F2 is not a message between ranks here"),
        ("0SEND_F0", "0SEND_F0,0SEND_B0", ":1:3", "0SEND_B0 is not a message between ranks here"),
        ("1SEND_B0", "1SEND_B0,1SEND_F0", ":2:6", "1SEND_F0 is not a message between ranks here"),
        ("0RECV_B0", "0RECV_B0,0RECV_F0", ":1:6", "0RECV_F0 is not a message between ranks here"),
        ("0F0,0SEND_F0", "0SEND_F0,0F0", ":1:1", "0SEND_F0 waits for 0F0 for ever"),
        ("0RECV_B0,0B0", "0B0,0RECV_B0", ":1:5", "0B0 waits for 0RECV_B0 for ever"),
        ("1RECV_F0,1RECV_F1", "1RECV_F1,1RECV_F0", ":2:1", "rank 0 sends for 1RECV_F0 first"),
        (
            "0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1",
            "0F1,0RECV_B0,0RECV_B1,0B0,0SEND_F1",
            "",
            "",
        ),
        (
            "0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,",
            "0RECV_B0,0B0,0RECV_B1,0B1,0SEND_F1,",
            ":1:7",
            "0B1 waits for 1SEND_B1 for ever",
        ),
    ],
)
def test_communication_is_checked(path: Path, old: str, new: str, place: str, says: str) -> None:
    assert old in COMMS
    changed = COMMS.replace(old, new, 1)
    if not says:
        assert load(path, changed) == SMALL
        return
    with pytest.raises(FormatError, match=re.escape(f"{path}{place}: ") + ".*" + re.escape(says)):
        load(path, changed)


@pytest.mark.parametrize("valid", [ONLY, COMMS])
def test_fuzz(path: Path, valid: str) -> None:
    errors = 0
    for content in damaged(valid.encode(), tries(20)):
        path.write_bytes(content)
        try:
            assert isinstance(load_torch_csv(path), Schedule)
        except FormatError as error:
            assert str(error).startswith(str(path))  # noqa: PT017
            errors += 1
    assert errors > tries(10)


# -- the command line --------------------------------------------------------------------


def invoke(*args: str) -> Result:
    return CliRunner().invoke(app, args, prog_name="pipesim")


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Schedule:
    monkeypatch.chdir(tmp_path)
    made = plan(Scenario(stages=4, microbatches=6), "zerobubble")
    save_plan(made, "plan.json")
    return made


@pytest.mark.parametrize(
    ("target", "kind"), [("torch-csv", "compute_only"), ("torch-csv-comms", "compute_comms")]
)
def test_there_and_back(made: Schedule, target: str, kind: TorchKind) -> None:
    result = invoke("export", "plan.json", "--format", target, "-o", "torch.csv")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "wrote torch.csv\n")
    assert Path("torch.csv").read_text() == torch_csv(made, kind)
    result = invoke("import", "torch-csv", "torch.csv", "-o", "back.json")
    assert (result.exit_code, result.stderr) == (0, "wrote back.json\n")
    assert result.stdout == "4 stages on 4 devices × 6 micro-batches\n"
    back = load_plan("back.json")
    assert (back.orders, back.placement) == (made.orders, made.placement)
    assert invoke("import", "torch-csv", "torch.csv", "-o", "back.json", "-q").output == ""


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (
            "export plan.json --format torch-csv -o x --delay 20ms --link 0",
            "leave out the scenario",
        ),
        ("export plan.json --format torch-csv-comms -o x --transport nccl", "and the transport"),
        ("export plan.json --format torch-csv -o x --chunks 2", "torch-csv holds no times"),
        ("export plan.json --format torch-csv -o plan.json", "would overwrite an input"),
        ("import torch-csv plan.json -o plan.json", "would overwrite an input"),
        ("import torch-csv plan.json -o x", "plan.json:1:1: '{' is not an action"),
        ("import torch-csv nope.csv -o x", "nope.csv: cannot be read"),
    ],
)
def test_an_error_is_one_line(made: Schedule, args: str, words: str) -> None:
    result = invoke(*args.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert not Path("x").exists()
