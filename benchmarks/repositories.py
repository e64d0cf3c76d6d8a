"""Makes repositories of a shape on an embedded server: real range files of lakeFS's block size, one file per object.

They are kept in `.benchmarks/` and made once. A sweep deletes garbage: `restore` puts it back and removes earlier runs.
If a shape is `numbered`, objects have no files: they are numbers, and a bucket lists them (`vast_bucket`).
"""

import hashlib
import os
import shutil
import stat
import sys
import time
from base64 import b32hexdecode, b32hexencode
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path

from benchmarks.shapes import Shape
from lakefs_gc_assets.extensions.playground.embedded import branches, commits, formats, repositories
from lakefs_gc_assets.extensions.playground.embedded.commits import Record, TableFile, _table_file
from lakefs_gc_assets.extensions.playground.embedded.core import Core
from lakefs_gc_assets.extensions.playground.embedded.formats import Entry, table
from lakefs_gc_assets.extensions.playground.embedded.routes import create_repository
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.extensions.playground.embedded.stores import RemoteBlockstore
from lakefs_gc_assets.lakefs.addresses import AddressType
from lakefs_gc_assets.lakefs.layout import DATA_PREFIX, METADATA_PREFIX
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets_tests.extensions.playground.embedded.faults import FailingServer

ROOT = Path(".benchmarks")
BUCKET = "bench"
REPOSITORY = "bench"
NAMES_IN_SLICE = 10_000
_COUNTER = 0xFF_FFFF
_A_SECOND = 4
"""Addresses issued per second."""
_YEAR_4000 = 64_060_588_800
_MACHINE = hashlib.sha256(b"benchmark").digest()[:5]
_AGE = timedelta(days=20)
BORN = datetime.now(UTC) - _AGE
"""Start of the oldest slice of a repository that is made now."""
_VERSION = 1
_GARBAGE = "garbage.txt"
DELETED = "deleted"
"""File with one byte for each numbered object: 1 if it was deleted."""
_BORN_FILE = "born"
_SIZES = 2**26
_READABLE = 2**16
"""Numbered objects below this size have content; larger ones have only a size, and an invented MD5."""
SMALLEST = 1_000
"""Minimum size of an entry."""
_LARGER = 100_000_000
"""Sizes of entries are below this; numbered garbage is at least this large."""
Describe = Callable[[str, int], Entry]


def made(shape: Shape, root: Path = ROOT) -> Path:
    """The folder of a repository of this shape, ready to be collected: newly made, or restored."""
    folder = root / f"{shape.name}-{_VERSION}"
    if (folder / "complete").exists():
        restore(folder)
        return folder
    print(f"making a repository of {shape.objects:,} objects in {folder}", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with server_of(folder, shape) as server:
        _fill(server.core, shape, folder)
    (folder / "complete").touch()
    return folder


def server_of(folder: Path, shape: Shape) -> EmbeddedServer:
    """The server of a repository of this shape."""
    if shape.numbered:
        return server_of_bucket(folder / "lakefs", objects_folder(folder))
    return EmbeddedServer(folder / "lakefs")


def server_of_bucket(folder: Path, files: Path) -> FailingServer:
    """A server whose addresses name a bucket; its objects are in a folder."""
    files.mkdir(parents=True, exist_ok=True)
    store = LocalStore(files)
    return FailingServer(folder, blockstore=RemoteBlockstore("s3", lambda location: store))


@dataclass(frozen=True)
class NumberedObjects:
    """The numbered objects of a shape; see `vast_bucket.Numbers`."""

    shape: Shape
    born: datetime
    written_at: datetime

    @classmethod
    def from_shape(cls, folder: Path, shape: Shape) -> "NumberedObjects":
        """Objects of a repository made in a folder."""
        began = datetime.fromisoformat((folder / _BORN_FILE).read_text())
        return cls(shape, began, datetime.fromtimestamp(written(), UTC))

    @property
    def objects(self) -> int:
        """Number of objects."""
        return self.shape.objects

    def size_and_md5(self, address: str, number: int) -> tuple[int, str]:
        """Size and MD5 in a bucket's listing; garbage has other sizes than committed objects."""
        size, md5 = _spread_size_and_md5(address)
        return (_LARGER + number, md5) if self.shape.is_garbage(number) else (size, md5)

    def content(self, address: str, number: int) -> bytes:
        """Content of an object. Raises LookupError for large objects."""
        size, _ = self.size_and_md5(address, number)
        if size >= _READABLE:
            raise LookupError(f"nobody made the {size:,} bytes of {address}")
        return repeated(address, size)


def repeated(address: str, size: int) -> bytes:
    """Content of an object: its address, repeated."""
    return (address.encode() * (1 + size // len(address)))[:size]


def spread_entry(address: str, number: int) -> Entry:
    """An entry with a size independent of its neighbours' sizes."""
    return Entry(address, AddressType.RELATIVE, *_spread_size_and_md5(address), 1_700_000_000 + number)


def _spread_size_and_md5(address: str) -> tuple[int, str]:
    md5 = hashlib.md5(address.encode(), usedforsecurity=False)
    size = SMALLEST + int.from_bytes(md5.digest()[:4]) % _SIZES
    if size < _READABLE:
        md5 = hashlib.md5(repeated(address, size), usedforsecurity=False)
    return size, md5.hexdigest()


def written() -> float:
    """Modification time of a repository's objects, in seconds since 1970."""
    return time.time() - _AGE.total_seconds() / 2


def objects_folder(folder: Path) -> Path:
    """Folder of the repository's objects."""
    return folder / "lakefs" / "objects" / REPOSITORY


def restore(folder: Path) -> None:
    """Restores garbage that a sweep deleted, and removes all runs."""
    root = objects_folder(folder)
    if (folder / _GARBAGE).exists():
        lines = (folder / _GARBAGE).read_text().split()
        make_files(root, [line for line in lines if not (root / line).exists()], written())
    (folder / DELETED).unlink(missing_ok=True)
    shutil.rmtree(root / "_lakefs" / "retention", ignore_errors=True)


def garbage_left(folder: Path, shape: Shape) -> int:
    """Number of remaining garbage objects. Raises ValueError if any other object is gone."""
    if shape.numbered:
        gone = [number for number, deleted in enumerate((folder / DELETED).read_bytes()) if deleted]
        if not all(map(shape.is_garbage, gone)):
            raise ValueError("an object was deleted that is no garbage")
        return shape.garbage - len(gone)
    root = objects_folder(folder)
    return sum((root / line).exists() for line in (folder / _GARBAGE).read_text().split())


def addresses(count: int, born: datetime) -> Iterator[str]:
    """Addresses in lakeFS's format, in slices that begin an hour apart."""
    for index in range(-(-count // NAMES_IN_SLICE)):
        first = index * NAMES_IN_SLICE
        yield from addresses_of_slice(index, born, min(count - first, NAMES_IN_SLICE))


def addresses_of_slice(index: int, born: datetime, count: int = NAMES_IN_SLICE) -> list[str]:
    """The first addresses of a slice, in order: four per second, or as many as fill an hour."""
    rate = max(_A_SECOND, -(-count // 3600))
    folder, first, seconds = _slice(index, born)
    return [f"{folder}/{_xid(seconds + place // rate, first + place)}" for place in range(count)]


def place_in_slice(index: int, born: datetime, address: str) -> int | None:
    """Position of an address in a slice of the usual size; None if it is not in the slice."""
    try:
        counter = int.from_bytes(b32hexdecode(address.rpartition("/")[2].upper() + "====")[-3:])
    except ValueError:
        return None
    folder, first, seconds = _slice(index, born)
    place = (counter - first) & _COUNTER
    there = place < NAMES_IN_SLICE and address == f"{folder}/{_xid(seconds + place // _A_SECOND, first + place)}"
    return place if there else None


def _slice(index: int, born: datetime) -> tuple[str, int, int]:
    """A slice's folder, the number of its first object, and its start in seconds since 1970."""
    first, seconds = index * NAMES_IN_SLICE, int(born.timestamp()) + index * 3600
    return f"{DATA_PREFIX}{_xid(_YEAR_4000 - seconds, first)}", first, seconds


def _xid(start: int, number: int) -> str:
    moment, counter = (start & 0xFFFF_FFFF).to_bytes(4), (number & _COUNTER).to_bytes(3)
    return b32hexencode(moment + _MACHINE + counter).decode().lower()[:20]


def _fill(core: Core, shape: Shape, folder: Path) -> None:
    place = f"{BUCKET}/{REPOSITORY}" if shape.numbered else REPOSITORY
    namespace = f"{core.blockstore.scheme}{place}"
    repository = create_repository(core, REPOSITORY, namespace, "main", read_only=False)
    root = objects_folder(folder)
    # The slices of very large repositories begin earlier, so that the newest slice is old enough too.
    hours = shape.objects // NAMES_IN_SLICE
    born = BORN - timedelta(hours=hours)
    usual = shape.objects - shape.in_one_slice
    names = [*addresses(usual, born), *addresses_of_slice(-(-usual // NAMES_IN_SLICE), born, shape.in_one_slice)]
    # Each kind is spread over all slices.
    live = [name for number, name in enumerate(names) if not shape.is_garbage(number)]
    if shape.numbered:
        (folder / _BORN_FILE).write_text(born.isoformat())
    else:
        make_files(root, names, written())
        garbage = (name for number, name in enumerate(names) if shape.is_garbage(number))
        (folder / _GARBAGE).write_text("\n".join(garbage))
    first = max(0, len(live) - shape.staged_among) if shape.staged_among else 0
    stride = max(1, (len(live) - first) // max(1, shape.uncommitted))
    staged = set(range(first, len(live), stride)) if shape.uncommitted else set()
    staged = set(sorted(staged)[: shape.uncommitted])
    committed = [name for number, name in enumerate(live) if number not in staged]
    heads = _commit(core, repository, shape, root, committed)
    _branch(core, repository, shape, heads)
    _stage(core, repository, shape, [live[number] for number in sorted(staged)])


def make_files(root: Path, names: list[str], moment: float) -> None:
    """Makes empty files with this modification time; neighbours among the names share a folder."""
    for parent, group in groupby(names, key=lambda name: name.rpartition("/")[0]):
        directory = root / parent
        directory.mkdir(parents=True, exist_ok=True)
        opened = os.open(directory, os.O_RDONLY)
        try:
            for name in group:
                base = name.rpartition("/")[2]
                os.mknod(base, stat.S_IFREG | 0o644, dir_fd=opened)
                os.utime(base, (moment, moment), dir_fd=opened)
        finally:
            os.close(opened)


def entry(address: str, number: int) -> Entry:
    """An entry with a size and an ETag that are unique in the repository."""
    etag = hashlib.md5(address.encode()).hexdigest()
    return Entry(address, AddressType.RELATIVE, 1000 + number, etag, 1_700_000_000 + number)


def range_file(names: list[str], first: int) -> tuple[TableFile, Record, bytes, int]:
    """An unwritten range, its first record and last path, and its size as lakeFS estimates it."""
    return range_of(_range_rows(names, first))


def describe_by(shape: Shape) -> Describe:
    """Makes entries of a shape's objects."""
    return spread_entry if shape.numbered else entry


def _range_rows(names: list[str], first: int, describe: Describe = entry) -> list[Record]:
    rows = []
    for number, address in enumerate(names, start=first):
        path = f"tables/t{first:09d}/dt=2026-{number % 12 + 1:02d}-01/part-{number:012d}.parquet".encode()
        described = describe(address, number)
        rows.append((path, described.identity, described.encode()))
    return sorted(rows)


def range_of(rows: list[Record]) -> tuple[TableFile, Record, bytes, int]:
    """The same for records, in order."""
    size = sum(len(path) + len(identity) + len(data) for path, identity, data in rows)
    file = _table_file("ranges", rows, size, {})
    return file, rows[0], rows[-1][0], size


def write_range(root: Path, names: list[str], first: int, describe: Describe) -> tuple[bytes, str, bytes, Record]:
    """Writes a range; returns its last path, its id, its record in a metarange, and its first record."""
    return write_range_of(root, _range_rows(names, first, describe))


def write_range_of(root: Path, rows: list[Record]) -> tuple[bytes, str, bytes, Record]:
    """The same for records, in order."""
    file, record, highest, size = range_of(rows)
    (root / METADATA_PREFIX / file.id).write_bytes(table(file.records, file.properties))
    return highest, file.id, formats.range_data(record[0], highest, size, len(rows)), record


def write_metarange(root: Path, rows: list[Record]) -> str:
    """Writes a metarange of ranges (last path, id, record in a metarange), and returns its id."""
    metarange = _table_file("metaranges", rows, sum(len(row[0]) + len(row[2]) for row in rows), {})
    (root / METADATA_PREFIX / metarange.id).write_bytes(table(metarange.records, metarange.properties))
    return metarange.id


def _commit(
    core: Core, repository: repositories.ServedRepository, shape: Shape, root: Path, names: list[str]
) -> list[str]:
    """Adds commits that each add some ranges; returns their ids."""
    if not shape.ranges:
        return []
    first, others = shape.in_one_range or len(names) // shape.ranges, max(1, shape.ranges - 1)
    bounds = [0, *(first + (len(names) - first) * number // others for number in range(shape.ranges))]
    parts = [names[start:end] for start, end in pairwise(bounds)]
    with ProcessPoolExecutor() as pool:
        write = partial(write_range, root, describe=describe_by(shape))
        parts_written = list(pool.map(write, parts, bounds[:-1], chunksize=4))
    born = int(BORN.timestamp())
    parents: tuple[str, ...] = tuple(commit.id for commit in commits.every(core, repository))
    made_commits: list[str] = []
    with core.database.transaction() as database:
        for number in range(1, shape.commits):
            held = parts_written[: max(1, shape.ranges * number // max(1, shape.commits - 1))]
            rows = [(highest, range_id.encode(), data) for highest, range_id, data, _ in held]
            metarange_id = write_metarange(root, rows)
            described = commits.Description("bench", f"commit {number}", date=born + number)
            parents = (commits.add(core, repository, described, metarange_id, parents, number + 1).id,)
            made_commits += parents
            # The server answers for one path, from which a sweep learns its spelling of addresses.
            highest, range_id, _, record = held[0]
            first_range = (metarange_id, 0, range_id, record[0], highest)
            database.execute("INSERT OR IGNORE INTO metaranges VALUES (?, ?, ?, ?, ?)", first_range)
            database.execute("INSERT OR IGNORE INTO range_records VALUES (?, ?, ?, ?)", (range_id, *record))
    return made_commits


def _branch(core: Core, repository: repositories.ServedRepository, shape: Shape, made_commits: list[str]) -> None:
    if not made_commits:
        return
    with core.database.transaction() as database:
        database.execute("UPDATE branches SET commit_id = ? WHERE id = 'main'", (made_commits[-1],))
        for number in range(1, shape.branches):
            head = made_commits[-1 - number % len(made_commits)]
            branches.insert(database, repository, f"branch-{number:05d}", head, hidden=False)


def _stage(core: Core, repository: repositories.ServedRepository, shape: Shape, names: list[str]) -> None:
    tokens = [branch.staging_token for branch in branches.every(core, repository, hidden=True)]
    if shape.staged_on_one:
        tokens = tokens[:1]
    with core.database.transaction() as database:
        for number, address in enumerate(names):
            path = f"staged/{number:09d}.parquet"
            described = describe_by(shape)(address, 10_000_000 + number)
            branches.stage_entry(database, tokens[number % len(tokens)], path, described)
