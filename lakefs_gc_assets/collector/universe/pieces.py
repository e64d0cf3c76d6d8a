"""Cuts the rest of a large part of the listing into pieces that several tasks can list.

How the names of the rest are distributed is not known. It is estimated from the names that were listed, by reading them
as numbers over the alphabet of their characters: equal spans are expected to have about as many names. A piece that
turns out to be large is cut again. The bounds of the pieces follow each other from the beginning of the rest to its
end: however wrong the estimate is, every possible name lies in exactly one piece.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from lakefs_gc_assets.collector.universe.parts import Part, Rest

_PIECES = 32
"""Pieces of one part at most: an empty one costs a call of the store."""
_DELICATE = re.compile(r"[\x00-\x1f\x7f/.]")
_DIGITS = 8
"""So many characters of a bound are kept behind what it has in common with the last name that was listed."""


def cut(rest: Rest) -> tuple[Part, ...]:
    """The pieces of a rest, in order; a single one where the names listed so far allow no estimate."""
    part, after, until = rest.part, rest.part.after, rest.part.until
    names = [name.removeprefix(part.prefix) for name in (rest.first, after, until or "")]
    found: set[str] = set()
    if len(rest.alphabet) > 1:
        scale = _Scale(rest.alphabet, max(map(len, names)))
        first, last = scale.number(names[0]), scale.number(names[1])
        end = scale.end if until is None else scale.number(names[2])
        found = {part.prefix + scale.name(number) for number in _steps(last, end, last - first)}
    bounds: list[str | None] = [after, *sorted(_within(found, after, until), key=str.encode), until]
    return tuple(replace(part, after=begin or "", until=end) for begin, end in pairwise(bounds))


def _within(found: set[str], after: str, until: str | None) -> set[str]:
    return {
        bound
        for bound in (_short(bound, after) for bound in found)
        if after.encode() < bound.encode() and (until is None or bound.encode() < until.encode())
    }


def _short(bound: str, after: str) -> str:
    """The bound without what makes no difference, and without characters that not every place in a name can have."""
    pairs = enumerate(zip(bound, after, strict=False))
    common = next((place for place, (one, other) in pairs if one != other), min(len(bound), len(after)))
    return bound[:common] + _DELICATE.split(bound[common : common + _DIGITS], maxsplit=1)[0]


def _steps(start: int, end: int, step: int) -> Iterator[int]:
    """Numbers between two, at equal distances; where these would be too many, at distances that grow by a factor.

    The distance begins at three quarters of the step, so that few pieces turn out to be a little too large.
    """
    length = max(1, step * 3 // 4)
    ratio = max(0.0, math.log(max(1, end - start)) - math.log(length))
    if ratio <= math.log(_PIECES):
        yield from range(start + length, end, length)
        return
    growth = int(math.exp(ratio / _PIECES) * 1024)
    while (start + length) < end:
        yield start + length
        length = max(length + 1, length * growth // 1024)


class _Scale:
    """Reads names as numbers over an alphabet, in the order of names; other characters count as the next one in it."""

    def __init__(self, alphabet: str, digits: int) -> None:
        self._alphabet = alphabet
        self._digits = digits
        self.end = len(alphabet) ** digits

    def number(self, name: str) -> int:
        """The number of a name, cut or filled up to the digits."""
        number = 0
        for character in name[: self._digits].ljust(self._digits, self._alphabet[0]):
            number = number * len(self._alphabet) + self._rank(character)
        return number

    def _rank(self, character: str) -> int:
        return min(sum(known < character for known in self._alphabet), len(self._alphabet) - 1)

    def name(self, number: int) -> str:
        """The name of a number."""
        characters: list[str] = []
        for _ in range(self._digits):
            number, rank = divmod(number, len(self._alphabet))
            characters.append(self._alphabet[rank])
        return "".join(reversed(characters)).rstrip(self._alphabet[0])
