"""Where ranks and layers are, and what is guessed from that."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim import Scenario, plan, simulate
from pipesim.errors import FormatError
from pipesim.fidelity.import_check import check_import
from pipesim.formats.measurement import Measurement
from pipesim.formats.megatron import import_megatron
from pipesim.formats.megatron.guess import one_f_one_b_ms, pair_ms
from pipesim.formats.megatron.layout import Layout
from tests.formats.megatron_dialects import (
    DATA,
    of_extremes,
    of_megatron_deepspeed,
    of_pipeline,
    of_v2,
    text,
)
from tests.formats.megatron_dialects import Run as KnownRun
from tests.formats.megatron_logs import MINMAX, iteration
from tests.strategies import examples

CASES = DATA / "cases"


def case(name: str) -> Measurement:
    return import_megatron([CASES / f"{name}.log"])


def told(path: Path, *arguments: str, ms: float = 450.0, **options: object) -> Measurement:
    """Three iterations of 12 micro-batches, and some arguments before them."""
    dump = "".join(f"  {one.replace(' ', ' .......... ', 1)}\n" for one in arguments)
    path.write_text(dump + "".join(iteration(n, ms) for n in (1, 2, 3)))
    given: dict[str, object] = {"stages": 4, "microbatches": 12, **options}
    return import_megatron([path], **given)  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "train.log"


# -- small logs that once went wrong ---------------------------------------------------------


def test_timers_of_the_last_rank() -> None:
    measured = case("old-timer-line")
    assert measured.scenario.forward_ms.tolist() == [[44.0] * 4] * 4
    assert measured.scenario.fused_backward_ms.tolist() == [[128.5] * 4] * 4
    assert not measured.guessed
    assert any("the other stages are guessed to be like it" in note for note in measured.notes)
    check = check_import(measured)  # 7 · 172.5 ms, and 115 ms of the optimizer
    assert check is not None
    assert check.simulated_ms == pytest.approx(1322.5)
    assert not check.doubtful


def test_each_iteration_has_its_own_timers(path: Path) -> None:
    timers = "time (ms) | forward-compute: {}.00 | backward-compute: {}.00\n"
    path.write_text(
        "".join(
            iteration(n, 450.0) + timers.format(f, 2 * f) for n, f in ((1, 96), (2, 120), (3, 132))
        )
    )
    measured = import_megatron([path], stages=4, microbatches=12)
    assert measured.scenario.forward_ms[0, 0] == 10
    assert measured.spread_ms["F"][0, 0] == pytest.approx(1.5)


def test_deepspeed_s_world_is_another_one() -> None:
    measured = case("deepspeed-world-size")
    assert (measured.scenario.stages, measured.scenario.microbatches) == (4, 4)
    assert measured.iteration_ms == (700, 700)
    assert measured.tallies[0].dropped[0].why == "of DeepSpeed"
    assert any("8 ranks, but 4 stages × 1 tensor- and" in note for note in measured.notes)


def test_seconds() -> None:
    assert case("seconds").iteration_ms == (1400, 1400, 1400)


def test_virtual_stages() -> None:
    measured = case("virtual-stages")
    scenario = measured.scenario
    assert scenario.placement == Scenario.place("interleaved", 4, 2)
    assert scenario.forward_ms == pytest.approx(np.full((8, 8), 5.0))  # of a stage, 10
    order = plan(scenario, "interleaved-1f1b")
    assert simulate(scenario, order, "ideal").iteration_ms == pytest.approx(285)
    assert any("F = 10 ms on every stage, 5 ms on each of its chunks" in n for n in measured.notes)


# -- units -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "(ms): 429.3",
            "(min): 7.1",
            "iteration 2 has times in the unit 'min', which is not known",
        ),
        (" (ms): 429.3", ": 429.3", "iteration 2 has times in no unit (known: ms, s, us)"),
        ("ranks (ms)", "ranks (h)", "a block of timers has times in the unit 'h'"),
        ("(ms): 429.3", "(s): x", "must be a time in seconds, not 'x'"),
        ("(ms): 429.3", "(ms): 429.3/x", "must be a time in milliseconds, not 'x'"),
    ],
)
def test_a_unit_is_known_or_named(path: Path, old: str, new: str, says: str) -> None:
    path.write_text(MINMAX.replace(old, new))
    with pytest.raises(FormatError) as error:
        import_megatron([path], stages=2, microbatches=12)
    assert says in str(error.value)
    assert str(error.value).startswith(f"{path}:")


@pytest.mark.parametrize(("unit", "factor"), [("s", 1000), ("us", 0.001)])
def test_units_of_timers(path: Path, unit: str, factor: float) -> None:
    path.write_text(MINMAX.replace("(ms)", f"({unit})"))
    measured = import_megatron([path], stages=2, microbatches=12)
    assert measured.iteration_ms[0] == pytest.approx(429.3 * factor)
    assert measured.scenario.forward_ms[0, 0] == pytest.approx(12 * factor, rel=1e-2)


# -- ranks -----------------------------------------------------------------------------------


@given(
    devices=st.integers(1, 5),
    sharing=st.integers(1, 3),
    copies=st.integers(1, 4),
    stage_first=st.booleans(),
)
def test_every_place_has_as_many_ranks(
    devices: int, sharing: int, copies: int, stage_first: bool
) -> None:
    layout = Layout(devices, 1, sharing, copies, stage_first)
    ranks = devices * sharing * copies
    places = [layout.place(rank, ranks) for rank in range(ranks)]
    every = {(stage, copy) for stage in range(devices) for copy in range(copies)}
    assert set(places) == every
    assert all(places.count(place) == sharing for place in every)
    # Ranks that share the work of a stage are neighbours.
    assert places[0] == places[sharing - 1]


def test_the_summary_names_the_layout(path: Path) -> None:
    arguments = ("world_size 32", "tensor_model_parallel_size 2", "context_parallel_size 2")
    measured = told(
        path,
        *arguments,
        "use_tp_pp_dp_mapping True",
        "expert_model_parallel_size 2",
        "num_layers 8",
    )
    assert (
        f"{path}: 32 ranks are 4 stages × 2 data-parallel × 2 tensor-parallel × 2 context-parallel "
        "(of the data-parallel ones 2 expert-parallel); rank = tp + T·(stage + S·dp), by "
        "use_tp_pp_dp_mapping"
    ) in measured.notes
    assert f"{path}: 8 layers, shared out equally" in measured.notes


# -- layers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "layers"),
    [
        (["num_layers 8"], [1, 1, 1, 1]),
        (["num_layers 9", "decoder_first_pipeline_num_layers 3"], [3, 2, 2, 2]),
        (["num_layers 9", "decoder_last_pipeline_num_layers 3"], [2, 2, 2, 3]),
        (
            [
                "num_layers 7",
                "decoder_first_pipeline_num_layers 2",
                "decoder_last_pipeline_num_layers 1",
            ],
            [2, 2, 2, 1],
        ),
        (["num_layers 11", "account_for_embedding_in_pipeline_split True"], [2, 3, 3, 3]),
        (
            [
                "num_layers 10",
                "account_for_embedding_in_pipeline_split True",
                "account_for_loss_in_pipeline_split True",
            ],
            [2, 3, 3, 2],
        ),
        (["pipeline_model_parallel_layout Et|(tt|)*2t*3L"], [1, 2, 2, 3]),
        (["num_layer_list 1,2,2,3"], [1, 2, 2, 3]),
        (["decoder_pipeline_manual_split_list [1, 2, 2, 3]"], [1, 2, 2, 3]),
    ],
)
def test_guesses_are_in_proportion_to_the_layers(
    path: Path, arguments: list[str], layers: list[int]
) -> None:
    measured = told(path, *arguments, ms=4500.0)
    forward_ms = measured.scenario.forward_ms[:, 0]
    assert forward_ms / forward_ms[0] == pytest.approx(np.array(layers) / layers[0], rel=1e-4)
    check = check_import(measured)
    assert check is not None
    assert check.simulated_ms == pytest.approx(4500, abs=0.05)
    assert check.guessed


@pytest.mark.parametrize(
    ("arguments", "chunks"),
    [
        (["num_layers 16", "num_layers_per_virtual_pipeline_stage 2"], 2),
        (["num_layers 16", "num_layers_per_virtual_pipeline_stage 1"], 4),
        (["virtual_pipeline_model_parallel_size 3"], 3),
        (["virtual_pipeline_model_parallel_size None"], 1),
        (["num_virtual_stages_per_pipeline_rank 2"], 2),
        (["pipeline_model_parallel_layout (t|)*7t"], 2),
        (["num_layer_list 2,2,2,2,2,2,2,2"], 2),
    ],
)
def test_chunks(path: Path, arguments: list[str], chunks: int) -> None:
    measured = told(path, *arguments)
    assert measured.scenario.stages == 4 * chunks
    check = check_import(measured)
    assert check is not None
    assert check.simulated_ms == pytest.approx(450, abs=0.01)
    if chunks > 1:
        assert f"{path}: {chunks} virtual stages on each of 4: interleaved 1F1B" in measured.notes


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["num_layers 15", "num_layers_per_virtual_pipeline_stage 2"],
            ":2: says that 15 layers are on 4 stages in chunks of 2, which cannot be",
        ),
        (
            ["num_layers 3", "decoder_first_pipeline_num_layers 4"],
            ":1: says that there are 3 layers, too few",
        ),
        (["pipeline_model_parallel_layout t|t|t"], ":1: has a layout, 't|t|t', that is none of 4"),
        (["pipeline_model_parallel_layout (((t)*999)*999)*999|t|t|t"], ":1: has a layout, '((("),
        (
            ["virtual_pipeline_model_parallel_size 2", "pipeline_model_parallel_layout t|t|t|t"],
            ":2: has a layout of 4 virtual stages, 1 on each of 4, but line 1 says 2",
        ),
        (["num_layer_list 3,4,x"], ":1: has a list of layers, '3,4,x', that is none of 4 stages"),
        (["num_layer_list 3,4,3"], ":1: has a list of layers, '3,4,3', that is none of 4 stages"),
    ],
)
def test_layers_that_cannot_be(path: Path, arguments: list[str], says: str) -> None:
    with pytest.raises(FormatError) as error:
        told(path, *arguments)
    assert str(error.value).startswith(f"{path}{says}")


def test_an_embedding_on_a_stage_of_its_own(path: Path) -> None:
    measured = told(path, "num_layers 12", "standalone_embedding_stage True")
    assert measured.scenario.forward_ms[:, 0] == pytest.approx([0, 10, 10, 10], rel=0.1)
    assert any(note.endswith("layers of each stage: 0, 4, 4, 4") for note in measured.notes)


def test_an_order_that_is_not_known_is_named(path: Path) -> None:
    v_shape = ("enable_zero_bubble True", "zero_bubble_v_schedule True", "enable_1f1b_v False")
    notes = told(path, *v_shape).notes
    says = "enable_zero_bubble is True, by line 1 and zero_bubble_v_schedule is True, by line 2"
    assert any(note.startswith(f"{path}: {says}: that order is not known") for note in notes)
    assert any("dualpipev, by" in n for n in told(path, "schedules_method dualpipev").notes)
    usual = told(path, "pp_algorithm 1f1b", "schedules_method None", "enable_zero_bubble False")
    assert not any("order" in note for note in usual.notes)


def test_layers_share_out_what_one_rank_measured(path: Path) -> None:
    arguments = ("  num_layers .......... 9\n  decoder_first_pipeline_num_layers .......... 3\n",)
    run = KnownRun((10.0,) * 4, (20.0,) * 4, 12, lines=arguments)
    content = text(of_v2, run).replace(
        "  num_layers ......................................", "  n "
    )
    path.write_text(content)
    measured = import_megatron([path])
    assert measured.scenario.forward_ms[:, 0] == pytest.approx([15, 10, 10, 10], abs=1e-3)


def test_sums_of_deepspeed_without_their_period(path: Path) -> None:
    run = KnownRun((10.0,) * 4, (20.0,) * 4, 12)
    path.write_text(text(of_megatron_deepspeed, run).replace("steps_per_print", "steps"))
    measured = import_megatron([path])
    assert measured.guessed
    assert any("DeepSpeed's timers are not used" in note for note in measured.notes)


def test_what_follows_the_pipeline_is_known_by_its_timers(path: Path) -> None:
    run = KnownRun((10.0,) * 4, (20.0,) * 4, 12, after_ms=200.0)
    reduced = "    all-grads-sync .................................: (55.00, 60.00)\n"
    path.write_text(text(of_pipeline, run).replace("    optimizer", f"{reduced}    optimizer"))
    measured = import_megatron([path])
    assert measured.after_ms == 200  # forward-backward holds the reduction of gradients
    path.write_text(text(of_extremes, run).replace("    optimizer", f"{reduced}    optimizer"))
    measured = import_megatron([path])
    assert measured.after_ms == 260
    assert measured.notes[-1] == (
        "of the iteration time, after the pipeline: all-grads-sync 60 ms (9 %), optimizer 200 ms "
        "(31 %)"
    )


@pytest.mark.parametrize("heavy", range(4))
def test_a_heavy_device_works_all_micro_batches_between_the_others(heavy: int) -> None:
    """With enough micro-batches the busiest device never waits but at both ends."""
    weights = np.ones((2, 4))
    weights[:, heavy] = 3
    pairs_ms = np.array(pair_ms(1000.0, 8, 4, weights.ravel().tolist()))
    busy_ms = 8 * pairs_ms.reshape(2, 4).sum(axis=0).max()
    assert 1000 - busy_ms == pytest.approx(3 * pairs_ms.min())
    scenario = Scenario(
        stages=8,
        microbatches=8,
        placement=Scenario.place("interleaved", 4, 2),
        forward_ms=pairs_ms / 3,
        fused_backward_ms=pairs_ms * 2 / 3,
    )
    order = plan(scenario, "interleaved-1f1b")
    assert simulate(scenario, order, "ideal").iteration_ms == pytest.approx(1000, rel=0.1)


@examples(1)
@given(
    pairs=st.lists(st.tuples(st.floats(0.1, 50), st.floats(0.1, 50)), min_size=1, max_size=6),
    microbatches=st.integers(1, 14),
)
def test_the_recurrence_is_what_the_engine_says(
    pairs: list[tuple[float, float]], microbatches: int
) -> None:
    forward, backward = zip(*pairs, strict=True)
    scenario = Scenario(
        stages=len(pairs),
        microbatches=microbatches,
        forward_ms=forward,
        fused_backward_ms=backward,
    )
    order = plan(scenario, "1f1b")
    for over in ("ideal", "exchange"):
        expected_ms = simulate(scenario, order, over).iteration_ms
        assert one_f_one_b_ms(forward, backward, microbatches) == pytest.approx(expected_ms)
