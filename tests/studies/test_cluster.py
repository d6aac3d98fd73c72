"""What a testbed knows of a job."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim import Scenario, compare
from pipesim.errors import ScenarioError
from pipesim.fidelity.testbed import Testbed as Bed
from pipesim.studies.advice import NEGLIGIBLE, advice, advised
from pipesim.studies.cluster import Cluster, cluster
from pipesim.studies.comparison import Row
from pipesim.studies.systems import DEFAULT_SYSTEMS, system
from pipesim.transport import Delegated, Nccl
from tests.strategies import examples

MIB = 2**20
SLOW = Scenario().with_delay(20, links=[0])
LAB = Bed(
    "lab",
    constants={"transfer_gib_per_s": 10.0, "delegate_ms": 3.0, "after_ms": 50.0},
    message_bytes=10 * MIB,
    errors={"pipemorph": (-0.02, 0.04, 0.01, 0.01), "zerobubble": (0.1,) * 5},
)
SAYS = "testbed lab: a message of 10 MiB takes 0.98 ms over NCCL, 3.98 ms through delegates"


def test_messages_without_a_size_have_the_testbed_s() -> None:
    lab = Cluster(LAB)
    assert lab.sized(SLOW).message_bytes.tolist() == [10 * MIB] * 3
    given = SLOW.replaced(message_bytes=[MIB, 0, 2])
    assert lab.sized(given).message_bytes.tolist() == [MIB, 10 * MIB, 2]
    kept = SLOW.replaced(message_bytes=5)
    assert lab.sized(kept) is kept


def test_it_says_what_a_message_costs() -> None:
    lab = Cluster(LAB)
    after = "; 50 ms after the pipeline are not included"
    assert lab.described(lab.sized(SLOW)) == SAYS + after
    shared = "testbed lab, 8 ranks per host"
    unknown = f"{shared} (what they share is not known, and taken as nothing): "
    more = Cluster(replace(LAB, constants={**LAB.constants, "replanned_ms": 280.0}))
    later = "; 50 ms after the pipeline and 280 ms after re-planned ones are not included"
    assert more.described(lab.sized(SLOW)) == SAYS + later
    assert Cluster(LAB, 8).described(SLOW).startswith(unknown)
    known = replace(LAB, constants={"host_gib_per_s": 9.0})
    assert Cluster(known, 8).described(SLOW).startswith(f"{shared}: ")
    sizes = SLOW.replaced(message_bytes=[10 * MIB, MIB, MIB])
    assert "messages of 1 to 10 MiB take 0.1 to 0.98 ms over NCCL, 3.1 to" in lab.described(sizes)
    assert lab.described(Scenario(stages=1)) == "testbed lab: one stage sends no messages"


def test_systems_are_known_by_what_they_do() -> None:
    lab = Cluster(LAB)
    for name in ("pipemorph", "pipemorph:delegated"):
        assert lab.errors(system(name)) == (-0.02, 0.04, 0.01, 0.01)
        assert lab.spread(system(name)) == 0.1
    for name in ("pipemorph:nccl", "search", "1f1b"):
        assert lab.errors(system(name)) == ()
        assert lab.interval_ms(system(name), 400.0) is None
    # 450 ms were predicted for the whole iteration, and 50 of them follow the pipeline.
    interval = lab.interval_ms(system("pipemorph"), 400.0)
    assert interval == pytest.approx((450 * 0.9 - 50, 450 * 1.1 - 50))


def test_a_comparison_has_the_costs_in_times_and_in_plans() -> None:
    result = compare(SLOW, testbed=LAB)
    assert result.cluster == Cluster(LAB)
    assert result.scenario.message_bytes.tolist() == [10 * MIB] * 3
    assert result["zerobubble"].over == LAB.transport("nccl")
    assert result["pipemorph"].over == LAB.transport("delegated")
    costs = LAB.transport("delegated").costs_ms(result.scenario)
    assumed = result["pipemorph"].schedule.assumed.delay_ms
    assert assumed == tuple((delay, delay) for delay in (SLOW.delay_ms[:, 0] + costs).tolist())
    own = compare(result.scenario, transports=[LAB.transport("delegated")])["pipemorph"]
    assert own.iteration_ms == result["pipemorph"].iteration_ms
    document = result.as_dict()
    assert document["testbed"] == result.cluster.as_dict(result.scenario)
    assert [row["interval_ms"] is None for row in document["rows"]] == [  # type: ignore[index,attr-defined]
        True, False, True, False,
    ]  # fmt: skip
    json.dumps(document, allow_nan=False)
    assert compare(SLOW).as_dict()["testbed"] is None


def test_transports_of_the_user_go_before_those_of_the_testbed() -> None:
    result = compare(SLOW, testbed=LAB, transports=[Nccl(bytes_per_ms=1e6)])
    assert result["zerobubble"].over == Nccl(bytes_per_ms=1e6)
    assert result["pipemorph"].over == LAB.transport("delegated")
    shared = compare(SLOW, ["pipemorph"], testbed=LAB, ranks_per_host=8).rows[0].over
    assert shared == LAB.transport("delegated", ranks_per_host=8)
    assert isinstance(shared, Delegated)


def test_testbeds_have_names() -> None:
    assert cluster("h800", 2).testbed.name == "h800"
    with pytest.raises(ScenarioError, match="unknown testbed 'h801'"):
        compare(SLOW, testbed="h801")


# -- advice ------------------------------------------------------------------------------


def told(**errors: tuple[float, ...]) -> tuple[str, str]:
    """Whom the advice is for, and the advice, on a testbed with these errors of predictions."""
    named = {name.replace("_", "-"): own for name, own in errors.items()}
    result = compare(SLOW, testbed=replace(LAB, errors=named))
    best = advised(result)
    assert best is not None
    return best.system.name, advice(result)


def test_the_advice_says_how_far_off_predictions_have_been() -> None:
    name, text = told(pipemorph=(-0.02, 0.04, 0.01, 0.01))
    assert name == "pipemorph"
    assert text.endswith(
        "Assumes CPU delegation and messages that cost what they do on lab. Predictions of "
        "PipeMorph on lab were 2 % off on average over 4 runs, and 90 % of those of all systems "
        "there within ±4.0 %; each run was predicted from a fit without its setting."
    )
    assert "(--message-cost)" not in text
    _, text = told(pipemorph=(0.03,))
    assert "were 3 % off on average over 1 run; each" in text
    assert told()[1].endswith(" How far off predictions of PipeMorph on lab are is not known.")


def test_the_advice_says_what_nothing_explains() -> None:
    later = " Re-planned iterations on lab ended 280 ms later, which nothing explains and which "
    bed = replace(LAB, constants={**LAB.constants, "replanned_ms": 280.0})
    assert later in advice(compare(SLOW, testbed=bed))
    assert later not in advice(compare(SLOW, testbed=LAB))
    assert later not in advice(compare(SLOW.without_delay(), testbed=bed))
    document = compare(SLOW, ["1f1b"], testbed=bed).as_dict()["testbed"]
    assert isinstance(document, dict)
    assert document["replanned_ms"] == 280


def test_no_difference_is_claimed_within_the_error_of_predictions() -> None:
    wide, narrow = (-0.3, 0.0, 0.1, 0.3), (-0.01, 0.0, 0.0, 0.01)
    name, text = told(pipemorph=narrow, pipemorph_cpu=narrow)
    assert name == "pipemorph"
    assert "% less than PipeMorph-CPU" in text
    name, text = told(pipemorph=wide, pipemorph_cpu=wide)
    assert name == "pipemorph-cpu"  # as fast, as far as anyone knows, with fewer activations
    assert "re-planning gains nothing beyond the error of predictions on top" in text
    assert "less than PipeMorph" not in text
    name, text = told(
        **dict.fromkeys(("1f1b", "zerobubble", "pipemorph_cpu", "pipemorph"), (-0.9, 0, 0, 9.0))
    )
    assert name == "1f1b"
    assert "gain nothing beyond the error of predictions" in text


def test_what_holds_less_is_as_long_within_the_error() -> None:
    errors = dict.fromkeys(("zerobubble", "1f1b:delegated"), (-0.9, 0.0, 0.0, 9.0))
    names = ["zerobubble", "1f1b:delegated"]
    result = compare(SLOW, names, testbed=replace(LAB, errors=errors))
    best = advised(result)
    assert best is not None
    assert best.system.name == "1f1b:delegated"
    assert "ms, as long as ZeroBubble within the error of predictions; it" in advice(result)


_errors = st.lists(st.floats(-0.3, 0.5), min_size=4, max_size=6).map(tuple)


@examples(1)
@given(
    st.fixed_dictionaries({}, optional=dict.fromkeys(DEFAULT_SYSTEMS, _errors)),
    st.sampled_from([0.0, 2.0, 5.0, 20.0]),
)
def test_claims_are_beyond_the_error(errors: dict[str, tuple[float, ...]], delay_ms: float) -> None:
    slow = Scenario(microbatches=6).with_delay(delay_ms, links=[0])
    result = compare(slow, testbed=replace(LAB, errors=errors))
    best, text = advised(result), advice(result)
    assert best is not None
    fastest = min(result.rows, key=lambda row: row.iteration_ms)
    about = best.iteration_ms <= fastest.iteration_ms * (1 + NEGLIGIBLE)
    assert about or alike(best, fastest)
    for row in result.rows:
        if row is not best and alike(best, row):
            for claim in (
                f"% less than {row.system.title}",
                f"about as long as {row.system.title}",
            ):
                assert not re.search(re.escape(claim) + r"\b(?!-)", text)


def alike(row: Row, other: Row) -> bool:
    """Whether each one's prediction lies between what the other's may be and is predicted to be."""
    if row.interval_ms is None or other.interval_ms is None:
        return False
    here, there = (sorted((*one.interval_ms, one.iteration_ms)) for one in (row, other))  # type: ignore[misc]
    return here[0] <= other.iteration_ms <= here[2] and there[0] <= row.iteration_ms <= there[2]
