"""Which iterations of a log count: those of one batch size, past start-up, of one level of times.

A median over all would be the time of none of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipesim.errors import FormatError
from pipesim.formats.chosen import chosen
from pipesim.formats.megatron.record import LoggedIteration, MegatronLog
from pipesim.formats.regimes import levels, ranges
from pipesim.formats.tally import Dropped, Tally
from pipesim.text import counted, listed, milliseconds, plain

__all__ = ["Selection", "microbatches_of"]

_START_UP = 1.5
"""The first iteration of a job, over this many times the median of the others, is start-up."""


@dataclass
class Selection:
    """The iterations of some logs, fewer with each reason to leave some out.

    Parameters
    ----------
    kept : list of (MegatronLog, LoggedIteration)
        Those that are left.
    dropped : dict of str to list of str
        By reason, the others.
    notes : list of str
        For people.
    """

    kept: list[tuple[MegatronLog, LoggedIteration]]
    dropped: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, logs: Sequence[MegatronLog]) -> Selection:
        """Take all iterations of some logs."""
        selection = cls([(log, one) for log in logs for one in log.iterations])
        for log in logs:
            for skipped in log.skipped:
                if skipped.what.startswith("iteration"):
                    place = f"{log.file}, line {skipped.line}: {skipped.what}{skipped.why}"
                    selection.dropped.setdefault("without a usable time", []).append(place)
            if log.skipped:
                more = f", and {len(log.skipped) - 1} more" if len(log.skipped) > 1 else ""
                selection.notes.append(f"{log.file}: skipped {log.skipped[0]}{more}")
        return selection

    def named(self, labels: Collection[int | str]) -> None:
        """Keep the iterations with these numbers.

        Raises
        ------
        FormatError
            There is no such iteration.
        """
        wanted, absent = chosen(labels, [one.number for _, one in self.kept])
        for label in absent:
            raise FormatError(f"there is no iteration {label}", file=self.kept[0][0].file)
        self._keep([str(one.number) in wanted for _, one in self.kept], "not among the chosen")

    def of_batch(self, batch: int) -> None:
        """Keep the iterations whose lines tell this batch size, or none."""
        self._keep(
            [one.batch in (None, batch) for _, one in self.kept],
            f"of another global batch size than {batch}",
        )

    def without_start_up(self) -> None:
        """Leave out the first iteration of each job if it is much slower than the others."""
        others = [one.elapsed_ms for _, one in self.kept if not one.starts]
        if not others:
            return
        usual_ms = float(np.median(others))
        slow = [one.starts and one.elapsed_ms > _START_UP * usual_ms for _, one in self.kept]
        for (log, one), out in zip(self.kept, slow, strict=True):
            if out:
                self.notes.append(
                    f"{log.file}: left out iteration {one.number} ({plain(one.elapsed_ms)} ms): "
                    "start-up"
                )
        self._keep([not out for out in slow], "start-up")

    def fastest_level(self, *, keep: bool = False) -> None:
        """Keep the iterations of the fastest level of times; or only tell of the levels."""
        times_ms = np.array([one.elapsed_ms for _, one in self.kept])
        level = levels(times_ms)
        if level.max(initial=0) == 0:
            return
        parts = [
            f"{_numbers(one for (_, one), own in zip(self.kept, level, strict=True) if own == n)}: "
            f"{milliseconds(float(np.median(times_ms[level == n])))}"
            for n in range(int(level.max()) + 1)
        ]
        taken = (
            "all count, as they were chosen; their median is the time of none of them"
            if keep
            else "the fastest are taken, --iterations chooses others"
        )
        self.notes.append(
            f"iterations take {len(parts)} levels of time ({'; '.join(parts)}): {taken}"
        )
        if not keep:
            slow_ms = float(np.median(times_ms[level > 0]))
            self._keep((level == 0).tolist(), f"slower, {milliseconds(slow_ms)}")

    def tally(self) -> Tally:
        """Return how many there were, and what became of them."""
        parts = [Dropped(why, places) for why, places in self.dropped.items()]
        return Tally("iteration", len(self.kept), parts)

    def _keep(self, keep: Sequence[bool], why: str) -> None:
        out = [one for one, stays in zip(self.kept, keep, strict=True) if not stays]
        self.kept = [one for one, stays in zip(self.kept, keep, strict=True) if stays]
        if out:
            places = self.dropped.setdefault(why, [])
            places.extend(
                f"{log.file}, line {one.line}: iteration {one.number}" for log, one in out
            )


def _numbers(iterations: Iterable[LoggedIteration]) -> str:
    numbers = [one.number for one in iterations]
    text = ranges(numbers)
    if len(text) > 60:
        text = f"{counted(len(numbers), 'iteration')} from {min(numbers)} to {max(numbers)}"
    return text


def microbatches_of(
    selection: Selection,
    given: int | None,
    group: int | None,
    copies: int | None,
    usual: int | None,
) -> tuple[int, str]:
    """Return the number of micro-batches, and keep the iterations that have as many.

    An iteration of G samples has G / (samples of a micro-batch · data-parallel copies) of them.
    Where a log does not tell the samples of a micro-batch, they are taken to be one if some
    iterations then have the given number, and otherwise as many as the largest batch allows.

    Parameters
    ----------
    selection : Selection
        Of all iterations; loses those of other batch sizes.
    given : int, optional
        The number, if it is known.
    group : int, optional
        Samples of one micro-batch on all copies.
    copies : int, optional
        Data-parallel copies; ``group`` is a multiple of them.
    usual : int, optional
        Samples of a batch where no line of an iteration tells them.

    Returns
    -------
    number : int
    why : str
        Where it comes from, if not given.

    Raises
    ------
    FormatError
        It is not known, or no iteration has as many.
    """
    file = selection.kept[0][0].file
    batches = [one.batch for _, one in selection.kept if one.batch is not None]
    sizes = sorted(set(batches))
    told = listed(sizes[:8]) + (", …" if len(sizes) > 8 else "")
    if given is not None:
        if group and sizes:
            right = [size for size in sizes if size == given * group]
        elif len(sizes) > 1:
            least = given * (copies or 1)  # one sample in a micro-batch
            right = [size for size in sizes if size % least == 0]
            right = [least] if least in right else right[-1:]
        else:
            return given, ""
        if not right:
            by = f", at {counted(group, 'sample')} for each" if group else ""
            raise FormatError(
                f"has no iteration of {counted(given, 'micro-batch')}{by}: the global batch size "
                f"is {told}",
                file=file,
            )
        if len(sizes) > 1:
            each = counted(right[0] / given / (copies or 1), "sample")
            assumed = "" if group else f", taken to be of {each} each"
            _told_of_batches(
                selection, right[0], sizes, f"{counted(given, 'micro-batch')}{assumed}"
            )
            if not group:
                _told_of_others(selection, right[0], sizes, given * (copies or 1))
            selection.of_batch(right[0])
        return given, ""
    batch = batches[-1] if batches else usual
    if group and batch and batch % group == 0:
        if len(sizes) > 1:
            _told_of_batches(selection, batch, sizes, counted(batch // group, "micro-batch"))
            selection.of_batch(batch)
        return batch // group, (
            f"{batch // group}: {counted(batch, 'sample')} of a batch in micro-batches of "
            f"{group} on all data-parallel ranks"
        )
    hint = ""
    if len(sizes) > 1:
        hint = f" (its global batch sizes are {told}; only iterations of one of them count)"
    elif group and batch:
        hint = f" ({counted(batch, 'sample')} of a batch are no multiple of {group})"
    raise FormatError(
        f"does not say the number of micro-batches: give --microbatches{hint}", file=file
    )


def _told_of_others(
    selection: Selection, taken: int, sizes: Sequence[int], microbatches: int
) -> None:
    """Say which other batch sizes may be meant by a number of micro-batches of all copies."""
    others = []
    for size in sizes:
        each, rest = divmod(size, microbatches)
        if size != taken and not rest and not any(one % each for one in sizes):
            others.append(f"of {each} each, those of {size} would count")
    if others:
        selection.notes.append(
            f"the samples of a micro-batch are not told (micro_batch_size): {'; '.join(others[:3])}"
        )


def _told_of_batches(selection: Selection, taken: int, sizes: Sequence[int], those: str) -> None:
    parts = []
    for size in sizes if len(sizes) <= 8 else [*sizes[:4], *sizes[-4:]]:
        own = [one for _, one in selection.kept if one.batch == size]
        usual_ms = float(np.median([one.elapsed_ms for one in own]))
        parts.append(f"{size} in iterations {_numbers(own)}, {milliseconds(usual_ms)}")
    selection.notes.append(
        f"{counted(len(sizes), 'global batch size')}: {'; '.join(parts)}. Only those of {taken}, "
        f"{those}, count"
    )
