"""A folder as the bucket of an embedded server: its recordings look as on S3, including times."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from lakefs_gc_assets.errors import ObjectNotFound
from lakefs_gc_assets.extensions.playground.embedded.stores import StoreClock
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets.storage.local import LocalStore


class BucketFolder:
    """A blockstore of type `s3`: the object `s3://bucket/key` is the file `bucket/key` of a folder.

    Objects get their LastModified from the server's clock.
    """

    type = "s3"
    scheme = "s3://lakefs/"

    def __init__(self, folder: Path, clock: StoreClock) -> None:
        self._folder = folder
        self._clock = clock
        self._stores: dict[str, ObjectStore] = {}

    def folder_of(self, location: str) -> Path:
        """Folder of the objects below a full address."""
        return self._folder / location.removeprefix("s3://")

    def files(self, location: str) -> Iterator[tuple[str, Path]]:
        """Keys and files of the objects below a full address."""
        root = self.folder_of(location)
        for path in sorted(root.rglob("*")):
            if path.is_file():
                yield path.relative_to(root).as_posix(), path

    def open(self, location: str) -> ObjectStore:
        """See Blockstore.open."""
        if location not in self._stores:
            if not self.folder_of(location).is_dir():
                raise ObjectNotFound(f"there is no folder for {location}")
            self._stores[location] = _TimedStore(self.folder_of(location), self._clock)
        return self._stores[location]

    def create(self, location: str) -> ObjectStore:
        """See Blockstore.create."""
        self.folder_of(location).mkdir(parents=True, exist_ok=True)
        return self.open(location)

    def put(self, location: str, key: str, content: bytes) -> str:
        """See Blockstore.put."""
        self.create(location).put(key, content)
        return _md5(content)


class _TimedStore(LocalStore):
    def __init__(self, root: Path, clock: StoreClock) -> None:
        super().__init__(root)
        self._files = root
        self._clock = clock

    def put(self, key: str, data: bytes) -> str:
        """Writes an object dated by the server's clock; returns its MD5. It does not wait for the disk."""
        file = self._files / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        moment = self._clock.now().timestamp()
        os.utime(file, (moment, moment))
        return _md5(data)


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()
