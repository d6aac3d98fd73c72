"""How a run is laid out, as its log tells: which rank computes what, and which layers where.

Megatron-LM numbers its ranks tensor-parallel first, then context-, data- and pipeline-parallel
(``tp-cp-ep-dp-pp``): rank r of R is on stage r · S // R. With ``use_tp_pp_dp_mapping`` the last
two change places: rank tp + T · (stage + S · dp), where T ranks share a stage's work.
Expert-parallel ranks are some of the data-parallel ones. DeepSpeed's pipelines are numbered as
in the first order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pipesim.errors import FormatError
from pipesim.formats.megatron.record import Told
from pipesim.text import counted, listed, plain

__all__ = ["Layout"]

_MOST_STAGES = 100_000
_OF_1F1B = ("1f1b", "1f1b-interleaved")
_REPEATED = re.compile(r"(?:\(([^()]*)\)|([A-Za-z]))\*([0-9]{1,3})")


@dataclass(frozen=True)
class Layout:
    """The layout of a run.

    Parameters
    ----------
    devices : int
        Pipeline ranks: stages, as Megatron-LM counts them.
    chunks : int
        Virtual stages of each.
    sharing : int, optional
        Tensor- and context-parallel ranks that share a stage's work for one micro-batch.
    copies : int, optional
        Data-parallel copies of the pipeline.
    stage_first : bool
        Whether neighbouring ranks are on neighbouring stages, see above.
    layers : tuple of float
        Of each virtual stage, in model order, where they differ.
    notes : tuple of str
        All this for people.
    """

    devices: int
    chunks: int = 1
    sharing: int | None = None
    copies: int | None = None
    stage_first: bool = False
    layers: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, shape: Mapping[str, Told], devices: int, file: str) -> Layout:
        """Find the layout in what a log tells.

        Raises
        ------
        FormatError
            What it tells cannot be: ranks or layers cannot be shared out.
        """
        told = {what: one.value for what, one in shape.items()}
        layers, chunks = _layers(shape, devices, file)
        context = told.get("context-parallel ranks", 1)
        tensor = told.get("tensor-parallel ranks")
        sharing = None if tensor is None else tensor * context
        ranks, copies = told.get("ranks"), told.get("data-parallel ranks")
        contradiction = ""
        if ranks is not None:
            product = devices * (sharing or 1) * (copies or 1)
            if ranks % product or (sharing and copies and ranks != product):
                contradiction = (
                    f"{file}: {counted(ranks, 'rank')}, but {counted(devices, 'stage')} × "
                    f"{sharing or '?'} tensor- and context-parallel × {copies or '?'} "
                    "data-parallel ranks: not used to tell which of them do the same"
                )
                sharing = copies = None
            elif copies is None and (sharing or ranks == devices):
                copies = ranks // product
            elif copies and not sharing:
                sharing = ranks // product
        stage_first = bool(told.get("pipeline before data"))
        found = cls(devices, chunks, sharing, copies, stage_first, layers)
        notes = _notes(found, told, file, contradiction) + _orders(shape, file)
        return replace(found, notes=tuple(notes))

    @property
    def stages(self) -> int:
        """Number of virtual stages."""
        return self.devices * self.chunks

    def place(self, rank: int, ranks: int) -> tuple[int, int]:
        """Return the stage and the data-parallel copy of a rank.

        Where it is not known how many ranks share the work of a stage, each rank of a stage
        counts as a copy.

        Examples
        --------
        >>> [Layout(2, sharing=2).place(rank, 8) for rank in (0, 2, 4)]
        [(0, 0), (0, 1), (1, 0)]
        >>> [Layout(2, sharing=2, stage_first=True).place(rank, 8) for rank in (0, 2, 4)]
        [(0, 0), (1, 0), (0, 1)]
        """
        sharing = self.sharing or 1
        if self.stage_first:
            copy, stage = divmod(rank // sharing, self.devices)
            return stage, copy
        stage, inner = divmod(rank, ranks // self.devices)
        return stage, inner // sharing


def _notes(layout: Layout, told: Mapping[str, int], file: str, contradiction: str) -> list[str]:
    notes = [contradiction] if contradiction else []
    parts = [counted(layout.devices, "stage")]
    if layout.copies:
        parts.append(f"{layout.copies} data-parallel")
    parts += [
        f"{size} {what}-parallel"
        for what in ("tensor", "context")
        if (size := told.get(f"{what}-parallel ranks", 0))
    ]
    if expert := told.get("expert-parallel ranks", 1) - 1:
        parts.append(f"(of the data-parallel ones {expert + 1} expert-parallel)")
    if "ranks" in told and len(parts) > 1 and not contradiction:
        order = (
            "rank = tp + T·(stage + S·dp), by use_tp_pp_dp_mapping"
            if layout.stage_first
            else "rank r of R on stage r·S // R"
        )
        shares = " × ".join(parts).replace("× (", "(")
        notes.append(f"{file}: {counted(told['ranks'], 'rank')} are {shares}; {order}")
    if layout.chunks > 1:
        group = told.get("micro-batches of a group")
        uneven = group is not None and group != layout.devices
        notes.append(
            f"{file}: {layout.chunks} virtual stages on each of {layout.devices}: interleaved 1F1B"
            + (f", in groups of {group} micro-batches" if uneven else "")
        )
    if layout.layers:
        numbers = ", ".join(plain(count) for count in layout.layers[:16])
        more = ", …" if len(layout.layers) > 16 else ""
        notes.append(f"{file}: layers of each stage: {numbers}{more}")
    elif "layers" in told:
        notes.append(f"{file}: {counted(told['layers'], 'layer')}, shared out equally")
    return notes


def _orders(shape: Mapping[str, Told], file: str) -> list[str]:
    """Say so where a run was told to use an order that is not known here."""
    orders = [
        f"{what.removeprefix('order by ')} is {order.text}, by line {order.line}"
        for what, order in shape.items()
        if what.startswith("order by ") and order.text not in _OF_1F1B
    ]
    if not orders:
        return []
    return [
        f"{file}: {listed(orders)}: that order is not known here; 1F1B, or its interleaved form, "
        "stands for it in what is guessed and in the check"
    ]


def _layers(shape: Mapping[str, Told], devices: int, file: str) -> tuple[tuple[float, ...], int]:
    """Return the layers of each virtual stage, none where they are equal, and the chunks."""
    told = {what: one.value for what, one in shape.items()}
    if "layout" in shape:
        return _drawn(shape, devices, file)
    if lists := [what for what in ("layers by stage", "layers by device") if what in shape]:
        return _counted(shape, lists[0], devices, file)
    total = told.get("layers")
    embedding, loss = told.get("embedding as a layer", 0), told.get("loss as a layer", 0)
    chunks = told.get("chunks", 1)
    if total is None:
        return (), chunks
    line = shape["layers"].line
    if (each := told.get("layers of a chunk")) and "chunks" not in told:
        chunks, rest = divmod(total + embedding + loss, devices * each)
        if rest or not chunks:
            raise FormatError(
                f"says that {counted(total, 'layer')} are on {counted(devices, 'stage')} in "
                f"chunks of {each}, which cannot be",
                file=file,
                line=shape["layers of a chunk"].line,
            )
    stages = devices * chunks
    if stages > _MOST_STAGES:
        return (), chunks
    ends = {0: told.get("layers of the first stage"), -1: told.get("layers of the last stage")}
    if told.get("embedding on a stage of its own"):
        ends[0] = 0
    given = {end: count for end, count in ends.items() if count is not None}
    if given and devices > 1:
        rest = devices - len(given)
        between = (total - sum(given.values())) / rest if rest else 0.0
        per_device = [between] * devices
        for end, count in given.items():
            per_device[end] = float(count)
        layers = [count / chunks for count in per_device] * chunks
    else:
        layers = [(total + embedding + loss) / stages] * stages
        layers[0] -= embedding
        layers[-1] -= loss
    if min(layers) < 0 or not any(layers):
        raise FormatError(
            f"says that there are {counted(total, 'layer')}, too few for what its first and last "
            "stage have",
            file=file,
            line=line,
        )
    return (tuple(layers) if len(set(layers)) > 1 else ()), chunks


def _drawn(shape: Mapping[str, Told], devices: int, file: str) -> tuple[tuple[float, ...], int]:
    """Read ``pipeline_model_parallel_layout``.

    Its stages stand between bars; ``t`` is a layer, ``m`` one that predicts further tokens, ``E``
    and ``L`` the ends; ``(…)*3`` and ``t*3`` are repeated.

    Examples
    --------
    >>> _drawn({"layout": Told(0, 1, "Et*3|(tt|)*2,tL")}, 2, "f")
    ((3.0, 2.0, 2.0, 1.0), 2)
    """
    drawn = shape["layout"].text.strip("'\"").replace(",", "").replace(" ", "")
    while len(drawn) <= _MOST_STAGES and (again := _REPEATED.search(drawn)):
        part = (again[1] if again[1] is not None else again[2]) * int(again[3])
        drawn = drawn[: again.start()] + part + drawn[again.end() :]
    stages = drawn.split("|")
    known = re.fullmatch(r"[EtmL|]{1,100000}", drawn) is not None
    layers = [float(stage.count("t") + stage.count("m")) for stage in stages] if known else []
    return _of_stages(layers, shape, "layout", devices, file)


def _counted(
    shape: Mapping[str, Told], what: str, devices: int, file: str
) -> tuple[tuple[float, ...], int]:
    """Read a list with the layers of each virtual stage, in model order or device by device.

    Examples
    --------
    >>> _counted({"layers by stage": Told(0, 1, "3,2,2,1")}, "layers by stage", 2, "f")
    ((3.0, 2.0, 2.0, 1.0), 2)
    >>> _counted({"layers by device": Told(0, 1, "[3, 2, 2, 1]")}, "layers by device", 2, "f")
    ((3.0, 2.0, 2.0, 1.0), 2)
    >>> _counted({"layers by device": Told(0, 1, "[3, 2, 1, 1]")}, "layers by device", 2, "f")
    ((3.0, 1.0, 2.0, 1.0), 2)
    """
    numbers = shape[what].text.strip("'\"[]").split(",")
    known = len(numbers) <= _MOST_STAGES and all(
        re.fullmatch(" ?[0-9]{1,6}", number) for number in numbers
    )
    layers = [float(number) for number in numbers] if known else []
    if what == "layers by device":
        chunks = len(layers) // devices
        layers = [layers[at] for chunk in range(chunks) for at in range(chunk, len(layers), chunks)]
    return _of_stages(layers, shape, what, devices, file)


def _of_stages(
    layers: list[float], shape: Mapping[str, Told], what: str, devices: int, file: str
) -> tuple[tuple[float, ...], int]:
    """Check the layers of virtual stages that an argument tells, none where it is not understood.

    Raises
    ------
    FormatError
        They are not those of these devices.
    """
    _, line, text = shape[what]
    noun = "a layout" if what == "layout" else "a list of layers"
    chunks, rest = divmod(len(layers), devices)
    if rest or not any(layers):
        raise FormatError(
            f"has {noun}, {text[:40]!r}, that is none of {counted(devices, 'stage')}",
            file=file,
            line=line,
        )
    if "chunks" in shape and shape["chunks"].value != chunks:
        raise FormatError(
            f"has {noun} of {len(layers)} virtual stages, {chunks} on each of {devices}, but line "
            f"{shape['chunks'].line} says {shape['chunks'].value}",
            file=file,
            line=line,
        )
    return (tuple(layers) if len(set(layers)) > 1 else ()), chunks
