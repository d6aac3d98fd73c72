from __future__ import annotations

from collections.abc import Sequence

from pipesim.scenario import Scenario
from pipesim.studies.advice import advice
from pipesim.studies.comparison import DEFAULT_SYSTEMS, compare


def advised(scenario: Scenario, systems: Sequence[str] = DEFAULT_SYSTEMS) -> str:
    sentence = advice(compare(scenario, systems))
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert ". " not in sentence
    return sentence


def test_no_slow_link() -> None:
    sentence = advised(Scenario())
    assert sentence.startswith("No link is slow: ZeroBubble takes 390 ms (the lower bound)")
    assert sentence.endswith(", and no other system here is faster.")


def test_re_planning_wins_and_says_what_it_costs() -> None:
    sentence = advised(Scenario().with_delay(20, links=[0]))
    assert sentence.startswith("Re-plan for link 0: PipeMorph takes 410 ms (the lower bound), ")
    assert "6.8 % less than PipeMorph-CPU" in sentence
    assert sentence.endswith("than PipeMorph-CPU: 10 instead of 9.5 on device 0.")


def test_delegation_alone_is_enough() -> None:
    sentence = advised(Scenario().with_delay(10, links=[0]))
    assert sentence.startswith("Delegate communication to the CPU and keep the plan: ")
    assert "PipeMorph-CPU takes 400 ms (the lower bound), 28.6 % less than ZeroBubble" in sentence
    assert "re-planning gains nothing on top" in sentence
    assert "activations" not in sentence
    fused = advised(Scenario().with_delay(10, links=[0]), ["1f1b", "pipemorph-cpu"])
    assert fused.startswith("Delegate communication to the CPU and plan with zerobubble: ")
    assert "than 1F1B: 9.5 instead of 4 on device 0 and more on 3 other devices" in fused


def test_a_gain_under_a_thousandth_is_none() -> None:
    scenario = Scenario(stages=8, microbatches=24).with_delay(0.3, links=[0], kind="latency")
    systems = ("1f1b", "zerobubble", "pipemorph-cpu", "pipemorph")
    result = compare(scenario, systems)
    assert result["pipemorph-cpu"].iteration_ms <= result["zerobubble"].iteration_ms
    for sentence in (advice(result), advised(Scenario().with_delay(1e-4, links=[2]))):
        assert sentence.startswith("Keep ZeroBubble (")
        assert "delegation and re-planning gain nothing" in sentence


def test_the_baseline_is_best_of_what_is_compared() -> None:
    scenario = Scenario().with_delay(20, links=[0])
    sentence = advised(scenario, ["1f1b", "zerobubble"])
    assert sentence == "Keep 1F1B (690 ms): no other system here is faster."


def test_memory_limits_send_activations_to_the_host() -> None:
    limited = Scenario(activation_limit=8).with_delay(60, links=[1])
    sentence = advised(limited)
    assert "12 instead of 8 on device 0 and 10 instead of 8 on device 1" in sentence
    assert "up to 4 wait in host memory because of the limit of devices 0 and 1" in sentence
    roomy = Scenario(activation_limit=12).with_delay(20, links=[1])
    assert advised(roomy).endswith(", within the limit.")


def test_one_system_alone() -> None:
    scenario = Scenario().with_delay(20, links=[0])
    assert advised(scenario, ["pipemorph"]) == "PipeMorph takes 410 ms (the lower bound)."
    assert advised(scenario, ["1f1b"]) == "1F1B takes 690 ms, 280 ms above the lower bound."


def test_an_ideal_transport_is_no_advice() -> None:
    scenario = Scenario().with_delay(20, links=[0])
    assert "1F1B" in advised(scenario, ["pipemorph:ideal", "1f1b"])
    assert "Nothing to advise" in advised(scenario, ["pipemorph:ideal"])


def test_systems_of_other_placements_are_not_compared_in_memory() -> None:
    scenario = Scenario().with_delay(20, links=[0])
    assert "Re-plan for link 0" in advised(scenario, ["interleaved-1f1b", "pipemorph"])
