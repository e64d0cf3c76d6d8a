"""Finds every address that commits and branches have, or had, at given paths, and everything that still holds it.

Paths are matched against the entries of all commits that the server knows, expired ones included, and against the
entries that branches show as staged. All ranges are then read again by address, since other paths, branches, tags and
repositories may hold the same objects.

The search deletes nothing and needs no lock. Its result is shown and approved. The run that deletes the objects finds
everything live by itself.
"""

import hashlib
import json
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import chain, islice
from typing import Any, Generic

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector import commits
from lakefs_gc_assets.collector.engine.port import Engine, R
from lakefs_gc_assets.collector.live.hidden import staged_objects
from lakefs_gc_assets.collector.live.live_files import PLACED, LiveFiles, RangeRecords
from lakefs_gc_assets.collector.live.references import References, find_unnamed
from lakefs_gc_assets.collector.records.tables import IdSet
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.retention.retention import NO_RULES, Retention
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.survey import Commits, HolderKind, Problems, begin_reading, read_commits
from lakefs_gc_assets.errors import CollectionError, ConfigurationError, CorruptFile, LogLine, counted
from lakefs_gc_assets.extensions.erasure.remains import Remains, look
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.addresses import AddressType, parse_location, parse_wildcards
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX

MOST_ADDRESSES = 20_000
"""Maximum addresses of one erasure: its plan lists every address."""
_COMMITS_NAMED = 5
"""Maximum commits described for each address and path."""
_PLACED = pa.schema(
    [
        *PLACED,
        pa.field("range", pa.string()),
        pa.field("detail", pa.string()),
    ]
)
"""Entries of ranges. The address is null if the object lies elsewhere or the range is unreadable; see `detail`."""
_NAMING = pa.schema([pa.field("metarange", pa.string()), pa.field("range", pa.string())])
Content = tuple[str, int]
"""Checksum and size in bytes of an entry."""
_HINTS = 100
"""Maximum possible copies described in sentences; the rest are counted."""


@dataclass(frozen=True)
class Selection:
    """The paths requested for erasure.

    Attributes:
        by_asked: parsed paths and patterns by requested text.
        exact: paths without wildcards.
        patterns: literal prefixes of the patterns, and regular expressions that match whole paths.
    """

    by_asked: Mapping[str, bytes | re.Pattern[bytes]]
    exact: frozenset[bytes]
    patterns: tuple[tuple[bytes, re.Pattern[bytes]], ...]

    @classmethod
    def parse(cls, repository: str, asked: Iterable[str]) -> "Selection":
        """Parses `lakefs://REPOSITORY/PATH`. A path that ends with a slash selects everything below it.

        For wildcards, see `parse_wildcards`.

        Raises ConfigurationError: no path is given, or a path names another repository or is empty.
        """
        by_asked: dict[str, bytes | re.Pattern[bytes]] = {}
        patterns = list[tuple[bytes, re.Pattern[bytes]]]()
        for each in dict.fromkeys(asked):
            location = parse_location(each)
            if location is None or location.kind != "lakefs" or location.bucket != repository or not location.key:
                raise ConfigurationError(f"{each!r} is no lakefs://{repository}/PATH, without a branch")
            path = location.key
            literal, pattern = parse_wildcards(path)
            is_folder = path.endswith("/")
            if not pattern and not is_folder:
                by_asked[each] = literal.encode()
            else:
                whole = (pattern or re.escape(literal)) + (".*" if is_folder else "")
                by_asked[each] = compiled = re.compile(whole.encode(), re.DOTALL)
                patterns.append((literal.encode(), compiled))
        if not by_asked:
            raise ConfigurationError("no path is given")
        exact = frozenset(path for path in by_asked.values() if isinstance(path, bytes))
        return cls(by_asked, exact, tuple(patterns))

    @property
    def asked(self) -> tuple[str, ...]:
        """The paths as requested."""
        return tuple(self.by_asked)

    def list_unmatched(self, found: Iterable[str], branches: Collection[str]) -> Iterator[str]:
        """Requested paths that match no found path, each with a hint if there is one."""
        paths = {path.encode() for path in found}
        for asked, path in self.by_asked.items():
            if path in paths if isinstance(path, bytes) else any(map(path.fullmatch, paths)):
                continue
            location = parse_location(asked)
            assert location is not None
            branch, _, rest = location.key.partition("/")
            forms = {unicodedata.normalize("NFC", asked), unicodedata.normalize("NFD", asked)}
            if branch in branches and rest:
                yield f"{asked}: {branch} is a branch, and a PATH has none: give lakefs://{location.bucket}/{rest}"
            elif len(forms) > 1:
                yield f"{asked}: Unicode has two forms of it, which are two paths in lakeFS: give both (NFC and NFD)"
            else:
                yield asked

    def may_be_among(self, records: RangeRecords) -> RangeRecords:
        """The ranges that may contain a selected path, judged by their first and last path."""
        exact = sorted(self.exact)

        def may_have(first: bytes, last: bytes) -> bool:
            place = bisect_left(exact, first)
            if place < len(exact) and exact[place] <= last:
                return True
            return any(begin <= last and first[: len(begin)] <= begin for begin, _ in self.patterns)

        bounds = zip(*(records.rows.column(name).to_pylist() for name in ("min_key", "max_key")), strict=True)
        return RangeRecords(records.rows.filter(pa.array([may_have(*each) for each in bounds], pa.bool_())))

    def chooses(self, paths: pa.BinaryArray) -> pa.BooleanArray:
        """True for selected paths."""
        chosen = pc.is_in(paths, value_set=pa.array(sorted(self.exact), pa.binary()))
        for begin, pattern in self.patterns:
            at = pc.indices_nonzero(pc.starts_with(paths, begin))
            matches = pa.array([pattern.fullmatch(path) is not None for path in paths.take(at).to_pylist()], pa.bool_())
            chosen = pc.or_(chosen, pc.is_in(pa.array(range(len(paths)), at.type), value_set=at.filter(matches)))
        return chosen


_REMEDIES = {
    HolderKind.BRANCH: "delete the path on branch {name} of {repository} and commit: lakectl fs rm lakefs://{repository}/"
    "{name}/PATH",
    HolderKind.TAG: "delete tag {name} of {repository}, once it is not needed: lakectl tag delete "
    "lakefs://{repository}/{name}",
    HolderKind.COMMIT: "let the live commits of {repository} expire: shorten their retention rule, which "
    "`lakefs-gc policy show` shows, or wait",
    HolderKind.STAGED: "reset or delete the path on branch {name} of {repository}: lakectl branch reset "
    "lakefs://{repository}/{name} --object PATH",
    HolderKind.UNCOMMITTED: "commit or reset staged data of {repository}: uncommitted data names the object, and no "
    "branch shows where",
    HolderKind.RANGE: "wait, or look at collection.keep_unnamed_ranges: range {name} holds it, which no commit names",
}


_WITHOUT_RULES = (
    "set retention rules of {repository} first, since without any its commits never expire: `lakefs-gc policy "
    "set-default` does"
)
_OLD_COMMITS = ". Earlier commits hold it until they expire"
_COUNTED_AS_A_WHOLE = (
    "remove {repository} from collection.also_live of {own} once it needs no objects of {own} any more. While it is "
    "listed there, all of its commits count, regardless of its retention rules"
)


@dataclass(frozen=True, slots=True)
class EntryHolder:
    """A branch, tag, commit or range that holds an address.

    Attributes:
        name: name or id of the branch, tag, commit or range; empty for uncommitted data.
        path: path of the address; empty if unknown.
        why: reason a commit counts as live.
    """

    repository: str
    by: HolderKind
    name: str
    path: str
    why: str = ""

    def remedies(self, own: str) -> Iterator[str]:
        """Steps that must be taken before the repository `own` can erase the address."""
        is_other = self.repository != own
        if self.by is HolderKind.COMMIT and not is_other:
            remedy = _WITHOUT_RULES if self.why == NO_RULES else _REMEDIES[self.by]
            yield remedy.format(repository=self.repository)
        elif self.by is not HolderKind.COMMIT:
            remedy = _REMEDIES[self.by].format(name=self.name, repository=self.repository)
            yield remedy + (_OLD_COMMITS if self.by is HolderKind.BRANCH and not is_other else "")
        if is_other and self.by in (HolderKind.BRANCH, HolderKind.TAG, HolderKind.COMMIT):
            yield _COUNTED_AS_A_WHOLE.format(repository=self.repository, own=own)

    def __str__(self) -> str:
        name, why = f" {self.name}" if self.name else "", f": {self.why}" if self.why else ""
        return f"{self.by}{name} of {self.repository}{f', path {self.path}' if self.path else ''}{why}"


@dataclass(frozen=True, slots=True)
class Held:
    """An address that is, or was, at a requested path.

    Attributes:
        paths: the requested paths at which it is or was.
        holders: everything that still holds it; of commits only the newest.
        remains: the object, copies and versions in the store.
    """

    address: str
    paths: tuple[str, ...]
    holders: tuple[EntryHolder, ...]
    remains: Remains


@dataclass(frozen=True, slots=True)
class SameContent:
    """An entry at another path and address with the checksum and size of an object to be erased.

    Attributes:
        of: an address to be erased that has the same content.
        address: as stored, if it lies outside the storage namespace.
    """

    of: str
    repository: str
    path: str
    address: str

    def __str__(self) -> str:
        return (
            f"{self.path} of {self.repository} has, or had, the checksum and the size of {self.of}, so it may be a "
            f"copy. It is another object, {self.address}, and is not erased unless its path is asked for as well"
        )


@dataclass(frozen=True, slots=True)
class ErasureFindings:
    """Addresses at the requested paths. Times are in UTC.

    Attributes:
        asked: the paths as requested.
        commits, ranges, entries: numbers read, in all repositories that count.
        elsewhere: paths whose objects lie outside the storage namespace, or whose address is ambiguous.
        unmatched: requested paths that never had an object, some with a hint.
        unread: metadata files that could not be read, with the reason. Their entries are unknown.
        unchecked: other checks that failed. Nothing is erased if there are any.
        same_content: committed or staged entries that may be copies. They are hints; the digest does not cover them.
    """

    repository: str
    storage_namespace: str
    asked: tuple[str, ...]
    started_at: datetime
    ended_at: datetime
    commits: int
    ranges: int
    entries: int
    addresses: tuple[Held, ...]
    elsewhere: tuple[str, ...]
    unmatched: tuple[str, ...]
    unread: tuple[str, ...]
    unchecked: tuple[str, ...]
    same_content: tuple[SameContent, ...]

    @property
    def gaps(self) -> tuple[str, ...]:
        """Sentences about data at the paths that may remain even if every address found is gone."""
        return (
            *(
                f"not erased: {path} has an object outside of the storage namespace, such as an import, or its address "
                "is not certain. lakeFS may still serve it: delete the path on every branch, and the object where it is"
                for path in self.elsewhere
            ),
            *(f"not read: {what}" for what in self.unread),
            *(f"not checked: {what}" for what in self.unchecked),
        )

    @property
    def hints(self) -> tuple[str, ...]:
        """Sentences about possible copies."""
        more = len(self.same_content) - _HINTS
        rest = (f"{counted(more, 'further entries')} with such a checksum and size",) if more > 0 else ()
        return (*map(str, self.same_content[:_HINTS]), *rest)

    @property
    def erasable(self) -> tuple[Held, ...]:
        """Addresses without a known holder."""
        return tuple(each for each in self.addresses if not each.holders)

    @property
    def quarantined_by(self) -> tuple[str, ...]:
        """Runs that have copies of erasable objects in quarantine."""
        copies = (copy for each in self.erasable for copy in each.remains.copies)
        return tuple(sorted({layout.parse_copy(copy)[0] for copy in copies}))

    @property
    def remedies(self) -> tuple[str, ...]:
        """Distinct steps that must be taken first."""
        holders = dict.fromkeys(holder for each in self.addresses for holder in each.holders)
        return tuple(dict.fromkeys(remedy for holder in holders for remedy in holder.remedies(self.repository)))

    @property
    def digest(self) -> str:
        """Digest of the approved facts: the addresses, their paths, and whether anything holds each address."""
        found = [[each.address, each.paths, not each.holders] for each in self.addresses]
        content = json.dumps([self.repository, self.storage_namespace, self.asked, found], separators=(",", ":"))
        return hashlib.sha256(content.encode()).hexdigest()


def find(repository: OpenRepository, engine: Engine[R], selection: Selection, note: LogLine) -> ErasureFindings:
    """Searches all commits, staged entries, ranges that no commit names, and quarantine.

    Args:
        note: receives progress lines.
    Raises:
        ConfigurationError: there are more than MOST_ADDRESSES addresses.
        CollectionError: the server or the store fails, or a file that no commit names cannot be read.
    """
    problems = Problems(note)
    step, files = begin_reading(repository, engine, problems, "erase")
    return _ErasureSearch(step, selection, problems).run(files)


def _holders(every: Commits, retained: Retention | None, metarange_id: str) -> Iterator[EntryHolder]:
    """The holders of a metarange's entries, with an empty path. Expired commits hold nothing."""
    repository, commits_named = every.repository.facts.id, 0
    for by, name, at in every.named_by(metarange_id):
        if by is not HolderKind.COMMIT:
            yield EntryHolder(repository, by, name, "")
        elif at is None:
            yield EntryHolder(repository, by, name, "", "newer than the refs dump")
        elif commits_named < _COMMITS_NAMED:
            reasons = retained.why(at) if retained else [f"collection.also_live names {repository}"]
            if reasons:
                commits_named += 1
                yield EntryHolder(repository, by, name, "", "; ".join(reasons))


@dataclass
class _ErasureSearch(Generic[R]):
    """Finds the addresses at the paths, then the holders of these addresses.

    Attributes:
        paths: requested paths by address.
        holders: holders by address; a dict keeps their order.
        elsewhere: see Finding.
        branches: names of the repository's branches.
        unread: files that cannot be read, with the reason.
        contents: one address for each non-empty content at the paths.
        same_content: possible copies by repository and address, in the order found.
    """

    step: Step[R]
    selection: Selection
    problems: Problems
    paths: dict[str, dict[str, None]] = field(default_factory=dict)
    holders: dict[str, dict[EntryHolder, None]] = field(default_factory=dict)
    elsewhere: set[str] = field(default_factory=set)
    branches: set[str] = field(default_factory=set)
    unread: dict[str, str] = field(default_factory=dict)
    contents: dict[Content, str] = field(default_factory=dict)
    same_content: dict[tuple[str, str], SameContent] = field(default_factory=dict)

    def run(self, files: Sequence[str]) -> ErasureFindings:
        """Runs the whole search; `files` hold uncommitted data."""
        step, repository = self.step, self.step.repository
        # Staging is read first: an entry that is committed meanwhile is then found in the commits.
        staged = [*self._find_staged()]
        every = [self._find_commits(each) for each in (repository, *repository.others)]
        own, _ = every[0]
        self._find_paths(own)
        if len(self.paths) > MOST_ADDRESSES:
            raise ConfigurationError(
                f"{len(self.paths):,} addresses are at these paths, at most {MOST_ADDRESSES:,} can be erased at a "
                "time: name fewer paths"
            )
        step.log(f"addresses at these paths: {len(self.paths):,}; looking for everything that holds them")
        for content, address, holder in staged:
            self._add(address, holder)
            self._note_same(content, holder.repository, holder.path, address)
        for each, retained in every:
            self._find_holders(each, retained)
        self._find_unnamed(own)
        self._find_uncommitted(files)
        damaged = [f"{finding.address}: {finding.detail}" for finding in self.problems.findings]
        return ErasureFindings(
            repository.facts.id,
            repository.namespace.uri,
            self.selection.asked,
            step.started_at,
            repository.clock.now(),
            sum(each.count for each, _ in every),
            sum(len(each.records) for each, _ in every),
            sum(each.records.entries for each, _ in every),
            tuple(
                Held(
                    remains.address,
                    tuple(sorted(self.paths[remains.address])),
                    tuple(self.holders.get(remains.address, ())),
                    remains,
                )
                for remains in look(repository, self.paths)
            ),
            tuple(sorted(self.elsewhere)),
            tuple(self.selection.list_unmatched({*self.elsewhere, *chain(*self.paths.values())}, self.branches)),
            (*damaged, *(f"{file}: {detail}" for file, detail in sorted(self.unread.items()))),
            tuple(self.problems.unchecked),
            tuple(self.same_content.values()),
        )

    def _add(self, address: str, holder: EntryHolder) -> None:
        if address in self.paths:
            self.holders.setdefault(address, {})[holder] = None

    def _note_content(self, content: Content, address: str) -> None:
        if all(content):
            self.contents.setdefault(content, address)

    def _note_same(self, content: Content, repository: str, path: str, address: str) -> None:
        if address not in self.paths and content in self.contents:
            same = SameContent(self.contents[content], repository, path, address)
            self.same_content.setdefault((repository, address), same)

    def _find_staged(self) -> Iterator[tuple[Content, str, EntryHolder]]:
        """Yields the entries that branches show as staged, and records the addresses at requested paths.

        An error at one branch ends the search: objects staged there must not be erased, and only the branch lists them.
        """
        namespace = self.step.repository.namespace
        for repository in (self.step.repository, *self.step.repository.others):
            for branch in repository.api.branches():
                if repository is self.step.repository:
                    self.branches.add(branch.id)
                for stats in staged_objects(repository.api, branch.id):
                    keys = namespace.live_keys(stats.physical_address, AddressType.FULL)
                    holder = EntryHolder(repository.facts.id, HolderKind.STAGED, branch.id, stats.path)
                    content = (stats.checksum or "", stats.size or 0)
                    # An address outside the namespace is no key, but may be that of a copy.
                    yield from ((content, key, holder) for key in keys or (stats.physical_address,))
                    is_own = repository is self.step.repository
                    if is_own and self.selection.chooses(pa.array([stats.path.encode()], pa.binary()))[0].as_py():
                        if len(keys) == 1 and not namespace.may_lie_elsewhere(stats.physical_address):
                            self.paths.setdefault(keys[0], {})[stats.path] = None
                            self._note_content(content, keys[0])
                        else:
                            self.elsewhere.add(stats.path)

    def _find_commits(self, repository: OpenRepository) -> tuple[Commits, Retention | None]:
        """Reads all commits of a repository, expired ones too; records metaranges that cannot be read."""
        dump, retained = read_commits(self.step, repository)
        late, count = retained.late if retained else {}, len(dump.commits)
        named = [*commits.distinct_metaranges(dump.commits).to_pylist(), *dump.compacted, *late.values()]
        every = Commits.with_ranges(self.step, repository, dump, count, late, named)
        for metarange_id, detail in every.damaged.items():
            self.problems.unreadable(METADATA_PREFIX + metarange_id, detail)
        ranges = counted(len(every.records), "ranges")
        self.step.log(f"{repository.facts.id}: {counted(count, 'commits')}, {ranges}")
        return every, retained

    def _find_paths(self, own: Commits) -> None:
        """Records the addresses that commits have, or had, at the paths."""
        records = self.selection.may_be_among(own.records)
        self.step.log(f"ranges that may have such a path: {len(records):,} of {len(own.records):,}")
        for row in self._rows(own.repository, records, partial(_asked_entries, self.selection)):
            if row["path"] is not None:
                path = _text(row["path"])
                if row["address"] is None:
                    self.elsewhere.add(path)
                else:
                    self.paths.setdefault(row["address"], {})[path] = None
                    self._note_content((row["etag"], row["size"]), row["address"])

    def _rows(
        self, repository: OpenRepository, records: RangeRecords, read: Callable[[LiveFiles, RangeRecord], pa.Table]
    ) -> list[dict[str, Any]]:
        references = References.from_step(self.step, repository)
        rows: list[dict[str, Any]] = self.step.engine.collect(references.of_ranges(records, read, _PLACED)).to_pylist()
        return rows

    def _find_entries(self, repository: OpenRepository, records: RangeRecords) -> dict[str, list[tuple[str, str]]]:
        """Addresses and their paths in each range, by the range's id."""
        entries: dict[str, list[tuple[str, str]]] = {}
        addresses = pa.array(sorted(self.paths), pa.string())
        for row in self._rows(repository, records, partial(_held_entries, addresses, frozenset(self.contents))):
            if row["detail"] is None and row["address"] in self.paths:
                entries.setdefault(row["range"], []).append((row["address"], _text(row["path"])))
            elif row["detail"] is None:
                content = (row["etag"], row["size"])
                self._note_same(content, repository.facts.id, _text(row["path"]), row["address"])
            else:
                self.unread[METADATA_PREFIX + row["range"]] = row["detail"]
        return entries

    def _find_holders(self, own: Commits, retained: Retention | None) -> None:
        """Records the branches, tags and commits of a repository that hold the addresses."""
        if not self.paths:
            return
        entries = self._find_entries(own.repository, own.records)
        if not entries:
            return
        range_ids = pa.array(sorted(entries), pa.string())

        def read(files: LiveFiles, metarange_id: str) -> pa.Table:
            ids = files.metarange(metarange_id).column("id")
            named = ids.filter(pc.is_in(ids, value_set=range_ids))
            return pa.table([pa.repeat(metarange_id, len(named)), named], schema=_NAMING)

        references = References.from_step(self.step, own.repository)
        naming = self.step.engine.collect(references.of_each(own.metarange_ids, read, _NAMING)).to_pylist()
        holders = {
            metarange_id: tuple(_holders(own, retained, metarange_id))
            for metarange_id in {row["metarange"] for row in naming}
        }
        for row in naming:
            for address, path in entries[row["range"]]:
                for holder in holders[row["metarange"]]:
                    self._add(address, EntryHolder(holder.repository, holder.by, holder.name, path, holder.why))

    def _find_unnamed(self, own: Commits) -> None:
        """Records ranges that hold the addresses and that no commit names, if the settings keep such ranges."""
        settings = self.step.repository.settings
        if not settings.keep_unnamed_ranges or not self.paths:
            return
        since = None if settings.keep_old_unnamed_ranges else self.step.plan.cutoff
        known = own.records.ids | IdSet([*own.metarange_ids, *own.damaged, *own.dump.tables])
        references = References.from_step(self.step)
        unnamed = find_unnamed(own.repository.store, references, IdSet(), known, since).records
        for range_id, entries in self._find_entries(own.repository, unnamed).items():
            for address, path in entries:
                self._add(address, EntryHolder(own.repository.facts.id, HolderKind.RANGE, range_id, path))

    def _find_uncommitted(self, files: Sequence[str]) -> None:
        """Records addresses of uncommitted data that no branch shows."""
        if not files or not self.paths:
            return
        engine, name = self.step.engine, self.step.repository.facts.id
        wanted = engine.table(pa.table({"address": pa.array(sorted(self.paths), pa.string())}))
        rows = engine.select(References.from_step(self.step).uncommitted(files), "address")
        for address in engine.collect(engine.distinct(engine.among_exactly(rows, wanted))).column(0).to_pylist():
            if not any(holder.by is HolderKind.STAGED for holder in self.holders.get(address, ())):
                self._add(address, EntryHolder(name, HolderKind.UNCOMMITTED, "", ""))


def _asked_entries(selection: Selection, files: LiveFiles, record: RangeRecord) -> pa.Table:
    """Entries of a range (_PLACED) at selected paths. Empty if the range is unreadable: a later read reports that."""
    try:
        entries, others = files.placed(record)
    except CorruptFile:
        return _PLACED.empty_table()
    others = others.set_column(0, PLACED.field(0), pa.nulls(others.num_rows, pa.string()))
    rows = pa.concat_tables([entries, others])
    return _with_range(rows.filter(selection.chooses(rows.column("path").combine_chunks())), record)


def _with_range(rows: pa.Table, record: RangeRecord) -> pa.Table:
    columns = [*rows.columns, pa.repeat(record.id, rows.num_rows), pa.nulls(rows.num_rows, pa.string())]
    return pa.table(columns, schema=_PLACED)


def _held_entries(
    addresses: pa.StringArray, contents: Collection[Content], files: LiveFiles, record: RangeRecord
) -> pa.Table:
    """Entries of a range (_PLACED) that may have a given address or content, or the reason the range cannot be read."""
    try:
        rows, others = files.placed(record, only_certain=False)
    except CorruptFile as damage:
        unread = {"range": record.id, "detail": f"{damage.check}: {damage.detail}"}
        return pa.Table.from_pylist([unread], schema=_PLACED)
    is_held = pc.is_in(rows.column("address"), value_set=addresses)
    others = pa.concat_tables([rows.filter(pc.invert(is_held)), others])
    checksums = pa.array(sorted({checksum for checksum, _ in contents}), pa.string())
    others = others.filter(pc.is_in(others.column("etag"), value_set=checksums))
    same = [
        each in contents
        for each in zip(others.column("etag").to_pylist(), others.column("size").to_pylist(), strict=True)
    ]
    copies = others.filter(pa.array(same, pa.bool_()))
    return _with_range(pa.concat_tables([rows.filter(is_held), copies]), record)


def _text(path: bytes) -> str:
    return path.decode("utf-8", "replace")


_PATHS_SHOWN = 20
# Staged entries are reset first, since a commit includes everything staged on its branch.
_ORDER = (HolderKind.STAGED, HolderKind.BRANCH, HolderKind.TAG)


@dataclass(frozen=True, slots=True)
class FirstStep:
    """A change of one branch or tag that releases some addresses.

    Attributes:
        paths: the address at each path.
    """

    repository: str
    by: HolderKind
    name: str
    paths: Mapping[str, str]

    def __str__(self) -> str:
        if self.by is HolderKind.TAG:
            return f"delete tag {self.name} of {self.repository}"
        named = ", ".join(islice(self.paths, _PATHS_SHOWN))
        more = f" and {len(self.paths) - _PATHS_SHOWN:,} more" if len(self.paths) > _PATHS_SHOWN else ""
        where = f"on branch {self.name} of {self.repository}"
        if self.by is HolderKind.STAGED:
            return f"reset staged data {where} at {named}{more}"
        return f"delete {where}, and commit: {named}{more}"


def list_first_steps(finding: ErasureFindings) -> tuple[FirstStep, ...]:
    """The steps that release the addresses, at most one per tag, and per branch one reset and one deletion.

    Paths that are not valid UTF-8 are skipped.
    """
    steps: dict[tuple[str, HolderKind, str], dict[str, str]] = {}
    for held in finding.addresses:
        for holder in held.holders:
            if holder.by in _ORDER:
                paths = steps.setdefault((holder.repository, holder.by, holder.name), {})
                if holder.path and "\ufffd" not in holder.path:
                    paths[holder.path] = held.address
    made = (FirstStep(*place, paths) for place, paths in steps.items() if paths)
    return tuple(sorted(made, key=lambda step: (_ORDER.index(step.by), step.repository, step.name)))


def take_first_step(repository: OpenRepository, step: FirstStep) -> str:
    """Takes the step and describes the result. `repository` is the repository whose addresses are to be erased.

    The server is asked again right before each change: a path that shows nothing any more is skipped, and so is a tag
    whose commit has none of the addresses.

    Raises:
        CollectionError: a path has another object by now, a commit would include other staged changes, or the server
            refuses.
        ValueError: the step concerns neither a staging area nor a branch nor a tag.
    """
    if step.by not in _ORDER:
        raise ValueError(f"there is no first step for objects held by a {step.by.value}")
    (opened,) = (each for each in (repository, *repository.others) if each.facts.id == step.repository)
    api = opened.branches_api
    if step.by is HolderKind.TAG:
        commit_id = next((tag.commit_id for tag in opened.api.tags() if tag.id == step.name), None)
        if commit_id is None:
            return f"there is no tag {step.name} any more"
        if not any(_has(repository, opened, commit_id, *each) for each in step.paths.items()):
            return f"tag {step.name} names commit {commit_id} by now, without these objects: it stays"
        api.delete_tag(step.name)
        return f"deleted tag {step.name}, which named commit {commit_id}"
    if step.by is HolderKind.BRANCH:
        _require_nothing_else_staged(opened, step)
    there = [path for path, address in step.paths.items() if _is_there(repository, opened, step.name, path, address)]
    for path in there:
        (api.reset_path if step.by is HolderKind.STAGED else api.delete_path)(step.name, path)
    if step.by is HolderKind.STAGED:
        return f"reset {counted(len(there), 'paths')} on branch {step.name}"
    # Other changes may have been staged meanwhile. An earlier attempt may have staged deletions, too.
    deletions = counted(count := _require_nothing_else_staged(opened, step), "paths")
    if not count:
        return f"branch {step.name} shows none of these paths any more"
    api.commit_changes(step.name, f"Delete {deletions} that are to be erased")
    return f"deleted {deletions} on branch {step.name}, and committed"


def _require_nothing_else_staged(opened: OpenRepository, step: FirstStep) -> int:
    """Number of staged deletions of the step's paths. Raises CollectionError if there are other changes."""
    count = 0
    for change in opened.api.changes(step.name):
        if change.type != "removed" or change.path not in step.paths:
            raise CollectionError(
                f"branch {step.name} of {step.repository} has other uncommitted changes, such as {change.path}: a "
                "commit would take them along. Commit or reset them first, and look again"
            )
        count += 1
    return count


def _is_there(repository: OpenRepository, opened: OpenRepository, branch: str, path: str, address: str) -> bool:
    """True if the branch shows the address at the path; False if it shows nothing.

    Raises CollectionError if it shows another object.
    """
    is_address = _has(repository, opened, branch, path, address)
    if is_address is False:
        raise CollectionError(
            f"{path} on branch {branch} of {opened.facts.id} is another object by now, and was left: look again"
        )
    return bool(is_address)


def _has(repository: OpenRepository, opened: OpenRepository, reference: str, path: str, address: str) -> bool | None:
    """True if a branch or commit has the address at the path, False if it has another one; None for none."""
    stats = opened.api.stat(reference, path)
    if stats is None:
        return None
    return address in repository.namespace.live_keys(stats.physical_address, AddressType.FULL)
