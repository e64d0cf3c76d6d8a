"""Lists the entries of branches that expire by the rules of object lifecycle, and stores listings for an approval.

Only heads are read: uncommitted changes neither expire nor hold objects here. Hidden branches are left alone.
"""

import hashlib
import json
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector import commits
from lakefs_gc_assets.collector.commits import Dump
from lakefs_gc_assets.collector.engine import hashing
from lakefs_gc_assets.collector.engine.hashing import Hashes, HashSet
from lakefs_gc_assets.collector.records import records_json, tables
from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.collector.records.run_folder import LIFECYCLE
from lakefs_gc_assets.collector.repository.lock import earliest_clock
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.retention import retention
from lakefs_gc_assets.collector.retention.active_commits import Graph, dated_by_files
from lakefs_gc_assets.errors import CorruptFile, LogLine, OrderViolation
from lakefs_gc_assets.extensions.lifecycle.acts import BRANCH_PREFIX
from lakefs_gc_assets.extensions.lifecycle.deciding import Deciding, ExpiredEntries, Head, place_of
from lakefs_gc_assets.extensions.lifecycle.entries import Integers, inside
from lakefs_gc_assets.extensions.lifecycle.listing import ENTRIES, Group, KeptEntries, LifecycleListing
from lakefs_gc_assets.extensions.lifecycle.rules import read_rules, rules_of
from lakefs_gc_assets.lakefs.api.models import Branch

_FOLDERS = 10
_FOLDER_DEPTH = 2
_DIGESTED_AT_ONCE = 65_536


def list_expired(repository: OpenRepository, note: LogLine) -> LifecycleListing:
    """Decides about all branches, and stores the listing with its entries if anything expires.

    Raises:
        ConfigurationError: the policy cannot be read, or has no rules of lifecycle.
        CollectionError: the server or the store fails, or the server refuses a refs dump.
    """
    rules, now = read_rules(repository.settings), earliest_clock(repository)
    dump = commits.complete_dump(repository.dumping_at_once(), now, note)
    visible = repository.branches_api.visible_branches()
    metaranges = _metaranges(dump)
    heads: dict[str, Head] = {}
    kept: list[KeptEntries] = []
    for branch, commit_id in sorted(dump.branches.items()):
        own = rules_of(rules, branch)
        why = "lifecycle made it" if branch.startswith(BRANCH_PREFIX) else "" if branch in visible else "it is hidden"
        if own and not why:
            heads[branch] = Head(commit_id, metaranges[commit_id], own)
        else:
            kept += (KeptEntries(branch, rule.name, why) for rule in own)
    for rule in rules:
        if not any(rule in head.rules for head in heads.values()):
            note(f"WARNING: {rule.name} in the policy's lifecycle, line {rule.line}, matches no branch")
    deciding = Deciding(repository, now, lambda: _graph(repository, dump, now), note)
    decided = deciding.decide(dict.fromkeys(heads.values()))
    others = [*dump.tags.values(), *(commit_id for branch, commit_id in dump.branches.items() if branch not in heads)]
    groups, entries, counted = list[Group](), dict[str, pa.Table](), np.empty(0, np.uint64)
    held = _held_elsewhere(deciding, decided, {metaranges[commit_id] for commit_id in others}, note)
    digest = cache(lambda head, rule: _digest(decided[head].by_rule[rule]))
    for branch, head in heads.items():
        kept += (KeptEntries(branch, rule, why) for rule, reasons in decided[head].kept.items() for why in reasons)
        for name, rows in decided[head].by_rule.items():
            freed = None
            if held is not None:
                hashed, sizes = _hashes(rows, repository)
                is_freed = ~(held.has(hashed) | hashing.among(hashed, counted))
                freed = Amount(int(is_freed.sum()), int(sizes[is_freed].sum()))
                counted = np.concatenate([counted, hashed[is_freed]])
            amount = Amount(rows.num_rows, pc.sum(rows.column("size")).as_py())
            group = Group(branch, head.commit_id, name, amount, digest(head, name), freed, _folders(rows))
            groups.append(group)
            entries[group.digest] = rows
    listing = LifecycleListing(repository.facts.id, now, tuple(groups), tuple(kept))
    if groups:
        _store(repository, listing, entries)
    return listing


def _metaranges(dump: Dump) -> dict[str, str]:
    """The metarange of each branch head and tag, by commit."""
    ids = pa.array(sorted({*dump.branches.values(), *dump.tags.values()}), pa.string())
    at = dump.commits.positions(ids)
    return dict(zip(ids.to_pylist(), dump.commits.metarange_ids.take(pa.array(at)).to_pylist(), strict=True))


def _graph(repository: OpenRepository, dump: Dump, now: datetime) -> Graph:
    graph = Graph.from_commits(dump.commits, dump.branches)
    return dated_by_files(graph, retention.written_times(repository, dump.commits), now)


def _held_elsewhere(
    deciding: Deciding, decided: Mapping[Head, ExpiredEntries], others: Iterable[str], note: LogLine
) -> HashSet | None:
    """Hashes of expired addresses that an entry holds which stays, in a head or tag; None if a file cannot be read.

    Only ranges that have an expired path are read: an object at several paths may be held by another one.

    Args:
        others: metaranges of tags, and of branches that no rule matches.
    """
    expired = {head: pa.concat_tables(each.by_rule.values()) for head, each in decided.items() if each.by_rule}
    if not expired:
        return HashSet.from_hashes(np.empty(0, np.uint64))
    wanted = HashSet.from_hashes(np.concatenate([_hashes(rows, deciding.repository)[0] for rows in expired.values()]))
    paths = pc.unique(pa.chunked_array([chunk for rows in expired.values() for chunk in rows.column("path").chunks]))
    paths = paths.cast(pa.binary()).sort()
    # In a range, an entry stays if it stays in any of the heads and tags that have the range.
    places, times = np.unique(
        np.concatenate([rows.column("place").to_numpy() for rows in expired.values()]), return_counts=True
    )
    holders: Counter[int] = Counter()
    held = [np.empty(0, np.uint64)]
    is_near: dict[str, bool] = {}

    def near(range_id: str, first: bytes, last: bytes) -> bool:
        if range_id not in is_near:
            at = bisect_left(range(len(paths)), first, key=lambda place: paths[place].as_py())
            is_near[range_id] = at < len(paths) and paths[at].as_py() <= last
        return is_near[range_id]

    try:
        for metarange_id in filter(None, [*(head.metarange_id for head in decided), *others]):
            ranges = deciding.files.metarange(metarange_id)
            rows = zip(*(ranges.column(name).to_pylist() for name in ("id", "min_key", "max_key")), strict=True)
            holders.update(deciding.numbers.add(ranges.filter(pa.array([near(*row) for row in rows], pa.bool_()))))
        records = deciding.numbers.records
        for number, entries in zip(holders, deciding.reader.read_all(records[each] for each in holders), strict=True):
            if isinstance(entries, CorruptFile):
                raise entries
            relative = inside(entries.addresses, deciding.repository.namespace)
            hashed = hashing.hashes(pc.fill_null(relative, ""))
            at = np.flatnonzero(wanted.has(hashed))
            own = place_of(number, at)
            where = np.minimum(np.searchsorted(places, own), len(places) - 1)
            stays = (places[where] != own) | (times[where] < holders[number])
            held.append(hashed[at[stays]])
    except CorruptFile as damage:
        note(f"the objects that collection would free are not known: {damage}")
        return None
    return HashSet.from_hashes(np.concatenate(held))


def _hashes(rows: pa.Table, repository: OpenRepository) -> tuple[Hashes, Integers]:
    """Hashes of the addresses inside the storage namespace, each once, and their sizes in bytes."""
    relative = inside(rows.column("address").combine_chunks(), repository.namespace)
    is_inside = pc.is_valid(relative)
    hashed, first = np.unique(hashing.hashes(relative.filter(is_inside)), return_index=True)
    return hashed, rows.column("size").filter(is_inside).to_numpy()[first]


def _folders(rows: pa.Table) -> tuple[tuple[str, Amount], ...]:
    """The largest folders, of two components at most."""
    folder = pc.replace_substring_regex(
        rows.column("path"), pattern=rf"(?s)^((?:[^/]*/){{0,{_FOLDER_DEPTH}}}).*$", replacement=r"\1"
    )
    sums = pa.table({"folder": folder, "size": rows.column("size")}).group_by("folder")
    amounts = sums.aggregate([("size", "count"), ("size", "sum")])
    largest = amounts.sort_by([("size_sum", "descending"), ("folder", "ascending")]).slice(0, _FOLDERS)
    return tuple((row["folder"], Amount(row["size_count"], row["size_sum"])) for row in largest.to_pylist())


def _digest(rows: pa.Table) -> str:
    """Digest of paths and addresses."""
    digest = hashlib.sha256()
    for batch in rows.select(["path", "address"]).combine_chunks().to_batches(_DIGESTED_AT_ONCE):
        digest.update(json.dumps([column.to_pylist() for column in batch.columns]).encode() + b"\n")
    return digest.hexdigest()[:32]


def _store(repository: OpenRepository, listing: LifecycleListing, entries: Mapping[str, pa.Table]) -> None:
    folder = f"{LIFECYCLE}{listing.digest}/"
    for digest, rows in entries.items():
        tables.put(repository.store, f"{folder}{digest}.parquet", rows.select(ENTRIES.names))
    repository.store.put(f"{folder}listing.json", records_json.encode(listing))


def read_listing(repository: OpenRepository, digest: str) -> LifecycleListing:
    """The stored listing with a digest.

    Raises:
        OrderViolation: there is none, or it was made for another repository.
        CorruptFile: it cannot be read, or was changed.
    """
    key = f"{LIFECYCLE}{digest}/listing.json"
    listing = (
        records_json.read(repository.store, LifecycleListing, key) if re.fullmatch("[0-9a-f]{16}", digest) else None
    )
    if listing is None or listing.repository != repository.facts.id:
        raise OrderViolation(f"{digest!r} is not the digest of a stored list: list expired objects and approve again")
    if listing.digest != digest:
        raise CorruptFile(key, "digest", f"it is the listing {listing.digest}")
    return listing


def read_entries(repository: OpenRepository, listing: LifecycleListing, group: Group) -> pa.Table:
    """The entries of a group (ENTRIES). Raises CorruptFile if they are missing, or not those of the listing."""
    key = f"{LIFECYCLE}{listing.digest}/{group.digest}.parquet"
    rows = tables.decode(ENTRIES, tables.get(repository.store, key), key, "expired entries")
    if _digest(rows) != group.digest:
        raise CorruptFile(key, "digest", "its entries are not those of the listing")
    return rows


def expired_now(
    repository: OpenRepository, listing: LifecycleListing, branch: Branch, note: LogLine
) -> Mapping[str, pa.Table]:
    """The stored entries (ENTRIES) that still expire unchanged on a head of a branch, by rule.

    Empty if the branch is gone or hidden by now, or if everything on it stays.

    Args:
        branch: with the head to decide about. It is not read again here, since it could be another one.

    Raises:
        CorruptFile: the stored entries cannot be read.
        CollectionError: see `list_expired`.
    """
    rules, now = rules_of(read_rules(repository.settings), branch.id), earliest_clock(repository)
    if not rules or branch.id not in repository.branches_api.visible_branches():
        return {}
    head = Head(branch.commit_id, repository.api.commit(branch.commit_id).metarange_id, rules)

    def graph() -> Graph:
        dump = commits.complete_dump(repository.dumping_at_once(), now, note, [head.commit_id])
        return _graph(repository, dump, now)

    expired = Deciding(repository, now, graph, note).decide([head])[head].by_rule
    still: dict[str, pa.Table] = {}
    for group in listing.groups:
        if group.branch == branch.id and group.rule in expired:
            stored, fresh = read_entries(repository, listing, group), expired[group.rule]
            at = pc.index_in(stored.column("path"), value_set=fresh.column("path").combine_chunks())
            same = pc.equal(fresh.column("address").take(at), stored.column("address"))
            if (rows := stored.filter(pc.fill_null(same, False))).num_rows:
                still[group.rule] = rows
    return still
