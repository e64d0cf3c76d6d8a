"""Checks a repository: objects that live commits, branches and tags need must be stored, and metadata readable.

A run stops at the first file that it cannot read. The check uses the same readers, but records each problem and goes on
with the other files. Entries of ranges, staged addresses and the listing are joined by address once. Objects that seem
missing or different are then requested one by one: they may have been written after the listing.

The check deletes nothing, needs no lock, and stores no frames. The server writes the same files as for a run:
uncommitted data, a refs dump and, if there are retention rules, its list of commits. The check itself writes one note
about the uncommitted data, so that `expire_runs` removes that data.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Any, Generic

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.engine.port import Engine, R
from lakefs_gc_assets.collector.engine.work import spread, work_ahead
from lakefs_gc_assets.collector.incremental.earlier_runs import deleted_before
from lakefs_gc_assets.collector.incremental.gap_check import select_expired
from lakefs_gc_assets.collector.live import other_repositories
from lakefs_gc_assets.collector.live.hidden import staged_objects
from lakefs_gc_assets.collector.live.live_files import LiveFiles
from lakefs_gc_assets.collector.live.references import FILES_AHEAD, References
from lakefs_gc_assets.collector.records.tables import IdSet
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.survey import PLACES, Commits, Finding, FindingKind, Place, Problems, begin_reading
from lakefs_gc_assets.collector.universe.listing import Part, cut_large_parts, list_all, listing
from lakefs_gc_assets.errors import (
    CollectionError,
    CorruptFile,
    LakeFSError,
    LogLine,
    ObjectNotFound,
    StorageError,
    counted,
)
from lakefs_gc_assets.extensions.check import contents
from lakefs_gc_assets.extensions.check.contents import Checksum, Comparison
from lakefs_gc_assets.extensions.check.metadata import (
    DAMAGED,
    LEFT_OUT,
    LISTED,
    NEEDED,
    ROWS,
    damage_row,
    find_live,
    make_rows,
    number_of,
    read_entries,
)
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.addresses import AddressType
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX, WindowSize
from lakefs_gc_assets.storage.interface import ObjectStore, OpensStore, head_if_there

EVERYTHING = 2**62
"""Stands for all objects instead of a number: every content is read."""
_REPORTED = 20_000
"""Maximum rows collected about objects; an object gives a row for each range that holds it."""
_DIGESTS_ASKED = 1_000
_STAGED_LOOKED_AT = 10_000
"""Maximum changes of each branch whose sizes are compared."""
_METARANGES_SEARCHED = 2_000
_RANGES_SEARCHED = 500
_AT_ONCE = 16
_READERS = 4
_ROWS_OF_A_FILE = 250_000
_MD5 = r"^[0-9a-f]{32}$"

_SOUND, _COUNTED, _UNREAD, _NO_CHECKSUM = "sound", "counted", "unread", "no checksum"
JUDGED = pa.schema([pa.field("kind", pa.string()), *islice(ROWS, 1, None), pa.field("stored_etag", pa.string())])
"""Result of the comparison. `kind` is a value of FindingKind, or marks a row for `--deep`, or a count of objects."""
_GONE = "it is not in the object store"
_RESTORE_OBJECT = (
    "Put the object back under this address from a version of the bucket or a backup, or write the path anew on its "
    "branch"
)


@dataclass(frozen=True, slots=True)
class Checkup:
    """Result of a check. Times are in UTC.

    Attributes:
        entries: entries of all readable ranges, by the counts in metaranges.
        contents_read: number of objects whose content was read.
        unchecked: parts that could not be checked, with the reason.
        contents_without_checksum: number of objects read without a checksum to compare with.
    """

    repository: str
    storage_namespace: str
    started_at: datetime
    ended_at: datetime
    commits: int
    ranges: int
    entries: int
    contents_read: int
    findings: tuple[Finding, ...]
    unchecked: tuple[str, ...]
    contents_without_checksum: int = 0

    @property
    def is_damaged(self) -> bool:
        """True if anything that is needed is missing or wrong."""
        return any(finding.kind is not FindingKind.EXPIRED for finding in self.findings)

    @property
    def verdict(self) -> str:
        """The result in a line."""
        counts = Counter(finding.kind for finding in self.findings)
        words = ", ".join(f"{counts[kind]:,} {kind}" for kind in FindingKind if counts[kind])
        if self.is_damaged:
            return f"damaged: {words}"
        unchecked = ", but not everything could be checked" if self.unchecked else ""
        return f"whole{unchecked}{f'; {words}' if words else ''}"


def check(
    repository: OpenRepository, engine: Engine[R], note: LogLine, *, every_commit: bool = False, deep: int = 0
) -> Checkup:
    """Checks a repository, and its objects that the repositories of `also_live` need.

    Args:
        note: receives progress lines.
        every_commit: True to check expired commits as well.
        deep: number of objects whose content is read, chosen at random; EVERYTHING for all.
    Raises:
        CollectionError: the server or the store fails, so that nothing of the repository can be checked.
    """
    problems = Problems(note)
    step, files = begin_reading(repository, engine, problems, "fsck")
    around = other_repositories.find(repository)
    for other in around.nested:
        problems.findings.append(_shared(other, repository))
    if around.refusal and not repository.settings.allow_unknown_repositories:
        problems.skip(f"whether another repository is on this storage namespace: {around.refusal}")
    live = [find_live(step, repository, problems, every_commit)]
    for other_repository in repository.others:
        try:
            live.append(find_live(step, other_repository, problems, every_commit))
        except CollectionError as error:
            problems.skip(f"objects that repository {other_repository.facts.id} needs: {error}")
    for each in live:
        for metarange_id, detail in each.damaged.items():
            problems.unreadable(METADATA_PREFIX + metarange_id, detail, [*each.places(metarange_id)])
    ranges, entries = sum(len(each.records) for each in live), sum(each.records.entries for each in live)
    live_commits = sum(each.count for each in live)
    note(
        f"{counted(live_commits, 'live commits')}, {counted(ranges, 'ranges')} with {counted(entries, 'entries')}; "
        "each is read once"
    )
    staged, shown = _find_staged(step, problems)
    read = _Comparison(step, problems, live, shown).run(files, staged, deep)
    return Checkup(
        repository.facts.id,
        repository.namespace.uri,
        step.started_at,
        repository.clock.now(),
        live_commits,
        ranges,
        entries,
        read[_COUNTED],
        tuple(sorted(problems.findings, key=lambda finding: (list(FindingKind).index(finding.kind), finding.address))),
        tuple(problems.unchecked),
        read[_NO_CHECKSUM],
    )


def _shared(other: str, repository: OpenRepository) -> Finding:
    return Finding(
        FindingKind.SHARED,
        other,
        f"repository {other} has the same storage namespace as {repository.facts.id}, or one inside of the other",
        "Copy one of the two to a storage namespace of its own. Until then this one can be marked, not swept",
    )


def _find_staged(step: Step[R], problems: Problems) -> tuple[pa.Table, dict[str, list[Place]]]:
    """Objects of this namespace that branches show as staged (ROWS), and their places."""
    namespace = step.repository.namespace
    places: dict[str, list[Place]] = {}
    facts: list[tuple[str, int | None, str | None]] = []
    for repository in (step.repository, *step.repository.others):
        try:
            branches = repository.api.branches()
        except LakeFSError as error:
            problems.skip(f"sizes of objects staged in {repository.facts.id}: {error}")
            continue
        for branch in branches:
            place = Place(repository.facts.id, f"staged on branch {branch.id}")
            try:
                for stats in staged_objects(repository.api, branch.id, _STAGED_LOOKED_AT):
                    keys = namespace.live_keys(stats.physical_address, AddressType.FULL)
                    if len(keys) == 1 and not namespace.may_lie_elsewhere(stats.physical_address):
                        places.setdefault(keys[0], []).append(replace(place, path=stats.path))
                        facts.append((keys[0], stats.size, stats.checksum))
            except LakeFSError as error:
                problems.skip(f"sizes of objects {place.reference} of {repository.facts.id}: {error}")
    columns = [[each[place] for each in facts] for place in range(3)]
    addresses, sizes, etags = map(pa.array, columns, (pa.string(), pa.int64(), pa.string()))
    return make_rows(NEEDED, addresses, sizes, etags), places


def _read_uncommitted(files: LiveFiles, file: str) -> pa.Table:
    try:
        return make_rows(NEEDED, files.uncommitted(file, only_certain=True).column("address"))
    except CorruptFile as corrupt:
        return damage_row(corrupt)


def _list(opener: OpensStore, window_size: WindowSize, parts: Sequence[Part]) -> Iterator[pa.RecordBatch]:
    for batch in list_all(opener.open(), parts, window_size):
        yield from make_rows(LISTED, *(batch.column(name) for name in ("address", "size", "etag"))).to_batches()


def _judge(deep: int, rows: pa.Table) -> pa.Table:
    """Compares needed and listed objects (JUDGED), given all rows of each address.

    Args:
        deep: maximum rows of sound objects to return, chosen at random.
    """
    what = rows.column("what")
    stored, needed = (rows.filter(pc.equal(what, each)) for each in (LISTED, NEEDED))
    at = pc.index_in(needed.column("address"), value_set=stored.column("address").combine_chunks())
    size, etag, stored_etag = needed.column("size"), needed.column("etag"), stored.column("etag").take(at)
    is_other_content = pc.and_(_are_digests(etag, stored_etag), pc.not_equal(etag, stored_etag))
    is_wrong = {
        FindingKind.MISSING: pc.is_null(at),
        FindingKind.SIZE: pc.fill_null(pc.not_equal(size, stored.column("size").take(at)), False),
        FindingKind.CONTENT: pc.fill_null(is_other_content, False),
    }
    conditions = pc.make_struct(*(each.combine_chunks() for each in is_wrong.values()))
    kinds = pc.case_when(conditions, *(kind.value for kind in is_wrong))
    judged = _with_kind(pc.coalesce(kinds, _SOUND), needed, stored_etag)
    parts = [judged.filter(pc.is_valid(kinds))]
    if deep:
        sound = judged.filter(pc.and_(pc.is_null(kinds), pc.is_valid(size)))
        groups = [name for name in JUDGED.names if name != "range"]
        each_once = sound.group_by(groups).aggregate([("range", "min")]).rename_columns([*groups, "range"])
        parts.append(_choose(each_once.select(JUDGED.names), deep))
    damaged = rows.filter(pc.equal(what, DAMAGED))
    parts.append(_with_kind(pa.repeat(pa.scalar(FindingKind.METADATA.value), damaged.num_rows), damaged))
    if left_out := pc.sum(rows.column("size").filter(pc.equal(what, LEFT_OUT))).as_py():
        counted = [{"kind": _COUNTED, "address": "", "size": left_out}]
        parts.append(pa.Table.from_pylist(counted, schema=JUDGED))
    return pa.concat_tables(parts)


def _are_digests(*columns: pa.ChunkedArray) -> pa.ChunkedArray:
    """True for rows whose checksums all look like an MD5; null or False for others."""
    first, second = (pc.match_substring_regex(column, _MD5) for column in columns)
    return pc.and_(first, second)


def _with_kind(kinds: pa.Array, rows: pa.Table, stored_etags: pa.ChunkedArray | None = None) -> pa.Table:
    etags = pa.nulls(rows.num_rows, pa.string()) if stored_etags is None else stored_etags
    return pa.table([kinds, *rows.columns[1:], etags], schema=JUDGED)


def _choose(rows: pa.Table, count: int) -> pa.Table:
    """Up to `count` rows, chosen at random."""
    return rows.take(pa.array(np.random.default_rng().permutation(rows.num_rows)[:count]))


def _read_contents(opener: OpensStore, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Objects with wrong content (JUDGED); rows without an address are counts."""
    store = opener.open()
    for batch in batches:
        yield pa.RecordBatch.from_pylist(_read_together(store, batch.to_pylist()), schema=JUDGED)


def _read_together(store: ObjectStore, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    sound = ({**row, "kind": _SOUND, "detail": None} for row in rows)
    results = [*work_ahead(partial(_read_content, store), [*sound], _READERS)]
    counts = {
        _COUNTED: sum(row["kind"] != _UNREAD for row in results),
        _NO_CHECKSUM: sum(row["kind"] == _NO_CHECKSUM for row in results),
    }
    wrong = [row for row in results if row["detail"] is not None]
    return [*wrong, *({"kind": kind, "address": "", "size": count} for kind, count in counts.items())]


def _read_content(store: ObjectStore, row: dict[str, Any]) -> dict[str, Any]:
    """The row with the problem as its kind and detail; detail is null if there is none."""
    address, size = row["address"], row["size"]
    try:
        length, digest = contents.read_digest(store, address, size)
        if length != size:
            return {**row, "kind": FindingKind.SIZE.value, "detail": f"{counted(length, 'bytes')} can be read"}
        comparison, detail = contents.compare(store, address, size, row["etag"], digest)
    except ObjectNotFound:
        return {**row, "kind": FindingKind.MISSING.value, "detail": ""}
    except StorageError as error:
        return {**row, "kind": _UNREAD, "detail": str(error)}
    if comparison is Comparison.OTHER:
        return {**row, "kind": FindingKind.CONTENT.value, "detail": detail}
    if comparison is Comparison.UNKNOWN:
        return {**row, "kind": _UNREAD, "detail": detail}
    return {**row, "kind": _NO_CHECKSUM} if comparison is Comparison.NO_CHECKSUM else row


@dataclass(frozen=True)
class _Comparison(Generic[R]):
    """Compares needed with stored objects.

    Attributes:
        staged_at: places where branches show staged objects, by address.
    """

    step: Step[R]
    problems: Problems
    live: Sequence[Commits]
    staged_at: Mapping[str, Sequence[Place]]

    def run(self, files: Sequence[str], staged: pa.Table, deep: int) -> Counter[str]:
        """Records missing and wrong objects; returns how many contents were read, and how many had no checksum.

        Args:
            files: files of uncommitted data.
            staged: objects that branches show as staged (ROWS).
        """
        engine, entries = self.step.engine, sum(each.records.entries for each in self.live)
        count = 2 * entries + staged.num_rows + len(files) * _ROWS_OF_A_FILE
        judged = engine.map_by_address(self._rows(files, staged), partial(_judge, deep), JUDGED, count)
        with engine.cached(judged, at_most=count) as rows:
            suspects = engine.collect(
                engine.where_among(rows, "kind", (FindingKind.MISSING, FindingKind.SIZE)), _REPORTED + 1
            )
            digests = engine.collect(engine.where_among(rows, "kind", (FindingKind.CONTENT,)), _DIGESTS_ASKED + 1)
            others = engine.collect(engine.where_among(rows, "kind", (FindingKind.METADATA, _COUNTED))).to_pylist()
            read = self._read_contents(rows, deep).to_pylist() if deep else []
        if suspects.num_rows > _REPORTED:
            self.problems.skip(f"more missing or wrong objects than the first {_REPORTED:,} rows about them")
        if digests.num_rows > _DIGESTS_ASKED:
            self.problems.skip(f"more objects of another MD5 than the first {_DIGESTS_ASKED:,} rows about them")
        if left_out := sum(row["size"] for row in others if row["kind"] == _COUNTED):
            self.problems.log(
                f"{counted(left_out, 'entries are')} not compared: their objects lie outside of the storage namespace, "
                "or their address can mean several objects"
            )
        confirmed, in_doubt = self._confirm([*suspects.to_pylist(), *digests.to_pylist()], deep)
        read += _read_together(self.step.repository.store, in_doubt)
        counts = Counter[str]()
        for row in read:
            if row["kind"] == _UNREAD:
                self.problems.skip(f"content of {row['address']}: {row['detail']}")
            elif row["kind"] in (_COUNTED, _NO_CHECKSUM):
                counts[row["kind"]] += row["size"]
            else:
                confirmed.append(row)
        self._record(confirmed, others)
        return counts

    def _rows(self, files: Sequence[str], staged: pa.Table) -> R:
        """The input of the comparison (ROWS)."""
        step, engine, opener = self.step, self.step.engine, self.step.repository.opener
        window_size = step.plan.slice_window
        store, never = step.repository.store, datetime.max.replace(tzinfo=UTC)
        parts = cut_large_parts(store, listing(store, never, window_size=window_size), window_size)
        groups = [[group] for group in spread(parts, step.tasks(step.repository.settings.listing_partitions))]
        listed = engine.read(groups, partial(_list, opener, window_size), ROWS)
        prepared = References.from_step(step).of_each(files, _read_uncommitted, ROWS)
        entries = [
            References.from_step(step, each.repository).of_ranges(each.records, read_entries, ROWS)
            for each in self.live
        ]
        return engine.union(listed, engine.table(staged), prepared, *entries)

    def _read_contents(self, judged: R, deep: int) -> pa.Table:
        engine = self.step.engine
        rows = engine.where_among(judged, "kind", (_SOUND,))
        if deep < EVERYTHING:
            rows = engine.table(_choose(engine.collect(rows), deep))
        read = partial(_read_contents, self.step.repository.opener)
        return engine.collect(engine.map_batches(engine.spread(rows), read, JUDGED))

    def _confirm(self, rows: Sequence[dict[str, Any]], deep: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Requests suspect objects one by one; returns rows about those still missing or different, with their kind.

        Args:
            deep: contents are read unless 0.
        Returns:
            These rows, and rows about objects whose content must be read, since the store's facts do not decide.
        """
        addresses = sorted({row["address"] for row in rows})
        store = self.step.repository.store
        facts = dict(zip(addresses, work_ahead(partial(head_if_there, store), addresses, _AT_ONCE), strict=True))
        confirmed, in_doubt, incomparable, of_parts = list[dict[str, Any]](), dict[Any, dict[str, Any]](), 0, set[str]()
        for row in rows:
            stored, checksum = facts[row["address"]], Checksum.parse(row["etag"])
            if stored is None:
                confirmed.append({**row, "kind": FindingKind.MISSING, "detail": ""})
            elif row["size"] is not None and row["size"] != stored.size:
                detail = f"it has {counted(stored.size, 'bytes')}"
                confirmed.append({**row, "kind": FindingKind.SIZE, "detail": detail})
            elif deep:
                # One row is enough: an object has one for each range that holds it.
                in_doubt.setdefault((row["address"], row["etag"]), {**row, "size": stored.size})
            elif stored.md5 is None:
                incomparable += row["kind"] == FindingKind.CONTENT
            elif checksum is None or checksum.parts is not None or checksum.fits(stored.md5):
                continue
            elif stored.size <= contents.SMALLEST_PART:
                detail = f"the MD5 of its content is {stored.md5}, its entry says {row['etag']}"
                confirmed.append({**row, "kind": FindingKind.CONTENT, "detail": detail})
            else:
                of_parts.add(row["address"])
        if incomparable:
            self.problems.log("the store does not report the MD5 of every object: --deep reads the content")
        if of_parts:
            self.problems.skip(
                f"content of {counted(len(of_parts), 'objects')}, such as {min(of_parts)}: the MD5 is not the checksum "
                "of the entry, which may be the sum of the parts of an upload. --deep reads them"
            )
        return confirmed, [*in_doubt.values()]

    def _record(self, wrong: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]]) -> None:
        """Records findings about objects, and about unreadable ranges and other files, with their places."""
        damaged = {row["address"]: row for row in others if row["kind"] == FindingKind.METADATA}
        addresses: dict[int, set[str]] = {}
        for row in (*wrong, *damaged.values()):
            if row["range"] is not None:
                addresses.setdefault(row["range"], set()).add(row["address"])
        places: dict[str, list[Place]] = {address: [*staged] for address, staged in self.staged_at.items()}
        for live in self.live:
            for address, place in self._find_places(live, addresses, damaged.keys()):
                places.setdefault(address, []).append(place)
        for address, row in damaged.items():
            self.problems.unreadable(address, row["detail"], places.get(address, ()))
        missing = [row for row in wrong if row["kind"] == FindingKind.MISSING]
        remedies = self._find_remedies(sorted({row["address"] for row in missing}))
        expired = [row for row in missing if remedies[row["address"]][0] is FindingKind.EXPIRED]
        for address in self._held_by_heads(expired):
            # An unreadable branch is damage, even if the object expired by the rules.
            remedies[address] = (FindingKind.MISSING, *remedies[address][1:])
        # An object has a row for each range that holds it.
        findings = dict[Finding, None]()
        for row in wrong:
            kind, detail, remedy = FindingKind(row["kind"]), row["detail"], _RESTORE_OBJECT
            if kind is FindingKind.MISSING:
                kind, detail, remedy = remedies[row["address"]]
            elif kind is FindingKind.SIZE:
                detail = f"{detail}, its entry says {row['size']:,}"
            elif kind is not FindingKind.CONTENT:
                raise ValueError(f"no comparison of an object with its entry finds {kind.value}")
            needed_at = tuple(dict.fromkeys(places.get(row["address"], ())))
            findings[Finding(kind, row["address"], detail, remedy, needed_at[:PLACES])] = None
        self.problems.findings.extend(findings)

    def _held_by_heads(self, rows: Sequence[dict[str, Any]]) -> set[str]:
        """The addresses of rows that branch heads hold or that are staged."""
        of_heads = set[int]()
        for live in self.live if rows else ():
            files = LiveFiles(live.repository.store, self.step.repository.namespace, self.step.plan.slice_window)
            heads = sorted({*live.heads}.intersection(live.metarange_ids))
            for ranges in work_ahead(files.metarange, heads, FILES_AHEAD):
                of_heads.update(map(number_of, ranges.column("id").to_pylist()))
        return {row["address"] for row in rows if row["range"] is None or row["range"] in of_heads}

    def _find_places(
        self, live: Commits, addresses: Mapping[int, Collection[str]], damaged: Collection[str]
    ) -> Iterator[tuple[str, Place]]:
        """Paths and commits at which a repository needs addresses, and commits that need damaged ranges.

        Args:
            addresses: needed addresses by number of the range that holds them.
        """
        wanted = islice((record for record in live.records if number_of(record.id) in addresses), _RANGES_SEARCHED)
        records = {record.id: record for record in wanted}
        if not records:
            return
        files = LiveFiles(live.repository.store, self.step.repository.namespace, self.step.plan.slice_window)
        references: dict[str, list[Place]] = {range_id: [] for range_id in records}
        searched = live.metarange_ids[:_METARANGES_SEARCHED]
        for metarange_id, ranges in zip(searched, work_ahead(files.metarange, searched, FILES_AHEAD), strict=True):
            for range_id in references.keys() & set(ranges.column("id").to_pylist()):
                if len(references[range_id]) < PLACES:
                    references[range_id] += live.places(metarange_id)
        for range_id, record in records.items():
            key = METADATA_PREFIX + range_id
            if key in damaged:
                yield from ((key, place) for place in references[range_id])
                continue
            paths = files.folders(record, whole_paths=True)
            held = pc.is_in(paths.column("address"), pa.array(sorted(addresses[number_of(range_id)])))
            for row in paths.filter(held).to_pylist():
                path = row["folder"].decode("utf-8", "replace")
                yield from ((row["address"], replace(place, path=path)) for place in references[range_id])

    def _find_remedies(self, missing: Sequence[str]) -> dict[str, tuple[FindingKind, str, str]]:
        """Kind, detail and remedy of each missing object, by its known history."""
        answers = dict.fromkeys(missing, (FindingKind.MISSING, f"{_GONE}; no run deleted it", _RESTORE_OBJECT))
        if not missing:
            return answers
        store = self.step.repository.store
        try:
            answers |= self._find_deleted(missing)
        except CorruptFile as damage:
            self.problems.skip(f"whether earlier runs deleted the missing objects: {damage}")
        try:
            folders = store.list_level(layout.QUARANTINE_PREFIX).prefixes
        except StorageError as error:
            folders = ()
            self.problems.skip(f"whether missing objects are in quarantine: {error}")
        for folder in folders:
            try:
                copies = {key.removeprefix(folder) for batch in store.list(folder) for key in batch["key"].to_pylist()}
            except StorageError as error:
                self.problems.skip(f"whether missing objects are in {folder}: {error}")
                continue
            for address in answers.keys() & copies:
                run_id, _ = layout.parse_copy(folder)
                answers[address] = (
                    FindingKind.QUARANTINED,
                    f"run {run_id} moved it to quarantine, and it is referenced",
                    f"`lakefs-gc restore {run_id} --address {address}` brings it back",
                )
        return answers

    def _find_deleted(self, missing: Sequence[str]) -> dict[str, tuple[FindingKind, str, str]]:
        """Kind, detail and remedy of objects that earlier runs deleted. Raises CorruptFile."""
        engine = self.step.engine
        rows = engine.table(pa.table({"address": pa.array(missing, pa.string())}))
        deleted = engine.collect(engine.distinct(engine.among_exactly(deleted_before(self.step), rows)))
        if not deleted.num_rows:
            return {}
        answers = {
            address: (
                FindingKind.MISSING,
                f"{_GONE}: an earlier run deleted it",
                f"`lakefs-gc explain {address}` names the run; `lakefs-gc restore RUN --address {address}` restores it "
                "if the bucket keeps versions. Otherwise restore it from a backup",
            )
            for address in deleted.column("address").to_pylist()
        }
        read = partial(IdSet, [metarange_id for each in self.live for metarange_id in each.metarange_ids])
        expired = engine.collect(select_expired(self.step, engine.table(deleted), deleted.num_rows, read))
        for address in expired.column("address").to_pylist():
            answers[address] = (
                FindingKind.EXPIRED,
                f"{_GONE}: it had expired by the rules when an earlier run deleted it, and is referenced again",
                "Make branches from commits that have not expired, and delete this one or its path; `lakefs-gc policy "
                "show` shows the rules",
            )
        return answers
