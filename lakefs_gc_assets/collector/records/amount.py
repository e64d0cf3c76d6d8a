"""Amounts of objects and bytes, and sizes in words."""

from typing import NamedTuple


class Amount(NamedTuple):
    """Objects, and their bytes together."""

    objects: int = 0
    bytes: int = 0

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(self.objects - other.objects, self.bytes - other.bytes)


_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(count: int) -> str:
    """Bytes as a person reads them."""
    amount = float(count)
    for unit in _UNITS:
        if amount < 1024 or unit == _UNITS[-1]:
            return f"{amount:,.0f} {unit}" if unit == "B" else f"{amount:,.1f} {unit}"
        amount /= 1024
    raise AssertionError
