"""Objects of commits by path, read from the recorded metaranges and ranges."""

from collections.abc import Callable, Iterable
from threading import Lock
from typing import Any

from lakefs_gc_assets.lakefs.addresses import AddressType, parse_location
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord, read_metarange, read_range

Stats = dict[str, Any]


class CommittedObjects:
    """Answers `stat` and listings of commits. It reads each file once.

    Args:
        read: returns the content of a key relative to the storage namespace.
        commits: recorded answers that describe a commit.
    """

    def __init__(self, read: Callable[[str], bytes], storage_namespace: str, commits: Iterable[dict[str, Any]]) -> None:
        self._read = read
        self._storage_namespace = storage_namespace.rstrip("/")
        self.commits = {commit["id"]: commit for commit in commits}
        self._metaranges: dict[str, list[RangeRecord]] = {}
        self._ranges: dict[str, dict[bytes, Stats]] = {}
        self._lock = Lock()

    def stat(self, commit_id: str, path: str) -> Stats | None:
        """The object in lakeFS's JSON; None if the commit has none there. Raises KeyError for an unknown commit."""
        metarange_id = self.commits[commit_id]["meta_range_id"]
        key = path.encode()
        with self._lock:
            for part in self._ranges_of(metarange_id) if metarange_id else ():
                if part.min_key <= key <= part.max_key:
                    return self._entries(part).get(key)
        return None

    def objects(self, commit_id: str) -> dict[str, Stats]:
        """All objects of a commit by path, in byte order. Raises KeyError for an unknown commit."""
        metarange_id = self.commits[commit_id]["meta_range_id"]
        with self._lock:
            parts = self._ranges_of(metarange_id) if metarange_id else []
            return {stats["path"]: stats for part in parts for stats in self._entries(part).values()}

    def _ranges_of(self, metarange_id: str) -> list[RangeRecord]:
        if metarange_id not in self._metaranges:
            file = f"_lakefs/{metarange_id}"
            self._metaranges[metarange_id] = read_metarange(self._read(file), file)
        return self._metaranges[metarange_id]

    def _entries(self, part: RangeRecord) -> dict[bytes, Stats]:
        if part.id not in self._ranges:
            file = f"_lakefs/{part.id}"
            entries = read_range(self._read(file), file, expected=part, columns=("keys", "etags"))
            assert entries.keys is not None and entries.etags is not None
            columns = (
                entries.keys,
                entries.addresses,
                entries.address_types,
                entries.sizes,
                entries.last_modified,
                entries.etags,
            )
            rows = zip(*(column.to_pylist() for column in columns), strict=True)
            self._ranges[part.id] = {row[0]: self._stats(*row) for row in rows}
        return self._ranges[part.id]

    def _stats(self, key: bytes, address: str, address_type: int, size: int, modified: int, etag: str) -> Stats:
        full = address_type == AddressType.FULL or (
            address_type == AddressType.BY_PREFIX_DEPRECATED and parse_location(address) is not None
        )
        path = key.decode()
        return {
            "checksum": etag,
            "content_type": "application/octet-stream",
            "metadata": {},
            "mtime": modified,
            "path": path,
            "path_type": "object",
            "physical_address": address if full else f"{self._storage_namespace}/{address}",
            "size_bytes": size,
        }
