"""Different texts with equal 64-bit hashes (xxHash64), as no two names of objects should have."""

import random
import string

_MASK = 2**64 - 1
_PRIME_1, _PRIME_2, _PRIME_4, _PRIME_5 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_UNDO_1, _UNDO_2 = pow(_PRIME_1, -1, 2**64), pow(_PRIME_2, -1, 2**64)
_READABLE = frozenset(string.printable.encode())


def colliding(seed: int, number: int = 0) -> tuple[str, str]:
    """Two texts of 16 letters and signs with the same hash; other ones for each number.

    The hash XORs the state after the first eight bytes with an invertible function of the last eight. For any two
    beginnings there are therefore endings that collide. Most are no readable text, so beginnings are tried until one
    is.
    """
    chance = random.Random(number)
    while True:
        beginnings = [f"data/{chance.randrange(1000):03}".encode() for _ in range(2)]
        one, other = (_after(beginning, seed) for beginning in beginnings)
        ending = f"{chance.randrange(10**8):08}".encode()
        met = _undone(one ^ other ^ _done(int.from_bytes(ending, "little"))).to_bytes(8, "little")
        if one != other and _READABLE.issuperset(met):
            return (beginnings[0] + ending).decode(), (beginnings[1] + met).decode()


def _after(beginning: bytes, seed: int) -> int:
    """State of the hash of a 16-byte text after its first eight bytes."""
    start = (seed + _PRIME_5 + 16) & _MASK
    return (_turned(start ^ _done(int.from_bytes(beginning, "little")), 27) * _PRIME_1 + _PRIME_4) & _MASK


def _done(eight: int) -> int:
    return _turned(eight * _PRIME_2 & _MASK, 31) * _PRIME_1 & _MASK


def _undone(value: int) -> int:
    return _turned(value * _UNDO_1 & _MASK, 64 - 31) * _UNDO_2 & _MASK


def _turned(value: int, by: int) -> int:
    return (value << by | value >> (64 - by)) & _MASK
