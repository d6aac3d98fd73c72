"""Testbeds by name, and what messages cost there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipesim import Scenario
from pipesim.errors import FormatError, ScenarioError
from pipesim.fidelity import shipped
from pipesim.fidelity import testbed as beds
from pipesim.fidelity.calibration import Calibration
from pipesim.fidelity.calibration_file import load_calibration, save_calibration
from pipesim.fidelity.runs import SYSTEMS
from pipesim.transport import TRANSPORTS, Delegated
from tests import ROOT

CALIBRATED = ROOT / "traces" / "calibration.toml"
LAB = beds.Testbed("lab", constants={"transfer_gib_per_s": 10.0, "delegate_ms": 3.0})


def test_those_that_come_with_pipesim_are_the_calibrated_ones() -> None:
    calibration = load_calibration(CALIBRATED)
    assert shipped.shipped() == calibration
    for name, testbed in calibration.testbeds.items():
        assert shipped.testbed_named(name) == testbed
        assert testbed.message_bytes > 0
        assert set(testbed.errors) == set(SYSTEMS)


def test_a_file_has_one_testbed_or_says_which(in_folder: Path) -> None:
    save_calibration(Calibration({"lab": LAB}, (), 0.0), "one.toml")
    field = replace(LAB, name="field")
    save_calibration(Calibration({"lab": LAB, "field": field}, (), 0.0), "two.toml")
    assert shipped.testbed_named("one.toml") == shipped.testbed_named(Path("one.toml")) == LAB
    assert shipped.testbed_named("one.toml:lab") == LAB
    assert shipped.testbed_named("two.toml:field") == field
    for name, message in {
        "h801": "unknown testbed 'h801': one of h800, a10, or a calibration file",
        "two.toml": r"two.toml has several testbeds \(lab, field\): give one, as in two.toml:NAME",
        "two.toml:h800": r"two.toml has no testbed 'h800' \(it has: lab, field\)",
    }.items():
        with pytest.raises(ScenarioError, match=message):
            shipped.testbed_named(name)
    for name in ("none.toml", "none/h800", "none.toml:lab", "."):
        with pytest.raises(FormatError, match=r"none|\."):
            shipped.testbed_named(name)


@pytest.mark.parametrize("name", [*shipped.shipped().testbeds, "lab"])
def test_every_transport_has_the_costs_of_the_testbed(name: str) -> None:
    testbed = LAB if name == "lab" else shipped.testbed_named(name)
    scenario = Scenario(message_bytes=[10 * 2**20, 0, 2**20])
    costs = {kind: testbed.transport(kind).costs_ms(scenario).tolist() for kind in TRANSPORTS}
    assert [testbed.transport(kind).name for kind in TRANSPORTS] == list(TRANSPORTS)
    assert costs["ideal"] == costs["nccl"] == costs["exchange"] == costs["isolated"]
    assert costs["nccl"][0] >= costs["nccl"][2] >= costs["nccl"][1] == 0
    assert all(map(float.__ge__, costs["delegated"], costs["nccl"]))
    with pytest.raises(ScenarioError, match="unknown transport"):
        testbed.transport("pigeon")


def test_costs_by_hand() -> None:
    ten = Scenario(stages=2, message_bytes=10 * 2**20)
    assert LAB.transport("nccl").costs_ms(ten).tolist() == pytest.approx([1e4 / 2**10 / 10])
    over = LAB.transport("delegated", delegates=3)
    assert isinstance(over, Delegated)
    assert over.delegates == 3
    assert over.costs_ms(ten).tolist() == pytest.approx([3 + 1e4 / 2**10 / 10])
    copied = replace(LAB, constants={**LAB.constants, "copy_gib_per_s": 5.0})
    costs = copied.transport("delegated").costs_ms(ten).tolist()
    assert costs == pytest.approx([3 + 1e4 / 2**10 * (1 / 10 + 2 / 5)])  # out of a device and in


def test_the_spread_is_of_all_systems_that_were_measured() -> None:
    testbed = replace(LAB, errors={"1f1b": (0.02, -0.01), "pipemorph": (-0.04, 0.03)})
    assert testbed.spread("1f1b") == testbed.spread("pipemorph") == 0.04
    assert testbed.spread("zerobubble") is None
