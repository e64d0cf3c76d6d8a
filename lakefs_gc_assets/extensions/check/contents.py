"""Reads objects, and compares their content with checksums of entries and of the store.

An entry's checksum is the MD5 of the content if the object was uploaded in one piece. A multipart upload through the S3
gateway has the sum of its parts: the MD5 of their MD5s. S3 appends the number of parts to that sum; the gateway removes
it. A copy in lakeFS keeps the checksum of its source, while the store reports the MD5 of the whole copy. So 32
hexadecimal digits may be either. An object that is encrypted by a key of KMS has an ETag that is neither.

S3 requires at least 5 MiB for every part except the last. So a smaller object's checksum is its MD5, or the sum of one
part.
"""

import hashlib
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from lakefs_gc_assets.storage.interface import ObjectStore, TellsParts

MIB = 1 << 20
SMALLEST_PART = 5 * MIB
"""Minimum bytes of a part, except the last."""
_CHUNK = 16 * MIB
"""Bytes of a large object that are read in one request."""
_USUAL_PARTS = tuple(
    each * MIB
    for each in (*range(5, 17), 20, 24, 25, 30, 32, 40, 48, 50, 60, 64, 80, 96, 100, 128, 200, 250, 256, 500, 512, 1024)
)
"""Part sizes that clients use."""
_CHECKSUM = re.compile(r"([0-9a-f]{32})(?:-([1-9][0-9]{0,4}))?")


class Comparison(StrEnum):
    """Result of comparing an object's content."""

    SAME = "same"
    OTHER = "other"
    UNKNOWN = "unknown"
    NO_CHECKSUM = "no checksum"


@dataclass(frozen=True, slots=True)
class Checksum:
    """An entry's checksum, or an ETag.

    Attributes:
        digest: MD5 of the content, or the sum of parts.
        parts: number of parts, if stated.
    """

    digest: str
    parts: int | None

    @classmethod
    def parse(cls, text: str | None) -> "Checksum | None":
        """None for a text that is neither an MD5 nor the sum of parts."""
        match = _CHECKSUM.fullmatch(text or "")
        return match and cls(match[1], int(match[2]) if match[2] else None)

    def fits(self, digest: str) -> bool:
        """True for the content with this MD5, if it was uploaded in one piece or in one part."""
        return (self.parts is None and self.digest == digest) or (
            self.parts in (None, 1) and self.digest == _sum([bytes.fromhex(digest)])
        )


def read_digest(store: ObjectStore, key: str, size: int) -> tuple[int, str]:
    """Length and MD5 of an object; a large one is read in chunks. Raises ObjectNotFound, StorageError."""
    length, digest = 0, hashlib.md5(usedforsecurity=False)
    for chunk in _chunks(store, key, size):
        length += len(chunk)
        digest.update(chunk)
    return length, digest.hexdigest()


def compare(store: ObjectStore, key: str, size: int, checksum: str | None, digest: str) -> tuple[Comparison, str]:
    """Compares an object's content with its entry's checksum; returns the result and the difference in words.

    The store's own sum is requested only if the checksum is not the MD5. The content is read again only if the checksum
    may be the sum of parts.

    Args:
        size: bytes of the object.
        digest: MD5 of the content that was read.
    Raises:
        StorageError: the object cannot be examined, or read again.
    """
    expected = Checksum.parse(checksum)
    if expected is not None and expected.fits(digest):
        return Comparison.SAME, ""
    facts = store.head(key)
    if facts.md5 not in (None, digest):
        return Comparison.OTHER, f"the MD5 of its content is {digest}, the store's is {facts.md5}"
    stored = Checksum.parse(facts.etag)
    sizes = store.part_sizes(key) if isinstance(store, TellsParts) and stored is not None and stored.parts else None
    if sizes and stored is not None:
        parts = _sum_of_parts(store, key, sizes)
        if parts != stored.digest:
            return Comparison.OTHER, f"the sum of its parts is {parts}-{len(sizes)}, the store's is {facts.etag}"
        if expected is not None and parts == expected.digest:
            return Comparison.SAME, ""
    if expected is None:
        return Comparison.NO_CHECKSUM, ""
    # An opaque ETag, such as one by a key of KMS, may have become the entry's checksum.
    is_opaque = stored is not None and facts.md5 is None and not sizes
    if size <= SMALLEST_PART and expected.parts in (None, 1) and not is_opaque:
        return Comparison.OTHER, f"the MD5 of its content is {digest}, its entry says {checksum}"
    if size > SMALLEST_PART and _has_usual_parts(store, key, size, expected):
        return Comparison.SAME, ""
    return Comparison.UNKNOWN, (
        f"its MD5 is {digest}, its entry says {checksum}, which may be the sum of parts of unknown sizes, or an ETag "
        "by a key of KMS"
    )


def _chunks(store: ObjectStore, key: str, size: int) -> Iterator[bytes]:
    if size <= _CHUNK:
        yield store.get(key)
        return
    for start in range(0, size, _CHUNK):
        yield store.get_part(key, start, min(start + _CHUNK, size))


def _sum(digests: Sequence[bytes]) -> str:
    return hashlib.md5(b"".join(digests), usedforsecurity=False).hexdigest()


@dataclass
class _Parts:
    """MD5s of the parts of a content that arrives in chunks. The last size repeats."""

    sizes: Sequence[int]
    digests: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._digest, self._left = hashlib.md5(usedforsecurity=False), self.sizes[0]

    def add(self, chunk: bytes) -> None:
        """Adds the next bytes."""
        rest = memoryview(chunk)
        while rest:
            taken = rest[: self._left]
            self._digest.update(taken)
            self._left -= len(taken)
            rest = rest[len(taken) :]
            if not self._left:
                self._end_part()

    def sum(self) -> str:
        """The sum of all parts, after the last chunk."""
        if self._left < self._size:
            self._end_part()
        return _sum(self.digests)

    @property
    def _size(self) -> int:
        return self.sizes[min(len(self.digests), len(self.sizes) - 1)]

    def _end_part(self) -> None:
        self.digests.append(self._digest.digest())
        self._digest, self._left = hashlib.md5(usedforsecurity=False), self._size


def _sum_of_parts(store: ObjectStore, key: str, sizes: Sequence[int]) -> str:
    parts = _Parts(sizes)
    for chunk in _chunks(store, key, sum(sizes)):
        parts.add(chunk)
    return parts.sum()


def _has_usual_parts(store: ObjectStore, key: str, size: int, expected: Checksum) -> bool:
    """True if a checksum is the sum of parts of a size that clients use."""
    fitting = [each for each in _USUAL_PARTS if each < size and expected.parts in (None, math.ceil(size / each))]
    tried = [_Parts([each]) for each in fitting]
    for chunk in _chunks(store, key, size) if tried else ():
        for parts in tried:
            parts.add(chunk)
    return any(parts.sum() == expected.digest for parts in tried)
