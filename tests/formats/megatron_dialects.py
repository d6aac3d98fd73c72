"""Logs of a known run, as Megatron-LM and each of its relatives would print them.

``python -m tests.formats.megatron_dialects`` writes those in ``tests/data/megatron`` again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from pipesim import Scenario, plan, simulate
from tests import ROOT

DATA = ROOT / "tests" / "data" / "megatron"


@dataclass(frozen=True)
class Run:
    """A training run: S stages of v chunks, times of a whole stage and one micro-batch."""

    forward_ms: tuple[float, ...]
    backward_ms: tuple[float, ...]
    microbatches: int
    chunks: int = 1
    copies: int = 1
    sharing: int = 1
    stage_first: bool = False
    iterations: int = 4
    period: int = 1  # steps between what DeepSpeed prints
    after_ms: float = 0.0
    start_up: float = 1.0  # the first iteration is so many times slower
    noise: float = 0.0
    slow_copy: float = 1.0  # the last copy of stage 0 is so many times slower
    lines: tuple[str, ...] = ()  # arguments besides the usual ones
    dressed: Callable[[str], str] = field(default=lambda line: line)

    @property
    def stages(self) -> int:
        return len(self.forward_ms)

    @property
    def ranks(self) -> int:
        return self.stages * self.copies * self.sharing

    @property
    def batch(self) -> int:
        return self.microbatches * self.copies * 2  # two samples a micro-batch

    def times_ms(self, rank: int) -> tuple[int, float, float]:
        """Stage, F and BW of a rank."""
        tensor, rest = rank % self.sharing, rank // self.sharing
        assert tensor < self.sharing
        if self.stage_first:
            copy, stage = divmod(rest, self.stages)
        else:
            stage, copy = divmod(rest, self.copies)
        slow = self.slow_copy if (stage, copy) == (0, self.copies - 1) else 1.0
        return stage, self.forward_ms[stage] * slow, self.backward_ms[stage] * slow

    @property
    def scenario(self) -> Scenario:
        """What there is to read, of the slowest copy."""
        slow = np.ones(self.stages)
        slow[0] = self.slow_copy
        plain = Scenario(
            stages=self.stages,
            microbatches=self.microbatches,
            forward_ms=np.array(self.forward_ms) * slow,
            backward_ms=np.array(self.backward_ms) * slow / 2,
            weight_ms=np.array(self.backward_ms) * slow / 2,
        )
        return plain if self.chunks == 1 else plain.interleaved(self.chunks)

    @property
    def pipeline_ms(self) -> float:
        scenario = self.scenario
        planner, over = ("1f1b", "exchange") if self.chunks == 1 else ("interleaved-1f1b", "ideal")
        return simulate(scenario, plan(scenario, planner), over).iteration_ms

    def elapsed_ms(self) -> Iterator[tuple[int, float]]:
        """Number and time of each iteration."""
        chance = np.random.default_rng(7)
        whole_ms = self.pipeline_ms + self.after_ms
        for number in range(1, self.iterations + 1):
            factor = 1 + self.noise * chance.uniform(-1, 1)
            yield number, whole_ms * factor * (self.start_up if number == 1 else 1)


# -- what precedes the iterations ------------------------------------------------------------


def head(run: Run, *, older: bool = False) -> Iterator[str]:
    """What Megatron-LM prints before it trains."""
    data = f"data-parallel{'-' if older else ' '}size: {run.copies}"
    yield (
        f"using world size: {run.ranks}, {data}, tensor-model-parallel size: {run.sharing}, "
        f"pipeline-model-parallel size: {run.stages} "
    )
    yield "using torch.bfloat16 for parameters ..."
    yield "------------------------ arguments ------------------------"
    arguments = {
        "data_parallel_size": run.copies,
        "encoder_num_layers": 8 * run.stages,
        "global_batch_size": run.batch,
        "lr": 0.00015,
        "micro_batch_size": 2,
        "num_layers": 8 * run.stages,
        "num_layers_per_virtual_pipeline_stage": 8 // run.chunks if run.chunks > 1 else None,
        "pipeline_model_parallel_size": run.stages,
        "rampup_batch_size": None,
        "tensor_model_parallel_size": run.sharing,
        **({} if older else {"use_tp_pp_dp_mapping": run.stage_first}),
        "virtual_pipeline_model_parallel_size": run.chunks if run.chunks > 1 else None,
        "world_size": run.ranks,
    }
    for name, value in arguments.items():
        yield f"  {name} {'.' * (48 - len(name))} {value}"
    yield from run.lines
    yield "-------------------- end of arguments ---------------------"
    between = "micro-batches" if older else "microbatches"
    yield f"setting number of {between} to constant {run.microbatches}"
    yield "> initializing torch distributed ..."
    yield "node0:4711:4711 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.7<0>"
    yield ""


def line(run: Run, number: int, time: str, stamp: str = "") -> str:
    """An iteration as Megatron-LM prints it."""
    return (
        f" {stamp}iteration {number:8d}/{run.iterations:8d} | consumed samples: "
        f"{number * run.batch:12d} | {time} | learning rate: 1.500E-04 | global batch size: "
        f"{run.batch:5d} | lm loss: 9.713021E+00 | loss scale: 1.0 | grad norm: 3.102 | number of "
        "skipped iterations:   0 | number of nan iterations:   0 |"
    )


def in_ms(elapsed_ms: float) -> str:
    return f"elapsed time per iteration (ms): {elapsed_ms:.1f}"


def stamp(number: int) -> str:
    return f"[2025-03-01 10:{number // 60:02d}:{number % 60:02d}] "


def sums_ms(run: Run) -> dict[str, list[float]]:
    """Timers of each rank."""
    times = [run.times_ms(rank) for rank in range(run.ranks)]
    return {
        "forward-backward": [run.pipeline_ms] * run.ranks,
        "forward-compute": [f * run.microbatches for _, f, _ in times],
        "backward-compute": [b * run.microbatches for _, _, b in times],
        "forward-recv": [3.07] * run.ranks,
        "optimizer": [run.after_ms] * run.ranks,
    }


# -- the dialects ----------------------------------------------------------------------------


def of_all_ranks(run: Run) -> Iterator[str]:
    yield from head(run)
    yield "times across ranks (ms):"
    yield "  model-and-optimizer-setup:"
    yield from (f"     rank {rank:2d}: 1020.90" for rank in range(run.ranks))
    for number, ms in run.elapsed_ms():
        yield line(run, number, in_ms(ms), stamp(number))
        yield "times across ranks (ms):"
        for name, values in sums_ms(run).items():
            yield f"  {name}:"
            yield from (f"     rank {rank:2d}: {value:.2f}" for rank, value in enumerate(values))


def _extremes(run: Run, title: str, shown: Callable[[list[float]], str]) -> Iterator[str]:
    yield from head(run)
    for number, ms in run.elapsed_ms():
        yield line(run, number, in_ms(ms), stamp(number))
        yield title
        for name, values in sums_ms(run).items():
            yield f"    {(name + ' ').ljust(48, '.')}: {shown(values)}"


def of_extremes(run: Run) -> Iterator[str]:
    title = "(min, max) time across ranks (ms):"
    return _extremes(run, title, lambda ms: f"({min(ms):.2f}, {max(ms):.2f})")


def of_longest(run: Run) -> Iterator[str]:
    return _extremes(run, "max time across ranks (ms):", lambda ms: f"{max(ms):.2f}")


def of_pipeline(run: Run) -> Iterator[str]:
    """Timers of level 1: no operators."""
    for text in of_extremes(run):
        if "-compute" not in text and "-recv" not in text:
            yield text


def without_timers(run: Run) -> Iterator[str]:
    yield from head(run)
    for number, ms in run.elapsed_ms():
        yield line(run, number, in_ms(ms), stamp(number))


def of_v2(run: Run) -> Iterator[str]:
    yield from head(run, older=True)
    yield "time (ms) | model-and-optimizer-setup: 971.92 | train/valid/test-data-iterators: 361.10"
    _, f, b = run.times_ms(run.ranks - 1)
    n = run.microbatches
    for number, ms in run.elapsed_ms():
        yield line(run, number, in_ms(ms))
        yield (
            f"time (ms) | forward-compute: {f * n:.2f} | forward-recv: 83.11 | backward-compute: "
            f"{b * n:.2f} | backward-send: 0.71 | backward-send-forward-recv: 4.41 | optimizer: "
            f"{run.after_ms:.2f} | batch-generator: 2.75"
        )


def of_v1(run: Run) -> Iterator[str]:
    yield from head(run, older=True)
    _, f, b = run.times_ms(run.ranks - 1)
    n = run.microbatches
    for number, ms in run.elapsed_ms():
        yield (
            f" iteration {number:8d}/{run.iterations:8d} | {in_ms(ms)} | learning rate 8.625E-06 | "
            "lm loss 3.041360E+00 | loss scale 131072.0 |"
        )
        yield f"time (ms) | forward: {f * n:.2f} | backward: {b * n:.2f} | allreduce: 0.00"


def of_amd(run: Run) -> Iterator[str]:
    yield from head(run)
    seen = []
    for number, ms in run.elapsed_ms():
        seen.append(ms)
        yield line(run, number, f"{in_ms(ms)}/{sum(seen) / len(seen):.1f}")


def of_bigscience(run: Run) -> Iterator[str]:
    yield from head(run, older=True)
    for number, ms in run.elapsed_ms():
        text = line(run, number, f"elapsed time per iteration (s): {ms / 1000:.2f}")
        yield f"[default3]:{text} samples per second: 13.061 | TFLOPs: 101.20 |"
        yield "[default3]:time (ms)"


def _deepspeed(text: str, where: str = "logging.py:96:log_dist", rank: str = "[Rank 0] ") -> str:
    return f"[2025-03-01 10:00:00,123] [INFO] [{where}] {rank}{text}"


def of_megatron_deepspeed(run: Run) -> Iterator[str]:
    yield from head(run, older=True)
    dump = {"steps_per_print": run.period, "train_batch_size": run.batch, "world_size": run.copies}
    for name, value in dump.items():
        text = f"  {name} {'.' * (29 - len(name))} {value}"
        yield _deepspeed(text, "config.py:960:print", "")
    _, f, b = run.times_ms(0)
    n = run.microbatches * run.period
    for number, ms in run.elapsed_ms():
        yield _deepspeed(f"step={number}, skipped=0, lr=[0.00015], mom=[(0.9, 0.95)]")
        micro = f"fwd_microstep: {f * n:.2f} | bwd_microstep: {b * n:.2f} | step_microstep: 9.10"
        yield _deepspeed(f"time (ms) | {micro}")
        yield _deepspeed(f"rank=0 time (ms) | fwd: {f * n:.2f} | bwd: {b * n:.2f} | step: 9.10")
        yield f"steps: {number} loss: 9.7130 iter time (s): {ms / 1000:.3f} samples/sec: 13.061"
        yield line(run, number, in_ms(ms))


def of_deepspeed(run: Run) -> Iterator[str]:
    """DeepSpeed's own pipeline engine: no arguments of Megatron-LM's."""
    yield _deepspeed("  world_size ................... 1", "config.py:960:print", "")
    for number, ms in run.elapsed_ms():
        yield f"steps: {number} loss: 9.7130 iter time (s): {ms / 1000:.3f} samples/sec: 13.061"


def of_neox(run: Run) -> Iterator[str]:
    yield "-------------------- arguments --------------------"
    arguments = {
        "gradient_accumulation_steps": run.microbatches,
        "model_parallel_size": run.sharing,
        "num_layers": 8 * run.stages,
        "pipe_parallel_size": run.stages,
        "train_batch_size": run.batch,
        "train_micro_batch_size_per_gpu": 2,
    }
    for name, value in arguments.items():
        yield f"  {name} {'.' * (32 - len(name))} {value}".ljust(64, ".") + "updated"
    yield "---------------- end of arguments ----------------"
    for number, ms in run.elapsed_ms():
        yield f"steps: {number} loss: 9.7130 iter time (s): {ms / 1000:.3f} samples/sec: 13.061"
        yield (
            f" samples/sec: 13.061 | iteration {number:8d}/{run.iterations:8d} | {in_ms(ms)} | "
            "learning rate: 1.500E-04 | approx flops per GPU: 40.2TFLOPS | lm_loss: 9.713021E+00 |"
        )
        yield "time (ms)"


def of_key_values(run: Run) -> Iterator[str]:
    prefix = "[2025-03-01 10:00:00][I][training.py:88] "
    for text in head(run):
        yield prefix + text
    for number, ms in run.elapsed_ms():
        yield (
            f"{prefix}iteration={number:8d}/{run.iterations:8d} | consumed_samples= 128 | "
            f"elapsed_time_per_iteration_ms={ms:.1f} | learning_rate=1.5e-05 | "
            f"global_batch_size={run.batch:5d} | lm loss=9.713021 | samples_per_second=13.061 |"
        )


def of_nanotron(run: Run) -> Iterator[str]:
    for number, ms in run.elapsed_ms():
        short = f"{ms:.3g}" if ms < 999.5 else f"{float(f'{ms:.3g}') / 1000:g}K"
        yield (
            f"03/01/2025 10:00:00 [INFO|DP=0|PP={run.stages - 1}|TP=0|n0]: iteration: {number} / "
            f"{run.iterations} | consumed_tokens: 262K | elapsed_time_per_iteration_ms: {short} | "
            f"tokens_per_sec: 26.7K | global_batch_size: {run.batch} | lm_loss: 9.71"
        )


def _settings(run: Run) -> Iterator[str]:
    yield "[NeMo I 2025-03-01 10:00:00 megatron_gpt_pretraining:31] ************** Experiment ****"
    yield "model:"
    yield "  micro_batch_size: 2"
    yield f"  global_batch_size: {run.batch}"
    yield f"  tensor_model_parallel_size: {run.sharing}"
    yield f"  pipeline_model_parallel_size: {run.stages}"
    virtual = run.chunks if run.chunks > 1 else "null"
    yield f"  virtual_pipeline_model_parallel_size: {virtual}"
    yield f"  num_layers: {8 * run.stages}"
    yield f"All distributed processes registered. Starting with {run.ranks} processes"
    yield "LOCAL_RANK: 0 - CUDA_VISIBLE_DEVICES: [0,1,2,3,4,5,6,7]"


def of_nemo_1(run: Run) -> Iterator[str]:
    yield from _settings(run)
    bars = ["Epoch 0: :   0%|          | 0/4 [00:00<?, ?it/s]"]
    before = ""
    for number, ms in run.elapsed_ms():
        new = (
            f", v_num=0, reduced_train_loss=9.710, global_step={number - 1:.3f}, "
            f"consumed_samples={number * run.batch:.1f}, train_step_timing in s={ms / 1000:.4g}]"
        )
        bar = f"Epoch 0: :  {25 * number}%|██▌       | {number}/{run.iterations} [00:10<00:30"
        bars += [bar + (before or "]"), bar + new]
        before = new
    yield "\r".join(bars)


def of_nemo_2(run: Run) -> Iterator[str]:
    yield from _settings(run)
    for number, ms in run.elapsed_ms():
        yield (
            f"Training epoch 0, iteration {number - 1}/{run.iterations - 1} | lr: 1.5e-05 | "
            f"global_batch_size: {run.batch} | global_step: {number - 1} | reduced_train_loss: 9.7 "
            f"| train_step_timing in s: {ms / 1000:.4g}"
            + (f" | consumed_samples: {number * run.batch}" if number > 1 else "")
        )


def text(writer: Callable[[Run], Iterator[str]], run: Run) -> str:
    return "".join(run.dressed(one) + "\n" for one in writer(run))


EXACT = {
    "all_ranks": of_all_ranks,
    "minmax": of_extremes,
    "max": of_longest,
    "v2": of_v2,
    "v1": of_v1,
    "megatron_deepspeed": of_megatron_deepspeed,
}
"""They tell operator times."""

WHOLE = {
    "level_1": of_pipeline,
    "level_0": without_timers,
    "amd": of_amd,
    "bigscience": of_bigscience,
    "deepspeed": of_deepspeed,
    "key_value": of_key_values,
    "gpt_neox": of_neox,
    "nanotron": of_nanotron,
    "nemo_1": of_nemo_1,
    "nemo_2": of_nemo_2,
}
"""They tell how long an iteration, or the pipeline, takes."""

SILENT = {"deepspeed", "nanotron"}
"""They do not tell the shape."""
PLAIN = {*SILENT, "gpt_neox"}
"""They have no virtual stages."""

ALIKE = Run((41.3,) * 4, (82.6,) * 4, 16, iterations=6, after_ms=14.0, start_up=3.0, noise=0.002)
UNLIKE = Run(
    (40.1, 43.7, 43.2, 52.8),
    (83.0, 85.9, 86.3, 99.4),
    16,
    copies=2,
    iterations=6,
    after_ms=21.5,
    start_up=3.0,
    noise=0.002,
)
CHUNKED = Run((41.3,) * 4, (82.6,) * 4, 16, chunks=2, iterations=6, after_ms=14.0, start_up=3.0)
FILES: dict[str, tuple[Callable[[Run], Iterator[str]], Run]] = {
    **{name: (writer, ALIKE) for name, writer in {**EXACT, **WHOLE}.items()},
    "all_ranks": (of_all_ranks, UNLIKE),
    "virtual_stages": (without_timers, CHUNKED),
}


if __name__ == "__main__":
    DATA.mkdir(exist_ok=True)
    for name, (writer, run) in FILES.items():
        (DATA / f"{name}.log").write_text(text(writer, run))
