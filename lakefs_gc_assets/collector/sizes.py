"""Bytes as a person reads them."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(count: int) -> str:
    """Bytes as a person reads them."""
    amount = float(count)
    for unit in _UNITS:
        if amount < 1024 or unit == _UNITS[-1]:
            return f"{amount:,.0f} {unit}" if unit == "B" else f"{amount:,.1f} {unit}"
        amount /= 1024
    raise AssertionError
