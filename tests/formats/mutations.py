"""Damage to valid files, for fuzzing their readers."""

from __future__ import annotations

import random
from collections.abc import Iterator

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
