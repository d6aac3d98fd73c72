"""The published what-if, operation by operation: an oracle for :mod:`pipesim.fidelity.jobs.whatif`.

A second way to the same figures, with nothing of the engine in it: a graph of all operations of a
step, ends of messages included, of which each is an array over steps and workers. Sends and
receives of a kind follow each other on a stream of their own, and a receive is posted when the
operator of its kind before it has ended.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd

ALONE = {"gc", "layernorm-grads-all-reduce", "optimizer"}
MEANS = {"forward-compute", "backward-compute", "gc", "optimizer"}
WORKERS_MEET = {"params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce"}


class Graph:
    """Operations by (optype, device, number), and what each waits for."""

    def __init__(self, path: Path) -> None:
        rows = pd.read_parquet(path)
        rows = rows.assign(optype=rows["optype"].astype(str))
        self.steps, self.workers = sorted(rows.step.unique()), sorted(rows.dp_rank.unique())
        shape = len(self.steps), len(self.workers)
        self.start, self.end = {}, {}
        for key, own in rows.groupby(["optype", "stage", "seq_id"]):
            own = own.sort_values(["step", "dp_rank"])
            assert len(own) == np.prod(shape), f"{key} is not in every step of every worker"
            start = own.start_ts.to_numpy(float).reshape(shape)
            self.start[key] = start
            self.end[key] = start + own.duration.to_numpy(float).reshape(shape)
        first = rows[(rows.step == self.steps[0]) & (rows.dp_rank == self.workers[0])]
        self.needs = {key: [] for key in self.start}
        self.group, self.meets = {}, set()
        self.ops = {}
        for device, own in first.groupby("stage"):
            self._device(device, own.sort_values("start_ts", kind="stable"))
        self._join()
        self.durations = {key: self._own_time(key) for key in self.start}

    def _device(self, device: int, rows: pd.DataFrame) -> None:
        keys = [(row.optype, device, row.seq_id) for row in rows.itertuples()]
        compute = rows[rows.optype.isin(["forward-compute", "backward-compute"])]
        order = [(row.optype, device, row.seq_id) for row in compute.itertuples()]
        self.ops[device] = dict(
            zip(order, zip(compute.gmc, compute.mb_id, strict=True), strict=True)
        )
        self._chain(order)
        for kind in ("forward", "backward"):
            for end in ("send", "recv"):
                self._chain([key for key in keys if key[0] == f"{kind}-{end}"])
        gather = [key for key in keys if key[0] == "params-all-gather"]
        reduce = [key for key in keys if key[0] == "grads-reduce-scatter"]
        self._chain(gather + reduce)
        chunks = sorted({gmc for gmc, _ in self.ops[device].values()})
        for number, key in enumerate(gather):  # as many as chunks, or one
            if len(gather) == len(chunks):
                self._wait(self._extreme(device, "forward", chunks[number], 0), key)
            else:
                self._wait(order[0], key)
        rest = ["layernorm-grads-all-reduce", "embedding-grads-all-reduce"]
        overlaps = any(key[0] == "separate-grads-all-reduce" for key in keys)
        rest += ["separate-grads-all-reduce"] if overlaps else []
        after = [("gc", device, 0)] if ("gc", device, 0) in self.start else []
        self._chain([order[-1], *after])
        last = after or [order[-1]]
        chain = [(name, device, 0) for name in rest if (name, device, 0) in self.start]
        if not overlaps:
            chain += reduce
        chain += [(name, device, 0) for name in ("optimizer-clip-main-grad", "optimizer")]
        chain = [key for key in chain if key in self.start]
        if overlaps:
            for key, chunk in zip(reduce, reversed(chunks), strict=True):
                self._wait(key, self._extreme(device, "backward", chunk, -1))
            last += reduce[-1:]
        for key in last:
            self._chain([key, *chain[:1]])
        self._chain(chain)

    def _extreme(self, device: int, kind: str, chunk: int, which: int) -> tuple[str, int, int]:
        own = [k for k, (gmc, _) in self.ops[device].items() if gmc == chunk and kind in k[0]]
        return own[which]

    def _wait(self, key: tuple[str, int, int], other: tuple[str, int, int]) -> None:
        self.needs[key].append(other)

    def _chain(self, keys: list[tuple[str, int, int]]) -> None:
        for before, key in pairwise(keys):
            self._wait(key, before)

    def _join(self) -> None:
        """Pair the ends of messages, and let others meet."""
        where = {(k[0], *of): k for own in self.ops.values() for k, of in own.items()}
        device_of = {gmc: k[1] for (_, gmc, _), k in where.items()}
        numbers: defaultdict[tuple[str, int], int] = defaultdict(int)
        senders = {}
        for kind, way in (("forward", 1), ("backward", -1)):
            for device, own in self.ops.items():
                mine = [k for k in own if k[0].startswith(kind)]
                for before, key in zip([None, *mine], mine, strict=False):
                    gmc, m = own[key]
                    if device_of.get(gmc + way, device) != device:
                        end = f"{kind}-send", device, numbers[f"{kind}-send", device]
                        numbers[end[:2]] += 1
                        if end in self.start:
                            self._wait(end, key)
                            senders[kind, gmc + way, m] = end
                    if device_of.get(gmc - way, device) != device:
                        end = f"{kind}-recv", device, numbers[f"{kind}-recv", device]
                        numbers[end[:2]] += 1
                        if end in self.start:
                            self._wait(key, end)
                            if before:
                                self._wait(end, before)
                            self.group.setdefault((kind, gmc, m), []).append(end)
        for of, end in senders.items():
            self.group[of].append(end)
        meeting = defaultdict(list)
        for key in self.start:
            if key[0] in WORKERS_MEET:
                self.group[key] = [key]
                self.meets.add(key)
            elif key[0] in ("embedding-grads-all-reduce", "optimizer-clip-main-grad"):
                meeting[key[0]].append(key)
                if key[0] == "optimizer-clip-main-grad":
                    self.meets.add(key)
        self.group |= meeting
        self.members = {key: keys for keys in self.group.values() for key in keys}

    def _met(self, key: tuple[str, int, int], start: dict) -> np.ndarray:
        last = np.maximum.reduce([start[one] for one in self.members[key]])
        return last.max(axis=1, keepdims=True) if key in self.meets else last

    def _own_time(self, key: tuple[str, int, int]) -> np.ndarray:
        if key not in self.members:
            return self.end[key] - self.start[key]
        own = self.end[key] - self._met(key, self.start)
        return np.where(own <= -0.01, 0.0, own)

    def ideal(self) -> dict:
        kinds = defaultdict(list)
        for key, own in self.durations.items():
            kinds[key[0]].append(own)
        typical = {
            kind: (np.mean if kind in MEANS else np.median)(np.stack(all_of_it))
            for kind, all_of_it in kinds.items()
        }
        return {key: np.full_like(own, typical[key[0]]) for key, own in self.durations.items()}

    def step_ms(self, durations: dict) -> np.ndarray:
        """How long each step takes, shape [steps]."""
        start, end = {}, {}
        waiting = list(self.needs)
        while waiting:
            left = []
            for key in waiting:
                if all(other in end for other in self.needs[key]):
                    start.setdefault(
                        key,
                        np.maximum.reduce(
                            [*(end[other] for other in self.needs[key]), 0 * durations[key]]
                        ),
                    )
                    together = self.members.get(key, [key])
                    if all(one in start for one in together):
                        at = self._met(key, start) if key in self.members else start[key]
                        for one in together:
                            end[one] = at + durations[one]
                if key not in end:
                    left.append(key)
            assert len(left) < len(waiting) or len(start) > 0, "nothing can begin"
            waiting = left
        return 1e3 * np.maximum.reduce(list(end.values())).max(axis=1)

    def slowdown(self) -> float:
        return float(self.step_ms(self.durations).mean() / self.step_ms(self.ideal()).mean())
