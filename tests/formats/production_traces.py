"""Production traces: a published one, one made by hand, and the jobs that the engine runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pandas as pd

from pipesim.engine import Runs
from pipesim.scenario import Scenario
from pipesim.timeline import Timeline
from pipesim.transport import Transport
from planners import plan
from tests import ROOT

SAMPLE = ROOT / "tests" / "data" / "production" / "three-steps.parquet"
JOB = ROOT / "tests" / "data" / "production" / "slow-worker.parquet"
SHIPPED = ROOT / "traces" / "production" / "trace-ST.parquet"

OPTYPES = {"F": ("forward-compute", "forward"), "BW": ("backward-compute", "backward")}


def small(steps: int = 2, dp_ranks: int = 1) -> pd.DataFrame:
    """Two stages, one micro-batch: F 10 and 20 ms, BW 30 and 40 ms, messages 1 ms."""
    operations = [
        (0, "params-all-gather", -5, 5, -1),
        (0, "forward-compute", 0, 10, 0),
        (0, "forward-send", 10, 11, -1),
        (1, "forward-recv", -2, 11, -1),
        (1, "forward-compute", 11, 31, 0),
        (1, "backward-compute", 31, 71, 0),
        (1, "backward-send", 71, 72, -1),
        (0, "backward-recv", 11, 72, -1),
        (0, "backward-compute", 72, 102, 0),
    ]
    return pd.DataFrame(
        {
            "dp_rank": np.int8(dp),
            "stage": np.int8(stage),
            "rank": np.int16(2 * stage + dp),
            "step": 7 + step,
            "optype": optype,
            "start_ts": np.float32(1 + start / 1e3),
            "duration": np.float32((end - start) / 1e3),
            "seq_id": np.int32(0),
            "mc": np.int8(0),
            "mb_id": np.int8(m),
            "gmc": np.int16(stage),
        }
        for step in range(steps)
        for dp in range(dp_ranks)
        for stage, optype, start, end, m in operations
    )


def job(
    scenario_of: Callable[[int, int], Scenario],
    *,
    steps: Sequence[int] = range(4),
    dp_ranks: int = 2,
    planner: str = "1f1b",
    over: str | Transport = "ideal",
    sends: bool = True,
    peers: int = 1,
) -> pd.DataFrame:
    """Run a job, and log it as a production trace.

    Parameters
    ----------
    scenario_of : callable
        The scenario of a step and a data-parallel rank; its delays are what messages take.
    steps, dp_ranks
        Which there are.
    planner : str
        Whose order the operators run in.
    over : str or Transport
        How messages travel: ``ideal``, or a transport whose kernels both ends log.
    sends : bool
        Whether messages are logged too.
    peers : int
        How many ranks share each stage and do the same.
    """
    runs: dict[object, Runs] = {}
    parts = []
    for step in steps:
        for dp_rank in range(dp_ranks):
            scenario = scenario_of(step, dp_rank)
            shape = scenario.stages, scenario.microbatches, scenario.placement
            if shape not in runs:
                runs[shape] = Runs(
                    plan(scenario, planner), over, engine=None if over == "ideal" else "simpy"
                )
            timeline = runs[shape].timeline(scenario)
            parts.append(logged(timeline, sends=sends).assign(step=step, dp_rank=dp_rank))
    frame = pd.concat(parts, ignore_index=True)
    ranks = frame["dp_rank"] * (frame["stage"].max() + 1) + frame["stage"]
    frame = pd.concat([frame.assign(rank=ranks * peers + peer) for peer in range(peers)])
    small_types = {"dp_rank": "int16", "stage": "int16", "rank": "int32", "mc": "int8"}
    return frame.reset_index(drop=True).astype(
        small_types | {"mb_id": "int16", "gmc": "int16", "seq_id": "int32", "optype": "category"}
    )


def logged(timeline: Timeline, *, sends: bool = True) -> pd.DataFrame:
    """Return the rows of one step of one worker."""
    rows: list[tuple[int, str, float, float, int, int]] = []
    for device, spans in enumerate(timeline.compute):
        for (kind, stage, m), start, end in spans:
            rows.append((device, OPTYPES[kind][0], start, end, m, stage))
    if sends:
        rows += [(*end, -1, -1) for end in ends(timeline)]
    frame = pd.DataFrame(rows, columns=["stage", "optype", "start", "end", "mb_id", "gmc"])
    frame = frame.sort_values("start", kind="stable")
    return frame.assign(
        start_ts=1 + frame["start"] / 1e3,
        duration=(frame["end"] - frame["start"]) / 1e3,
        seq_id=frame.groupby(["stage", "optype"]).cumcount(),
        mc=np.where(frame["gmc"] >= 0, frame["gmc"] // (frame["stage"].max() + 1), -1),
    ).drop(columns=["start", "end"])


def ends(timeline: Timeline) -> Iterator[tuple[int, str, float, float]]:
    """Both ends of each message: device, name, start and end.

    Where messages hold no stream, receives are posted when their send begins.
    """
    scenario = timeline.scenario
    kernels = [span for span in timeline.comm if span.path == "kernel"]
    for message, _, device, start, end in kernels:
        sender = scenario.placement[message.producer.stage]
        what = "send" if device == sender else "recv"
        yield device, f"{OPTYPES[message.producer.kind][1]}-{what}", start, end
    for device, spans in enumerate(() if kernels else timeline.compute):
        for (kind, stage, _), _, end in spans:
            peer = stage + 1 if kind == "F" else stage - 1
            if 0 <= peer < scenario.stages and scenario.placement[peer] != device:
                took = float(scenario.delay_ms[min(stage, peer), 0 if kind == "F" else 1])
                way = OPTYPES[kind][1]
                yield device, f"{way}-send", end, end + took
                yield scenario.placement[peer], f"{way}-recv", end, end + took


AROUND_MS = {
    "params-all-gather": 4.0,
    "gc": 1.0,
    "layernorm-grads-all-reduce": 0.5,
    "embedding-grads-all-reduce": 9.0,
    "grads-reduce-scatter": 12.0,
    "optimizer-clip-main-grad": 3.0,
    "optimizer": 7.0,
}
"""Operations outside the pipeline in their order, and what they take."""


def surrounded(
    frame: pd.DataFrame,
    took_ms: Callable[[str, int, int], float] = lambda name, *_: AROUND_MS[name],
) -> pd.DataFrame:
    """Add what ranks do before and after the pipelines of a job, with the times that they wait.

    Parameters
    ----------
    frame : DataFrame
        As :func:`job` makes it, one rank for each device of a worker.
    took_ms : callable
        How long an operation takes on a data-parallel rank and a device, once all are there.
    """
    parts = [frame]
    ranks = frame.groupby(["step", "dp_rank", "stage"])
    free = ranks.agg(rank=("rank", "first"), at=("start_ts", "min")).reset_index()
    ends = frame.assign(end=frame["start_ts"] + frame["duration"])
    computes = ends["optype"].astype(str).str.endswith("compute")
    last = ends[computes].groupby(["step", "dp_rank", "stage"])["end"].max().to_numpy()
    ends_of_line = {0, int(frame["stage"].max())}
    for name in AROUND_MS:
        own = free.copy()
        if name.startswith("embedding"):
            own = own[own["stage"].isin(ends_of_line)]
        took = np.array(
            [took_ms(name, *place) for place in own[["dp_rank", "stage"]].to_numpy().tolist()]
        )
        if name == "params-all-gather":
            start = 1 - took / 1e3
            end = start + took / 1e3
        else:
            start = (own["at"] if name != "gc" else pd.Series(last, own.index)).to_numpy()
            meets = {
                "embedding-grads-all-reduce": ["step", "dp_rank"],
                "grads-reduce-scatter": ["step", "stage"],
                "optimizer-clip-main-grad": ["step"],
            }.get(name, ["step", "dp_rank", "stage"])
            begun = own.assign(start=start).groupby(meets)["start"].transform("max").to_numpy()
            end = begun + took / 1e3
            free.loc[own.index, "at"] = end
        parts.append(
            own[["step", "dp_rank", "stage", "rank"]].assign(
                optype=name, start_ts=start, duration=end - start, seq_id=0, mc=-1, mb_id=-1, gmc=-1
            )
        )
    whole = pd.concat([one.assign(optype=one["optype"].astype(str)) for one in parts])
    return whole.reset_index(drop=True)


def made_job() -> pd.DataFrame:
    """Four stages, eight micro-batches, four workers, three steps; dp rank 1 is slow on stage 2.

    The last stage has a fifth more to do than the others. Times stray by half a percent.
    """
    chance = np.random.default_rng(11)
    forward, backward = np.array([[30.0, 30, 30, 36], [62, 62, 62, 74]])[:, :, None]

    def scenario(step: int, dp_rank: int) -> Scenario:
        factor = np.where((np.arange(4) == 2) & (dp_rank == 1), 2.0, 1.0)[:, None]
        return Scenario(
            stages=4,
            microbatches=8,
            forward_ms=forward * factor * chance.normal(1, 0.005, (4, 8)),
            fused_backward_ms=backward * factor * chance.normal(1, 0.005, (4, 8)),
            latency_ms=0.4,
        )

    return job(scenario, steps=[100, 101, 102], dp_ranks=4)
