"""What is advised, in words; ``test_advised.py`` holds the choice to its rules."""

from __future__ import annotations

from collections.abc import Sequence

from pipesim.scenario import Scenario
from pipesim.studies.advice import advice
from pipesim.studies.comparison import compare
from pipesim.studies.systems import DEFAULT_SYSTEMS


def advised_text(scenario: Scenario, systems: Sequence[str] = DEFAULT_SYSTEMS) -> str:
    """The advice without what it assumes."""
    text = advice(compare(scenario, systems))
    assert "\n" not in text
    sentence, _, assumptions = text.partition(" Assumes ")
    for part in (sentence, assumptions):
        assert part.endswith(".")
        assert ". " not in part
    assert assumptions.endswith("(--message-cost).")
    return sentence


def test_no_slow_link() -> None:
    sentence = advised_text(Scenario())
    assert sentence.startswith("No link is slow: ZeroBubble takes 390 ms (the lower bound)")
    assert sentence.endswith(", and no other system here is faster.")


def test_re_planning_wins_and_says_what_it_costs() -> None:
    sentence = advised_text(Scenario().with_delay(20, links=[0]))
    assert sentence.startswith("Re-plan for link 0: PipeMorph takes 410 ms (the lower bound), ")
    assert "6.8 % less than PipeMorph-CPU" in sentence
    assert sentence.endswith("than PipeMorph-CPU: 10 instead of 9.5 on device 0.")


def test_delegation_alone_is_enough() -> None:
    sentence = advised_text(Scenario().with_delay(10, links=[0]))
    assert sentence.startswith("Delegate communication to the CPU and keep the plan: ")
    assert "PipeMorph-CPU takes 400 ms (the lower bound), 28.6 % less than ZeroBubble" in sentence
    assert "re-planning gains nothing on top" in sentence
    assert "activations" not in sentence
    fused = advised_text(Scenario().with_delay(10, links=[0]), ["1f1b", "pipemorph-cpu"])
    assert fused.startswith("Delegate communication to the CPU and plan with zerobubble: ")
    assert "than 1F1B: 9.5 instead of 4 on device 0 and more on 3 other devices" in fused


def test_a_gain_under_a_thousandth_is_none() -> None:
    scenario = Scenario(stages=8, microbatches=24).with_delay(0.3, links=[0], kind="latency")
    systems = ("1f1b", "zerobubble", "pipemorph-cpu", "pipemorph")
    result = compare(scenario, systems)
    assert result["pipemorph-cpu"].iteration_ms <= result["zerobubble"].iteration_ms
    assert advice(result).startswith("Keep ZeroBubble (790.3 ms, the lower bound): ")
    assert "delegation and re-planning gain nothing." in advice(result)
    sentence = advised_text(Scenario().with_delay(1e-4, links=[2]))
    assert sentence.startswith("Keep ZeroBubble (390 ms): ")
    assert sentence.endswith(": delegation and re-planning gain nothing worth a change.")


def test_the_baseline_is_best_of_what_is_compared() -> None:
    scenario = Scenario().with_delay(20, links=[0])
    sentence = advised_text(scenario, ["1f1b", "zerobubble"])
    assert sentence == "Keep 1F1B (690 ms): no other system here is faster."


def test_memory_limits_send_activations_to_the_host() -> None:
    limited = Scenario(activation_limit=8).with_delay(60, links=[1])
    sentence = advised_text(limited)
    assert "12 instead of 8 on device 0 and 10 instead of 8 on device 1" in sentence
    assert "up to 4 wait in host memory because of the limit of devices 0 and 1" in sentence
    roomy = Scenario(activation_limit=12).with_delay(20, links=[1])
    assert advised_text(roomy).endswith(", within the limit.")


def test_one_system_alone() -> None:
    scenario = Scenario().with_delay(20, links=[0])
    assert advised_text(scenario, ["pipemorph"]) == "PipeMorph takes 410 ms (the lower bound)."
    assert advised_text(scenario, ["1f1b"]) == "1F1B takes 690 ms, 60 ms above the lower bound."


def test_an_ideal_transport_is_no_advice() -> None:
    scenario = Scenario().with_delay(20, links=[0])
    assert "1F1B" in advised_text(scenario, ["pipemorph:ideal", "1f1b"])
    nothing = advice(compare(scenario, ["pipemorph:ideal"]))
    assert nothing == "Nothing to advise: no system here both fits and can be run."


def test_systems_of_other_placements_are_not_compared_in_memory() -> None:
    scenario = Scenario().with_delay(20, links=[0])
    assert "Re-plan for link 0" in advised_text(scenario, ["interleaved-1f1b", "pipemorph"])


def test_it_says_what_it_assumes() -> None:
    def assumed(scenario: Scenario, *systems: str, cost: float = 0.0) -> str:
        text = advice(compare(scenario, systems or None, message_cost_ms=cost))
        return text.partition(" Assumes ")[2]

    slow = Scenario().with_delay(20, links=[0])
    instant = "messages that take no time besides the delay (--message-cost)."
    assert assumed(slow) == f"CPU delegation and {instant}"
    assert assumed(slow, "1f1b") == instant
    assert assumed(slow, cost=2) == "CPU delegation."
    assert assumed(slow, "1f1b", cost=2) == ""
    assert assumed(Scenario()) == "messages that take no time (--message-cost)."
    assert assumed(Scenario(stages=1)) == ""
    tight = slow.replaced(activation_limit=4)
    assert assumed(tight, cost=2) == (
        "CPU delegation and host memory for up to 5 activations per device."
    )
    first = slow.replaced(activation_limit=[7.0, 9.0, 9.0, 9.0])
    assert "host memory for 1 activation and" in assumed(first, "pipemorph", "1f1b")


def test_host_memory_for_one_percent_is_not_advised() -> None:
    scenario = Scenario(
        stages=2, microbatches=6, forward_ms=[11, 12], backward_ms=12, weight_ms=12,
        activation_limit=2,
    ).with_delay(1, links=[0])  # fmt: skip
    result = compare(scenario)
    times = {row.system.name: row.iteration_ms for row in result.rows}
    assert (times["pipemorph"], times["search"]) == (228, 229)
    assert any(result["pipemorph"].host_activations)
    sentence = advised_text(scenario, ["zerobubble", "pipemorph-cpu", "pipemorph", "search"])
    assert sentence == (
        "Re-plan for link 0: Search takes 229 ms, 2.1 % less than ZeroBubble and 0.9 % less than "
        "PipeMorph-CPU; it holds no more activations; with host memory, PipeMorph would take "
        "0.4 % less."
    )
    near = advised_text(scenario, ["zerobubble", "zerobubble:delegated", "pipemorph"])
    assert "Re-plan for link 0: PipeMorph takes 228 ms" in near


def test_search_within_the_limit_is_advised_over_host_memory() -> None:
    scenario = Scenario(activation_limit=6).with_delay(20, links=[0])
    text = advice(compare(scenario))
    assert text.startswith("Re-plan for link 0: Search takes 410 ms (the lower bound), ")
    assert "it holds fewer activations than PipeMorph-CPU" in text
    assert "host memory" not in text
    tight = advice(compare(scenario.replaced(activation_limit=4)))
    assert "PipeMorph takes 410 ms" in tight
    assert "16.3 % less than Search" in tight
