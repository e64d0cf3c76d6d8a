"""A few temporary changes of a generated repository between two runs: new objects, commits, and garbage."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.compute as pc

from benchmarks.repositories import (
    BORN,
    REPOSITORY,
    SMALLEST,
    addresses_of_slice,
    describe_by,
    make_files,
    objects_folder,
    server_of,
    write_metarange,
    write_range,
    written,
)
from benchmarks.shapes import Shape
from lakefs_gc_assets.extensions.playground.embedded import branches, commits, formats, repositories
from lakefs_gc_assets.extensions.playground.embedded.commits import ServedCommit
from lakefs_gc_assets.extensions.playground.embedded.core import Core
from lakefs_gc_assets.lakefs.formats import ranges
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX

OBJECTS = 1_000
COMMITS = 10
GARBAGE = 100
ALIKE = 10
"""Garbage objects with the size of a committed object, each in another range; the others match no size."""
_HOURS = 48
_DATABASE = "metadata.sqlite"


@contextmanager
def changed(folder: Path, shape: Shape) -> Iterator[list[Path]]:
    """Adds objects, in commits of the main branch, and garbage for the duration of the block; yields the garbage.

    If this is interrupted, the repository is made again the next time.
    """
    database, kept = folder / "lakefs" / _DATABASE, folder / _DATABASE
    (folder / "complete").unlink()
    shutil.copyfile(database, kept)
    root = objects_folder(folder)
    names = addresses_of_slice(_HOURS, BORN, OBJECTS + GARBAGE)
    made = [root / name for name in names]
    make_files(root, names, written())
    garbage = made[OBJECTS:]
    with server_of(folder, shape) as server:
        sizes = [_smallest(root, part) for part in _spread(_ranges_of(root, _head(server.core)))]
        for place, file in enumerate(garbage):
            _grow(file, sizes[place % len(sizes)] if place < ALIKE else SMALLEST - 1 - place)
        made += _commit(server.core, root, shape, names[:OBJECTS])
    yield garbage
    for file in made:
        file.unlink(missing_ok=True)
    kept.replace(database)
    (folder / "complete").touch()


def _grow(file: Path, size: int) -> None:
    """Sets the size of an empty file without writing bytes, and keeps its times."""
    times = file.stat()
    os.truncate(file, size)
    os.utime(file, (times.st_atime, times.st_mtime))


def _head(core: Core) -> ServedCommit:
    repository = repositories.get(core, REPOSITORY)
    return commits.get(core, repository, branches.get(core, repository, "main").commit_id)


def _ranges_of(root: Path, commit: ServedCommit) -> list[RangeRecord]:
    key = METADATA_PREFIX + commit.metarange_id
    return [*ranges.read_metarange((root / key).read_bytes(), key)]


def _spread(parts: list[RangeRecord]) -> list[RangeRecord]:
    """At most ALIKE ranges, starting with the first, at equal distances."""
    return parts[:: max(1, len(parts) // ALIKE)][:ALIKE]


def _smallest(root: Path, part: RangeRecord) -> int:
    """The size of the smallest object of a range: objects of this size may be read to compute their MD5."""
    key = METADATA_PREFIX + part.id
    size: int = pc.min(ranges.read_range((root / key).read_bytes(), key).sizes).as_py()
    return size


def _commit(core: Core, root: Path, shape: Shape, names: list[str]) -> list[Path]:
    """Adds commits with one new range each to the main branch; returns the written files."""
    repository, head = repositories.get(core, REPOSITORY), _head(core)
    held = [
        (
            part.max_key,
            part.id.encode(),
            formats.range_data(part.min_key, part.max_key, part.estimated_size, part.count),
        )
        for part in _ranges_of(root, head)
    ]
    made, each = [], len(names) // COMMITS
    with core.database.transaction() as database:
        first = database.execute("SELECT * FROM metaranges WHERE id = ?", (head.metarange_id,)).fetchone()
        for number in range(COMMITS):
            part = names[number * each : (number + 1) * each]
            highest, range_id, data, _ = write_range(root, part, shape.objects + number * each, describe_by(shape))
            held.append((highest, range_id.encode(), data))
            metarange_id = write_metarange(root, held)
            made += [root / METADATA_PREFIX / range_id, root / METADATA_PREFIX / metarange_id]
            moment = head.creation_date + 1 + number
            described = commits.Description("bench", f"change {number}", date=moment)
            head = commits.add(core, repository, described, metarange_id, (head.id,), head.generation + 1)
            database.execute("INSERT OR IGNORE INTO metaranges VALUES (?, ?, ?, ?, ?)", (metarange_id, *first[1:]))
        database.execute("UPDATE branches SET commit_id = ? WHERE id = 'main'", (head.id,))
    return made
