"""Damage to valid files, for fuzzing their readers."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pandas as pd

PIECES = (
    b"\x00", b"\xff", b"\n", b"\r\n", b",", b"[", b"]", b"{", b"}", b'"', b"=", b"-", b"0", b"9",
    b"99999", b"1e999", b"nan", b"NaN", b"inf", b"Infinity", b"true", b"null", b".", b"#", b"\\u",
    b"\\ud800", b"[" * 3000, b"9" * 5000, b"F", b"\xef\xbb\xbf", "é".encode(), b"1979-99-99",
)  # fmt: skip


def damaged(valid: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """Yield ``count`` copies, each cut short or with bytes changed, inserted or removed."""
    chance = random.Random(seed)
    lines = valid.splitlines(keepends=True)
    for _ in range(count):
        at = chance.randrange(len(valid))
        match chance.randrange(6):
            case 0:
                yield valid[:at]
            case 1:
                yield valid[:at] + bytes([chance.randrange(256)]) + valid[at + 1 :]
            case 2:
                yield valid[:at] + chance.choice(PIECES) + valid[at:]
            case 3:
                yield valid[:at] + valid[at + chance.randrange(1, 40) :]
            case 4:
                a, b = chance.randrange(len(lines)), chance.randrange(len(lines))
                swapped = list(lines)
                swapped[a], swapped[b] = swapped[b], swapped[a]
                yield b"".join(swapped)
            case _:
                twice = chance.randrange(len(lines))
                yield b"".join([*lines[: twice + 1], *lines[twice:]])


STRANGE = (None, True, -1, 0, 1, 7, 2**53, 10**400, 0.5, 1e300, "", "0F0", "down", [], [[]], {})


def strange(document: object, chance: random.Random) -> object:
    """Return parsed JSON with one value, anywhere inside, replaced, left out or doubled."""
    if not document or not isinstance(document, dict | list) or chance.random() < 0.1:
        return chance.choice(STRANGE)
    if isinstance(document, dict):
        key = chance.choice(list(document))
        return document | {key: strange(document[key], chance)}
    at = chance.randrange(len(document))
    new = [[], [document[at]] * 2, [strange(document[at], chance)]][chance.randrange(3)]
    return [*document[:at], *new, *document[at + 1 :]]


def strange_frame(frame: pd.DataFrame, chance: random.Random) -> pd.DataFrame:
    """Return a table with rows lost, doubled or swapped, or values of one column changed."""
    frame = frame.reset_index(drop=True)
    column = chance.choice(list(frame.columns))
    some = frame.sample(
        chance.choice([1, 2, 7, len(frame) // 2]), random_state=chance.randrange(99)
    )
    match chance.randrange(8):
        case 0:
            return frame.drop(index=some.index)
        case 1:
            return pd.concat([frame, some])
        case 2:
            return frame.sample(frac=1, random_state=chance.randrange(99))
        case 3:
            return frame.drop(columns=column)
        case 4:
            return frame.assign(**{column: frame[column].to_numpy()[::-1]})
        case 5:
            return frame.assign(
                **{column: chance.choice([-1, 0, 3, 10**6, 1e-9, 1e300, "0", None])}
            )
        case 6:
            changed = frame[column].astype(object)
            changed[some.index] = chance.choice(
                [-1, 0, 1, 90, 2**31, 1e18, float("nan"), "x", None]
            )
            try:
                return frame.assign(**{column: changed.infer_objects()})
            except (TypeError, ValueError):
                return frame.drop(columns=column)
        case _:
            if frame[column].dtype.kind not in "iuf":
                return frame.drop(index=some.index)
            changed = frame[column].astype(float)
            changed[some.index] *= chance.choice([-1, 0, 0.5, 2, 1000])
            return frame.assign(**{column: changed.astype(frame[column].dtype, errors="ignore")})
