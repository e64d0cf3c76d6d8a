"""Reads the metadata of live commits; records unreadable files instead of stopping at them."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector import commits
from lakefs_gc_assets.collector.commits import Dump, IncompleteDump
from lakefs_gc_assets.collector.engine.port import R
from lakefs_gc_assets.collector.live.live_files import LiveFiles
from lakefs_gc_assets.collector.live.references import References
from lakefs_gc_assets.collector.records.tables import IdSet
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.survey import Commits, Place, Problems, read_commits, read_named
from lakefs_gc_assets.errors import AccessDenied, CorruptFile, LakeFSError, NotFound, NotSupported, counted
from lakefs_gc_assets.lakefs.api.models import Commit
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.lakefs.formats.refs import CommitColumns
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX

LISTED, NEEDED, DAMAGED, LEFT_OUT = range(4)
"""Kinds of rows (ROWS): a listed object, a needed address, an unreadable file, or a number of entries (in `size`)
without a certain address."""
ROWS = pa.schema(
    [
        pa.field("what", pa.int64()),
        pa.field("address", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("etag", pa.string()),
        pa.field("range", pa.int64()),
        pa.field("detail", pa.string()),
    ]
)
"""Input of the comparison. `range` is the beginning of a range's id as a number; null for rows outside of ranges."""


def find_live(step: Step[R], repository: OpenRepository, problems: Problems, every_commit: bool) -> Commits:
    """Finds the live commits of a repository and the ranges of their metaranges; records unreadable files.

    Metaranges of branch heads are read first, then the newest.
    """
    retained, is_complete = None, True
    try:
        dump, retained = read_commits(step, repository, by_rules=not every_commit)
    except (AccessDenied, NotFound, NotSupported, IncompleteDump) as refusal:
        problems.skip(f"commits of {repository.facts.id} that no branch or tag names, without a refs dump: {refusal}")
        is_complete = False
    except CorruptFile as damage:
        problems.unreadable(damage.file, f"{damage.check}: {damage.detail}")
        problems.skip(f"commits of {repository.facts.id} that no branch or tag names, since {damage.file} is damaged")
        is_complete = False
    if not is_complete:
        dump = _ask_for_heads(repository, problems)
    late, stays = (retained.late, retained.flags) if retained else ({}, None)
    live = dump.live(stays)
    heads, named = [*live.heads.values(), *dump.compacted], [*late.values(), *reversed(live.metarange_ids)]
    found = Commits.with_ranges(step, repository, dump, live.commits + len(late), late, named, heads)
    if is_complete and repository is step.repository and repository.settings.keep_unnamed_ranges:
        expired = [] if stays is None else commits.distinct_metaranges(dump.commits, ~stays).to_pylist()
        _check_unnamed(References.from_step(step), found, sorted({*expired}.difference(heads, named)), problems)
    return found


def _ask_for_heads(repository: OpenRepository, problems: Problems) -> Dump:
    """The server's answers about branches and tags one by one, in place of a refs dump."""
    api, clock = repository.api, repository.clock
    started_at, named, fetched = clock.now(), list[dict[str, str]](), dict[str, Commit]()
    for kind, references in (("branch", api.branches()), ("tag", api.tags())):
        named.append({})
        for reference in references:
            try:
                fetched[reference.commit_id] = fetched.get(reference.commit_id) or api.commit(reference.commit_id)
                named[-1][reference.id] = reference.commit_id
            except NotFound as missing:
                place = Place(repository.facts.id, f"{kind} {reference.id}", reference.commit_id)
                problems.unreadable(f"commit {reference.commit_id}", f"the server does not know it: {missing}", [place])
            except LakeFSError as error:
                problems.skip(f"objects that {kind} {reference.id} of {repository.facts.id} needs: {error}")
    columns = CommitColumns.from_commits([*fetched.values()])
    return Dump(started_at, clock.now(), columns, named[0], named[1], 0)


def _check_unnamed(references: References[R], live: Commits, expired: Sequence[str], problems: Problems) -> None:
    """Reads the metadata that a run reads beside live commits: metaranges of expired commits, and unnamed files."""
    records, damaged = read_named(references, LiveFiles.metarange, expired)
    known = live.records.ids | records.ids | IdSet([*live.metarange_ids, *live.damaged, *expired, *live.dump.tables])
    sizes = commits.list_ids(live.repository.store, known)
    unnamed, strange = read_named(references, LiveFiles.unnamed, [*sizes.items()])
    rows = references.of_ranges(unnamed.without(known), _only_damage, ROWS)
    strange |= {row["address"]: row["detail"] for row in references.engine.collect(rows).to_pylist()}
    for name, detail in damaged.items():
        problems.unreadable(METADATA_PREFIX + name, f"{detail}; only expired commits name it")
    for name, detail in strange.items():
        problems.unreadable(METADATA_PREFIX + name.removeprefix(METADATA_PREFIX), detail)


def make_rows(
    what: int, addresses: pa.StringArray, sizes: pa.Array | None = None, etags: pa.Array | None = None, range_: int = 0
) -> pa.Table:
    """Rows of one kind (ROWS).

    Args:
        range_: number of the range that names the addresses; 0 for none.
    """
    count = len(addresses)
    columns = [
        pa.repeat(pa.scalar(what, pa.int64()), count),
        addresses,
        pa.nulls(count, pa.int64()) if sizes is None else sizes,
        pa.nulls(count, pa.string()) if etags is None else etags,
        pa.repeat(pa.scalar(range_ or None, pa.int64()), count),
        pa.nulls(count, pa.string()),
    ]
    return pa.table(columns, schema=ROWS)


def number_of(range_id: str) -> int:
    """The beginning of a range's id, as a number: it takes little space beside each entry."""
    return int(range_id[:15], 16)


def damage_row(corrupt: CorruptFile, record: RangeRecord | None = None) -> pa.Table:
    """A row (ROWS) about an unreadable file, which may be a range."""
    detail = f"{corrupt.check}: {corrupt.detail}"
    if record is not None:
        first, last = (key.decode("utf-8", "replace") for key in (record.min_key, record.max_key))
        detail += f". It holds {counted(record.count, 'entries')}, from {first} to {last}"
    row = {"what": DAMAGED, "address": corrupt.file, "detail": detail, "range": record and number_of(record.id)}
    return pa.Table.from_pylist([row], schema=ROWS)


def read_entries(files: LiveFiles, record: RangeRecord) -> pa.Table:
    """Entries of a range (ROWS), or a row about its damage."""
    try:
        entries, left_out = files.sized(record)
    except CorruptFile as corrupt:
        return damage_row(corrupt, record)
    address, size, etag = entries.columns
    rows = make_rows(NEEDED, address, size, etag, number_of(record.id))
    if not left_out:
        return rows
    return pa.concat_tables([rows, make_rows(LEFT_OUT, pa.array([""]), pa.array([left_out], pa.int64()))])


def _only_damage(files: LiveFiles, record: RangeRecord) -> pa.Table:
    rows = read_entries(files, record)
    return rows.filter(pc.equal(rows.column("what"), DAMAGED))
