"""Objects and the bytes that they are together, as one value."""

from typing import NamedTuple


class Amount(NamedTuple):
    """Objects, and their bytes together."""

    objects: int = 0
    bytes: int = 0

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(self.objects - other.objects, self.bytes - other.bytes)
