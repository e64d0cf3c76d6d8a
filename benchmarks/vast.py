"""A repository too large for real files: objects are numbers, which determine names, sizes and ETags.

Of every 20 objects, one is garbage, five are staged and fourteen committed. There is one main branch, whose commits
each have about 280 ranges and replace four. After every thirty commits a branch starts, with staged objects. Ranges,
commits and staged entries are real, on an embedded server. The objects do not exist: `vast_bucket` lists them.
"""

import hashlib
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.repositories import (
    BUCKET,
    NAMES_IN_SLICE,
    REPOSITORY,
    addresses_of_slice,
    repeated,
    server_of_bucket,
    write_metarange,
    write_range_of,
)
from lakefs_gc_assets.extensions.playground.embedded import branches, commits, repositories
from lakefs_gc_assets.extensions.playground.embedded.commits import Record
from lakefs_gc_assets.extensions.playground.embedded.core import Core
from lakefs_gc_assets.extensions.playground.embedded.formats import Entry
from lakefs_gc_assets.extensions.playground.embedded.routes import create_repository
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.lakefs.addresses import AddressType
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX

AGE = timedelta(days=20)
_GROUP = 20
_GARBAGE = 7
_STAGED = (1, 5, 9, 13, 17)
_SLICES, _PLACES, _COMMITS, _REPLACED = 2, 40, 30, 4
"""For each branch: slices, places, commits, and places that each commit rewrites."""
_NAMED = 280
"""Maximum ranges of a commit."""
_OWN, _SHARED = 350, 67
"""Entries of a range: objects of its own place, in each of its generations, and objects of another place."""
_SIZES = 45 * _GROUP
_VERSION = 3
_Range = tuple[bytes, str, bytes, Record]
"""Last path, id, record in a metarange, first record."""


@dataclass(frozen=True)
class Vast:
    """The repository's size: everything grows with the branches."""

    branches: int

    @property
    def slices(self) -> int:
        """Folders below `data/`."""
        return self.branches * _SLICES

    @property
    def objects(self) -> int:
        """Objects in the store."""
        return self.slices * NAMES_IN_SLICE

    @property
    def garbage(self) -> int:
        """Objects that nothing references."""
        return self.objects // _GROUP

    @property
    def uncommitted(self) -> int:
        """Objects that are staged."""
        return self.garbage * len(_STAGED)

    @property
    def committed(self) -> int:
        """Objects that commits hold."""
        return self.objects - self.garbage - self.uncommitted

    @property
    def commits(self) -> int:
        """Commits, except for the repository's first one."""
        return self.branches * _COMMITS

    @property
    def ranges(self) -> int:
        """Range files."""
        return self.commits * _REPLACED

    @property
    def entries(self) -> int:
        """Entries of all ranges together."""
        return self.ranges * (_OWN + _SHARED)


def is_garbage(number: int) -> bool:
    """True if nothing references an object."""
    return number % _GROUP == _GARBAGE


def described(address: str, number: int) -> Entry:
    """An entry of an object."""
    return Entry(address, AddressType.RELATIVE, *_size_and_md5(address, number), 1_700_000_000 + number)


@dataclass(frozen=True)
class VastObjects:
    """The objects of a vast repository; see `vast_bucket.Numbers`."""

    objects: int
    born: datetime
    written_at: datetime

    @classmethod
    def from_size(cls, folder: Path, size: Vast) -> "VastObjects":
        """Objects of a repository made in a folder."""
        began = datetime.fromisoformat((folder / "born").read_text())
        return cls(size.objects, began, datetime.now(UTC) - AGE / 2)

    def size_and_md5(self, address: str, number: int) -> tuple[int, str]:
        """Size and MD5 of an object in a bucket's listing."""
        return _size_and_md5(address, number)

    def content(self, address: str, number: int) -> bytes:
        """Content of an object."""
        return _content(address, number)


def _content(address: str, number: int) -> bytes:
    """Garbage has other sizes than committed objects."""
    return repeated(address, 64 + number % _SIZES)


def _size_and_md5(address: str, number: int) -> tuple[int, str]:
    held = _content(address, number)
    return len(held), hashlib.md5(held, usedforsecurity=False).hexdigest()


def made(vast: Vast, root: Path) -> Path:
    """The folder of a vast repository, newly made, or an earlier one without its runs."""
    folder = root / f"vast-{vast.branches}-{_VERSION}"
    if (folder / "born").exists():
        shutil.rmtree(folder / "objects" / "_lakefs" / "retention", ignore_errors=True)
        return folder
    print(f"making a repository of {vast.entries:,} committed entries in {folder}", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "objects" / METADATA_PREFIX).mkdir(parents=True)
    born = datetime.now(UTC).replace(microsecond=0) - AGE - timedelta(hours=vast.slices)
    with server(folder) as embedded:
        _fill(embedded.core, vast, born, folder / "objects")
    (folder / "born").write_text(born.isoformat())
    return folder


def server(folder: Path) -> EmbeddedServer:
    """The server of a vast repository; its addresses name a bucket, but its files are in a folder."""
    return server_of_bucket(folder / "lakefs", folder / "objects")


def _fill(core: Core, vast: Vast, born: datetime, root: Path) -> None:
    namespace = f"s3://{BUCKET}/{REPOSITORY}"
    repository = create_repository(core, REPOSITORY, namespace, "main", read_only=False)
    head = next(iter(commits.every(core, repository))).id
    held: dict[int, _Range] = {}
    with ProcessPoolExecutor() as pool:
        jobs = ((root, born, branch) for branch in range(vast.branches))
        for branch, written in enumerate(pool.map(_write_ranges, jobs, chunksize=2)):
            with core.database.transaction() as database:
                head = _commit(core, repository, root, branch, head, held, written)
                if branch < vast.branches - 1:
                    branches.insert(database, repository, f"branch-{branch:05d}", head, hidden=False)
                else:
                    database.execute("UPDATE branches SET commit_id = ? WHERE id = 'main'", (head,))
    for number, found in enumerate(branches.every(core, repository, hidden=True)):
        with core.database.transaction() as database:
            for object_number, address in enumerate(_objects(born, number), number * _SLICES * NAMES_IN_SLICE):
                if object_number % _GROUP in _STAGED:
                    path = f"staged/{object_number:09d}.parquet"
                    branches.stage_entry(database, found.staging_token, path, described(address, object_number))


def _objects(born: datetime, branch: int) -> list[str]:
    """Addresses of a branch's objects, by number."""
    slices = range(branch * _SLICES, (branch + 1) * _SLICES)
    return [address for index in slices for address in addresses_of_slice(index, born)]


def _write_ranges(job: tuple[Path, datetime, int]) -> list[_Range]:
    """Writes a branch's ranges, in the order in which its commits add them."""
    root, born, branch = job
    live = [
        (entry.identity, entry.encode())
        for number, address in enumerate(_objects(born, branch), branch * _SLICES * NAMES_IN_SLICE)
        if not is_garbage(number) and number % _GROUP not in _STAGED
        for entry in (described(address, number),)
    ]
    written = []
    for brought in range(_COMMITS * _REPLACED):
        generation, place = divmod(brought, _PLACES)
        other = (place + 1 + generation) % _PLACES
        held = live[place * _OWN : (place + 1) * _OWN] + live[other * _OWN : other * _OWN + _SHARED]
        folder = f"tables/b{branch:05d}/t{place:03d}/g{generation}"
        rows = [(f"{folder}/part-{count:012d}.parquet".encode(), *entry) for count, entry in enumerate(held)]
        written.append(write_range_of(root, rows))
    return written


def _commit(
    core: Core,
    repository: repositories.ServedRepository,
    root: Path,
    branch: int,
    parent: str,
    held: dict[int, _Range],
    written: list[_Range],
) -> str:
    """Adds the next commits of the main branch with the ranges in `held`; returns the last commit."""
    before = branch * _COMMITS
    made_at = int((datetime.now(UTC) - AGE).timestamp()) + before
    for number in range(_COMMITS):
        held.update(((before * _REPLACED + brought) % _NAMED, written[brought]) for brought in _brought(number))
        rows = sorted((highest, id_.encode(), data) for highest, id_, data, _ in held.values())
        metarange_id = write_metarange(root, rows)
        described = commits.Description("bench", f"commit {before + number}", date=made_at + number)
        parent = commits.add(core, repository, described, metarange_id, (parent,), before + number + 2).id
    # The server answers for a path on each head, from which a sweep learns its spelling of addresses.
    highest, range_id, _, record = min(held.values())
    with core.database.transaction() as database:
        place = (metarange_id, 0, range_id, record[0], highest)
        database.execute("INSERT OR IGNORE INTO metaranges VALUES (?, ?, ?, ?, ?)", place)
        database.execute("INSERT OR IGNORE INTO range_records VALUES (?, ?, ?, ?)", (range_id, *record))
    return parent


def _brought(commit: int) -> range:
    return range(commit * _REPLACED, (commit + 1) * _REPLACED)
