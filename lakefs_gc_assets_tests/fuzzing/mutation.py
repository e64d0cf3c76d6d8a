"""Damage: random changes of bytes, texts and JSON, repeatable by their generator."""

import copy
import random
import struct
from collections.abc import Callable
from typing import Any

from lakefs_gc_assets_tests.lakefs.formats.table_bytes import varint

_NUMBERS = (0, 1, 2, 0x7F, 0x80, 0xFF, 1 << 15, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, 1 << 63)
_WRITTEN = [
    *(struct.pack("<I", number & 0xFFFF_FFFF) for number in _NUMBERS),
    *(struct.pack("<Q", number) for number in _NUMBERS),
    *(varint(number) for number in _NUMBERS),
    varint((1 << 64) - 1),
    b"\x80" * 10 + b"\x01",
    b"\xff" * 12,
]

HOSTILE_TEXTS = (
    "",
    "/",
    "//",
    "..",
    "../..",
    "a/../../b",
    "%",
    "%2F",
    "%2e%2e",
    "%00",
    "%zz",
    "?",
    "#",
    ",",
    "\n",
    "a\nb",
    "\r\n",
    "\x00",
    "\x7f",
    "\u2028",
    "\u202e",
    "\ufeff",
    "é",
    "e\u0301",
    "\U0010ffff",
    "'; --",
    '"',
    "\\",
    "true",
    "null",
    "s3://other/data/x",
    "https://[::1",
    "http://[",
    "://",
    "x" * 5000,
)


def mutated(rng: random.Random, data: bytes, other: bytes = b"") -> bytes:
    """Makes one to four changes: bits, bytes, overwritten numbers, spans removed, repeated, cut or from `other`."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(changed) + 1)
        span = min(rng.choice((1, 1, 2, 4, 8, 64)), len(changed) - at)
        match rng.randrange(8):
            case 0 | 1 if span:
                changed[at] ^= 1 << rng.randrange(8)
            case 2 if span:
                changed[at] = rng.randrange(256)
            case 3:
                number = rng.choice(_WRITTEN)
                changed[at : at + rng.choice((0, len(number)))] = number
            case 4:
                del changed[at : at + span]
            case 5:
                changed[at:at] = changed[at : at + span] or bytes((rng.randrange(256),))
            case 6 if rng.random() < 0.3:
                del changed[at:]
            case _:
                start = rng.randrange(len(other) + 1)
                changed[at : at + rng.choice((0, span))] = other[start : start + rng.choice((1, 4, 16))]
    return bytes(changed)


def hostile_text(rng: random.Random, near: str = "") -> str:
    """A text without lone surrogates: a known troublemaker, noise, or `near` with some inserted."""
    match rng.randrange(4):
        case 0:
            return rng.choice(HOSTILE_TEXTS)
        case 1:
            return "".join(chr(_scalar(rng)) for _ in range(rng.randrange(12)))
        case _:
            at = rng.randrange(len(near) + 1)
            inserted = rng.choice(HOSTILE_TEXTS) if rng.random() < 0.5 else chr(_scalar(rng))
            return near[:at] + inserted + near[at + rng.choice((0, 0, 1, 3)) :]


def _scalar(rng: random.Random) -> int:
    return rng.choice((rng.randrange(0x80), rng.randrange(0x80), rng.randrange(0x800), rng.randrange(0xE000, 0x110000)))


def _numbers(rng: random.Random) -> Any:
    return rng.choice((0, -1, 1, 1.5, float("inf"), float("nan"), 1e308, -(10**30), 10**30, (1 << 63), True, False))


def mutated_json(rng: random.Random, content: Any) -> Any:
    """A document with one to three values replaced, removed, doubled or nested; sometimes a key is changed."""
    content = copy.deepcopy(content)
    for _ in range(rng.choice((1, 1, 2, 3))):
        place, key = _somewhere(rng, content)
        if place is None:
            return _replacement(rng, content)
        match rng.randrange(8):
            case 0:
                del place[key]
            case 1 if isinstance(place, dict):
                place[hostile_text(rng, str(key))] = place.pop(key)
            case 2 if isinstance(place, list):
                place.insert(key, copy.deepcopy(place[key]))
            case _:
                place[key] = _replacement(rng, place[key])
    return content


def _somewhere(rng: random.Random, content: Any) -> tuple[Any, Any]:
    places = [(container, key) for container in _containers(content) for key in _keys(container)]
    return rng.choice(places) if places else (None, None)


def _containers(content: Any) -> list[Any]:
    if not isinstance(content, dict | list):
        return []
    values = content.values() if isinstance(content, dict) else content
    return [content, *(inner for value in values for inner in _containers(value))]


def _keys(container: Any) -> list[Any]:
    return list(container) if isinstance(container, dict) else list(range(len(container)))


def _replacement(rng: random.Random, value: Any) -> Any:
    makers: list[Callable[[], Any]] = [
        lambda: None,
        lambda: _numbers(rng),
        lambda: hostile_text(rng, value if isinstance(value, str) else ""),
        lambda: chr(rng.randrange(0xD800, 0xE000)),  # A lone surrogate: valid in JSON, but cannot be stored.
        lambda: [value],
        lambda: {"x": value},
        lambda: [],
        lambda: {},
        lambda: str(value),
        lambda: value + rng.choice((-1, 1)) if type(value) is int else hostile_text(rng),
    ]
    return rng.choice(makers)()
