from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from resource import RUSAGE_SELF, getrusage

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from pipesim.cli.app import app
from pipesim.documents.plan_json import load_plan, save_plan
from pipesim.engine import deadlocked
from pipesim.errors import FormatError, ScheduleError
from pipesim.formats.torch_csv import TorchKind, load_torch_csv, save_torch_csv, torch_csv
from pipesim.scenario import Scenario
from pipesim.schedule import Assumptions, Op, Schedule
from planners import plan
from tests import ROOT
from tests.formats.mutations import damaged
from tests.strategies import cases, communicating, tries

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


def without_actions(schedule: Schedule) -> Schedule:
    """The same operators, and nothing else."""
    return Schedule(schedule.orders, schedule.placement, schedule.microbatches)


def test_exact_text(path: Path) -> None:
    for kind, text in zip(KINDS, (ONLY, COMMS), strict=True):
        save_torch_csv(SMALL, path, kind)
        assert path.read_text() == text
        assert without_actions(load_torch_csv(path)) == SMALL
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
        back = load_torch_csv(path)
        assert without_actions(back) == made
        assert (back == made) == (kind == "compute_only")
        assert torch_csv(back, kind) == torch_csv(made, kind)
        assert torch_csv(back) == torch_csv(made)
    assert back.communicates == (len(made.orders) > 1)
    assert not deadlocked(back, "exchange")
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
        ("0F0", "\ufeff0F0"),
        ("0F0", '"0F0"'),
    ],
)
def test_what_says_nothing_is_left_out(path: Path, old: str, new: str) -> None:
    assert old in ONLY
    assert load(path, ONLY.replace(old, new)) == SMALL


@pytest.mark.parametrize("cell", ["(1F1;1I0)OVERLAP_F_B", "( 1F1 ; 1I0 )OVERLAP_F_B"])
def test_an_overlap_is_forward_then_backward(path: Path, cell: str) -> None:
    wanted = parsed("0F0 0F1 0BW0 0BW1", "1F0 1F1 1B0 1BW1 1W0", placement=(0, 1), microbatches=2)
    only = load(path, ONLY.replace("1I0,1F1", cell))
    comms = load(path, COMMS.replace("1I0,1SEND_B0,1F1", f"{cell},1SEND_B0"))
    for kept, text in (
        (only, "0F0,0F1,,0B0,0B1\n,1F0,(1F1;1I0)OVERLAP_F_B,1B1,1W0\n"),
        (comms, COMMS.replace("1I0,1SEND_B0,1F1", "(1F1;1I0)OVERLAP_F_B,1SEND_B0")),
    ):
        assert without_actions(kept) == wanted
        assert kept != wanted
        assert torch_csv(kept, "compute_comms" if kept.communicates else "compute_only") == text
    assert "(1F1;1I0)OVERLAP_F_B,1SEND_B0,1B1" in torch_csv(only, "compute_comms")


def test_upkeep_is_kept(path: Path) -> None:
    text = COMMS.replace("0F0,", "0UNSHARD,0F0,").replace(
        "1B1,1SEND_B1", "1B1,1REDUCE_GRAD,1SEND_B1,1RESHARD"
    )
    kept = load(path, text)
    assert without_actions(kept) == SMALL
    assert torch_csv(kept, "compute_comms") == text
    assert torch_csv(kept) == ONLY
    fully = load(path, ONLY.replace("0F0,0F1,,", "0UNSHARD,0F0,0F1,"))
    assert without_actions(fully) == SMALL
    assert torch_csv(fully, "compute_comms") == COMMS.replace("0F0", "0UNSHARD,0F0", 1)
    early = load(path, ONLY.replace("1B1,1W0", "1B1,1REDUCE_GRAD,1W0"))
    assert torch_csv(early, "compute_comms") == COMMS.replace(
        "1SEND_B1,1W0,1REDUCE_GRAD", "1SEND_B1,1REDUCE_GRAD,1W0"
    )


def test_orders_of_sends_and_receives_differ(path: Path) -> None:
    one = load(path, COMMS)
    other = load(path, COMMS.replace("0SEND_F1,0RECV_B0", "0RECV_B0,0SEND_F1"))
    assert one != other
    assert one.orders == other.orders
    for schedule in (one, other):
        save_plan(schedule, path)
        assert load_plan(path) == schedule


@given(communicating())
def test_a_plans_own_order_goes_there_and_back(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[Scenario, Schedule]
) -> None:
    _, schedule = case
    bare = Schedule(
        schedule.orders, schedule.placement, schedule.microbatches, actions=schedule.actions
    )
    path = tmp_path_factory.getbasetemp() / "own.csv"
    save_torch_csv(bare, path, "compute_comms")
    back = load_torch_csv(path)
    assert torch_csv(back, "compute_comms") == path.read_text()
    if bare.communicates:
        assert back == bare
    else:  # one rank
        assert back.orders == bare.orders
    save_plan(bare, path)
    assert load_plan(path) == bare


BAD_CELLS = [
    "0F0xyz", "0BW0", "0F", "F0", "0", "0F0 1", "0 F0", "00F0", "0F00", "-1F0", "+0F0", "0f0",
    "0F٣", "0F1000000000", "1" * 5000 + "F0", "0SEND0", "0SEND_F", "0SEND_W0", "0X0",
    "None", "0UNSHARD0", "UNSHARD", "0REDUCE_GRADx", "0OVERLAP_F_B", "()OVERLAP_F_B",
    "(0F0;)OVERLAP_F_B", "(;)OVERLAP_F_B", "(0F0;0B0)F", "(0F0;0UNSHARD)OVERLAP_F_B",
    "(0F0;0B0)OVERLAP_F_Bx", "(0F0;0BW0)OVERLAP_F_B", "(0F0;0SEND_F0)OVERLAP_F_B", "0F0;0B0",
    "((0F0;0B0)OVERLAP_F_B;0B0)OVERLAP_F_B", "0F0\x00", "0F0\u00a0",
]  # fmt: skip


@pytest.mark.parametrize("cell", ['"0F0"x', '"0F0', "0F0\r"])
def test_a_line_is_csv_or_an_error(path: Path, cell: str) -> None:
    with pytest.raises(FormatError, match=re.escape(f"{path}:1: is no line of CSV: ")) as error:
        load(path, ONLY.replace(",,", f",{cell},", 1))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("cell", BAD_CELLS)
def test_a_cell_is_an_action_or_an_error(path: Path, cell: str) -> None:
    place = re.escape(f"{path}:1:3: ")
    with pytest.raises(FormatError, match=place + ".* is not an action, such as 0F0") as error:
        load(path, ONLY.replace(",,", f",{cell},", 1))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < len(str(path)) + 150


@pytest.mark.parametrize(
    ("cell", "cause"),
    [
        ("0BW0", "since torch 2.6 the full backward is B, and the input's I"),
        ("0F", "its micro-batch is missing"),
        ("0SEND_F", "its micro-batch is missing"),
        ("0UNSHARD3", "a whole stage has no micro-batch"),
        ("0f0", "torch's letters are capital ones"),
        ("0send_f0", "torch's letters are capital ones"),
        ("(0F0;0SEND_F0)OVERLAP_F_B", "an overlap holds operators alone"),
        ("((0F0;0B0)OVERLAP_F_B;0B0)OVERLAP_F_B", "an overlap holds operators alone"),
    ],
)
def test_what_is_wrong_with_a_cell(path: Path, cell: str, cause: str) -> None:
    with pytest.raises(FormatError, match=rf":1:3: .* \({re.escape(cause)}\)$"):
        load(path, ONLY.replace(",,", f",{cell},", 1))


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
        ("1W0\n", "1W0,7F0\n", ":2", "stage 2 is on no rank, but stage 7 is"),
        (
            "1W0\n",
            "1W0,999999999F999999999\n",
            ":2",
            "stage 2 is on no rank, but stage 999999999 is",
        ),
        ("1W0\n", "1W0,1F999999999\n", ":1", "0F2 is missing from rank 0"),
        ("0F1", "", ":1", "0F1 is missing from rank 0"),
        ("0B0", "0I0", ":1", "0W0 is missing from rank 0"),
        ("1I0", "", ":2", "1I0 is missing from rank 1"),
        ("0B1", "0B0", ":1:6", "0B0 is scheduled 2 times"),
        ("0B1", "", ":1", "0B1 (or 0I1 and 0W1) is missing from rank 0"),
        ("1W0", "1B0", ":2:3", "1I0 and 1B0 do the same work twice"),
        ("1I0", "1B0", ":2:6", "1W0 and 1B0 do the same work twice (before torch 2.6 B was"),
        ("0F0,0F1,,0B0", "0B0,0F0,0F1", ":1:1", "rank 0 waits in 0B0 for 0F0"),
        ("0F1,,", "0F1,0SEND_F0,", ":1:5", "a blank cell: torch loads none"),
    ],
)
def test_errors_name_file_and_place(path: Path, old: str, new: str, place: str, says: str) -> None:
    assert old in ONLY
    with pytest.raises(FormatError, match=re.escape(f"{path}{place}: ") + ".*" + re.escape(says)):
        load(path, ONLY.replace(old, new, 1))


def test_the_older_letters_explain_no_forward_that_comes_twice(path: Path) -> None:
    with pytest.raises(FormatError, match=r":1:2: 0F0 is scheduled 2 times$"):
        load(path, ONLY.replace("0F1", "0F0", 1))


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
        (
            "0F0,0SEND_F0",
            "0SEND_F0,0F0",
            ":1:1",
            "0SEND_F0 stands before the forward whose result it sends",
        ),
        (
            "0RECV_B0,0B0",
            "0B0,0RECV_B0",
            ":1:6",
            "0RECV_B0 stands behind the backward that needs it",
        ),
        (
            "1RECV_F0,1RECV_F1",
            "1RECV_F1,1RECV_F0",
            ":2:1",
            "1RECV_F1 would get what 1RECV_F0 waits for: rank 0 sends 0SEND_F0 first",
        ),
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
            "rank 0 waits in 0B1 for 1SEND_B1; rank 1 waits in 1F1 for 0SEND_F1",
        ),
    ],
)
def test_communication_is_checked(path: Path, old: str, new: str, place: str, says: str) -> None:
    assert old in COMMS
    changed = COMMS.replace(old, new, 1)
    if not says:
        assert torch_csv(load(path, changed), "compute_comms") == changed
        return
    with pytest.raises(FormatError, match=re.escape(f"{path}{place}: ") + ".*" + re.escape(says)):
        load(path, changed)


def reshuffled(valid: bytes, chance: Random) -> bytes:
    """A copy in which cells change their places, are doubled, or left out."""
    rows = [line.split(b",") for line in valid.splitlines()]
    for _ in range(chance.randrange(1, 4)):
        one, other = (chance.choice(rows) for _ in range(2))
        cell = one.pop(chance.randrange(len(one))) if len(one) > 1 else b""
        for _ in range(chance.choice([0, 1, 1, 1, 1, 2])):
            other.insert(chance.randrange(len(other) + 1), cell)
    return b"\n".join(b",".join(row) for row in rows)


def mutants(valid: bytes, count: int) -> Iterator[bytes]:
    chance = Random(0)
    yield from damaged(valid, count // 2)
    yield from (reshuffled(valid, chance) for _ in range(count - count // 2))


def _fuzz(folder: Path, valid: bytes, count: int) -> Counter[str]:
    """Import damaged files, and run what is accepted; count what came of it."""
    outcomes: Counter[str] = Counter()
    path = folder / "schedule.csv"
    for content in mutants(valid, count):
        path.write_bytes(content)
        result = invoke("import", "torch-csv", str(path), "-o", str(folder / "plan.json"))
        if result.exit_code:
            assert result.exit_code == 2, content
            assert result.stderr.startswith(f"error: {path}"), result.output
            assert result.stderr.count("\n") == 1
            outcomes["refused"] += 1
        else:
            schedule = load_plan(folder / "plan.json")
            hangs = bool(deadlocked(schedule, "exchange"))
            assert ("with blocking sends this hangs: rank" in result.stdout) == hangs
            outcomes["hangs" if hangs else "runs"] += 1
    return outcomes


FILES = {
    "only": ONLY.encode(),
    "comms": COMMS.encode(),
    "both send first": (ROOT / "tests/data/torch_csv/both-send-first.csv").read_bytes(),
    "overlap": COMMS.replace("1I0,1SEND_B0,1F1", "(1F1;1I0)OVERLAP_F_B,1SEND_B0").encode(),
}


@pytest.mark.parametrize("name", FILES)
def test_fuzz(tmp_path: Path, name: str) -> None:
    outcomes = _fuzz(tmp_path, FILES[name], tries(1))
    assert outcomes["refused"] > tries(0.3)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_fuzz_2000_in_all(tmp_path: Path, name: str) -> None:
    before = getrusage(RUSAGE_SELF).ru_maxrss
    outcomes = _fuzz(tmp_path, FILES[name], 500)
    assert outcomes["refused"] > 250
    assert outcomes.total() == 500
    assert getrusage(RUSAGE_SELF).ru_maxrss - before < 2**20  # KiB


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
    assert (result.exit_code, result.stdout) == (0, "")
    warning, wrote = result.stderr.splitlines()
    assert (warning.partition(":")[0], wrote) == ("warning", "wrote torch.csv")
    assert Path("torch.csv").read_text() == torch_csv(made, kind)
    result = invoke("import", "torch-csv", "torch.csv", "-o", "back.json")
    assert (result.exit_code, result.stderr) == (0, "wrote back.json\n")
    assert result.stdout.startswith("4 stages on 4 ranks × 6 micro-batches\n")
    back = load_plan("back.json")
    assert (back.orders, back.placement) == (made.orders, made.placement)
    assert back.assumed == Assumptions(runtime="torch")
    again = invoke("export", "back.json", "--format", target, "-o", "again.csv")
    assert (again.exit_code, again.output) == (0, "wrote again.csv\n")
    assert Path("again.csv").read_text() == Path("torch.csv").read_text()
    assert invoke("import", "torch-csv", "torch.csv", "-o", "back.json", "-q").output == ""


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("export plan.json --format torch-csv -o x --delay 20ms --link 9", "there is no link 9"),
        ("export plan.json --format torch-csv-comms -o x --transport tcp", "unknown transport"),
        ("export plan.json --format torch-csv -o x --runtime jax", "unknown runtime 'jax'"),
        ("export plan.json --format torch-csv -o x --chunks 2", "--chunks 2 on [0, 1, 0, 1]"),
        ("export --format torch-csv -o x", "give a PLAN.json or --planner NAME"),
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


BOTH = FILES["both send first"].decode()


def test_an_import_ends_with_what_became_of_each_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = COMMS.replace("1I0,1SEND_B0,1F1", "(1F1;1I0)OVERLAP_F_B,1SEND_B0")
    Path("torch.csv").write_text(text.replace("0F0,", "0UNSHARD,0F0,", 1))
    result = invoke("import", "torch-csv", "torch.csv", "-o", "plan.json")
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert [line for line in lines if "actions" in line or "cells" in line] == [
        "cells 19 19",
        "F actions 4 4",
        "I actions 1 1",
        "W actions 1 1",
        "B actions 3 3",
        "OVERLAP_F_B actions 1 1 of 1 F and 1 I of those above",
        "SEND_F actions 2 2 kept in this order",
        "RECV_F actions 2 2 kept in this order",
        "SEND_B actions 2 2 kept in this order",
        "RECV_B actions 2 2 kept in this order",
        "UNSHARD actions 1 1 kept, but takes no time",
        "REDUCE_GRAD actions 2 2 kept, but takes no time",
    ]
    assert result.stdout.startswith(
        "2 stages on 2 ranks × 2 micro-batches\n"
        "rank of each stage: 0 1\n"
        "peak activations of each rank: 2 2\n"
    )
    assert "an overlap run one after the other when simulated, as torch 2.13" in result.stdout
    assert "even where each blocks its rank" in result.stdout


def test_blanks_are_counted(made: Schedule) -> None:
    Path("torch.csv").write_text(ONLY)
    result = invoke("import", "torch-csv", "torch.csv", "-o", "plan.json", "--explain-drops")
    assert ", blank: an idle time step:\n  line 1, cell 3\n" in result.stdout
    assert "  line 2, cell 1\n" in result.stdout
    assert "the file holds no sends and receives: torch adds its own" in result.stdout


def test_two_ranks_that_both_send_first(made: Schedule) -> None:
    """The import says that it hangs, and where it does not; the plan hangs where it says so."""
    Path("torch.csv").write_text(BOTH)
    result = invoke("import", "torch-csv", "torch.csv", "-o", "both.json")
    assert (result.exit_code, result.stderr) == (0, "wrote both.json\n")
    assert (
        "- with blocking sends this hangs: rank 0 waits in 0SEND_F1 for 1RECV_F1; "
        "rank 1 waits in 1SEND_F0 for 2RECV_F0\n"
        "- torch does not block in a send, and waits for a receive in its operator: over gloo the "
        "file runs; over NCCL, where the messages of two ranks share a stream, it hangs where "
        "messages are too large for NCCL's buffers\n"
    ) in result.stdout
    result = invoke("export", "both.json", "--format", "torch-csv-comms", "-o", "back.csv")
    assert (result.exit_code, result.stderr) == (0, "wrote back.csv\n")
    assert Path("back.csv").read_text() == BOTH
    result = invoke("export", "both.json", "--format", "torch-csv", "-o", "only.csv")
    assert result.stderr == (
        "left out: 6 SEND_F, 6 RECV_F, 6 RECV_B and 6 SEND_B; torch adds its own "
        "(torch-csv-comms keeps the plan's)\nwrote only.csv\n"
    )
    Path("four.toml").write_text(FOUR)
    for over in ("exchange", "nccl"):
        result = invoke("simulate", "both.json", "--scenario", "four.toml", "--transport", over)
        assert (result.exit_code, result.stderr) == (
            2,
            "error: deadlock: device 0 waits in 0SEND_F1 for 1RECV_F1; "
            "device 1 waits in 1SEND_F0 for 2RECV_F0\n",
        )


FOUR = """\
format = "pipesim-scenario"
version = 1
[pipeline]
stages = 4
microbatches = 2
placement = [0, 1, 0, 1]
[operators]
forward_ms = 10
backward_ms = 10
weight_ms = 10
"""
