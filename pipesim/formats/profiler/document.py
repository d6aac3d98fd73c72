"""The JSON of a profiler trace, plain or gzip, and what it says of its rank."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipesim.documents.reading import Place, number, whole
from pipesim.errors import FormatError
from pipesim.formats.profiler.names import PIPELINE_GROUP

__all__ = ["Document", "read_document", "time_ms"]

_LATEST_MS = 1e14
"""Three thousand years: times of the profiler count from 1970, or from when the machine started."""


@dataclass(frozen=True)
class Document:
    """One trace, whose events are not yet checked.

    Parameters
    ----------
    place : Place
        Of the whole file.
    rank, world_size : int or None
        ``distributedInfo.rank`` and ``.world_size``, which traces of a single process lack.
    group : frozenset of int
        The ranks of the pipeline that this one is in; empty where the trace does not tell.
    has_gpu : bool
        Whether the trace names a GPU, or the backend of GPUs.
    base_ms : float
        What the events' times count from.
    events : list
        ``traceEvents``.
    """

    place: Place
    rank: int | None
    world_size: int | None
    group: frozenset[int]
    has_gpu: bool
    base_ms: float
    events: list[Any]

    def complete_events(self) -> Iterator[tuple[int, str, str, dict[str, Any]]]:
        """Yield position, category in small letters, name and event of each with a duration."""
        for index, event in enumerate(self.events):
            if isinstance(event, dict) and event.get("ph") == "X":
                name = event.get("name")
                if isinstance(name, str):
                    yield index, str(event.get("cat")).lower(), name, event


def read_document(content: bytes, file: str) -> Document:
    """Parse a trace.

    Raises
    ------
    FormatError
        It is cut short, is not JSON or no trace; with the place.
    """
    document = _parsed(content, file)
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise FormatError("is not a profiler trace: it has no traceEvents", file=file)
    place = Place(file)
    info = document.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    there = place.at("distributedInfo")
    rank, world_size = (
        whole(info[key], there.at(key)) if key in info else None for key in ("rank", "world_size")
    )
    if rank is not None and world_size is not None and rank >= world_size:
        raise there.at("rank").error(f"must be below the world_size {world_size}, not {rank}")
    return Document(
        place,
        rank,
        world_size,
        _group(info.get("pg_config"), rank),
        bool(document.get("deviceProperties")) or "nccl" in str(info.get("backend")).lower(),
        time_ms(document.get("baseTimeNanoseconds", 0), 1e6, place.at("baseTimeNanoseconds")),
        document["traceEvents"],
    )


def time_ms(value: object, per_ms: float, place: Place) -> float:
    """Check a time, and return it in milliseconds.

    Examples
    --------
    >>> time_ms(1500, 1e3, Place("rank0.json"))
    1.5
    """
    result = number(value, place) / per_ms
    if abs(result) > _LATEST_MS:
        raise place.error(f"must be a time, not {value!r:.40}")
    return result


def _parsed(content: bytes, file: str) -> Any:
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise FormatError(f"is not a whole gzip file ({error})", file=file) from None
    try:
        return json.loads(content.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise FormatError(
            f"is not JSON: {error.msg}", file=file, line=error.lineno, column=error.colno
        ) from None
    except UnicodeDecodeError as error:
        raise FormatError(f"is not text in UTF-8 (byte {error.start})", file=file) from None
    except (RecursionError, ValueError) as error:  # nested too deep; a number too long
        raise FormatError(f"is not JSON that can be read: {error}", file=file) from None


def _group(groups: Any, rank: int | None) -> frozenset[int]:
    """Return the ranks of the smallest pipeline group that holds this one."""
    found = [
        ranks
        for group in (groups if isinstance(groups, list) else [])
        if isinstance(group, dict) and PIPELINE_GROUP.fullmatch(str(group.get("pg_desc")))
        if (ranks := _members(group)) and rank in ranks
    ]
    # Groups of several dimensions, as dp_pp, hold more than one pipeline.
    return min(found, key=len, default=frozenset())


def _members(group: Mapping[str, Any]) -> frozenset[int]:
    """Return the ranks of a process group; nothing where the list of them is cut."""
    ranks = group.get("ranks")
    if not isinstance(ranks, list) or not all(type(rank) is int for rank in ranks):
        return frozenset()
    return frozenset(ranks) if group.get("pg_size", len(ranks)) == len(ranks) else frozenset()
