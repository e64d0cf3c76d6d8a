"""Arrow columns made of bytes that lie somewhere in a buffer, without a Python object per value."""

import numpy as np
import pyarrow as pa

from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.lakefs.formats.records import Array, gather_bytes


def binary(buffer: Array, spans: Array) -> pa.BinaryArray:
    """A column of `buffer[start:end]` for each (start, end) of `spans`; together at most 2 GiB."""
    offsets, joined = _joined(buffer, spans)
    return binary_from(offsets, joined)


def binary_from(offsets: Array, joined: Array) -> pa.BinaryArray:
    """A column of consecutive values, `offsets` (int32) being one longer than the column."""
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(joined)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def strings(buffer: Array, spans: Array, what: str, file: str) -> pa.StringArray:
    """Like `binary`, as text. Raises CorruptFile(file, what, …) where a value is not UTF-8."""
    offsets, joined = _joined(buffer, spans)
    column = pa.StringArray.from_buffers(len(spans), pa.py_buffer(offsets), pa.py_buffer(joined))
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise CorruptFile(file, what, str(error)) from None
    return column


def _joined(buffer: Array, spans: Array) -> tuple[Array, Array]:
    spans = np.ascontiguousarray(spans)
    offsets = np.zeros(len(spans) + 1, np.int32)
    np.cumsum(spans[:, 1] - spans[:, 0], out=offsets[1:])
    joined = np.empty(int(offsets[-1]), np.uint8)
    gather_bytes(buffer, spans, offsets, joined)
    return offsets, joined
