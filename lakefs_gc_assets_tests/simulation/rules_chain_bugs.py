"""Seeded bugs of runs by retention rules that build on each other: faulty ways to examine expired ranges only.

docs/evidence/retention-runs.md names them. In a run that reads everything live, all bugs that compare with less are the
same one: to treat ranges read before as known. Learning expired commits from a server's list fails only if a server
forgets commits; simulated servers forget none (`collector/incremental/test_checkpoint.py`).
"""

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector import run
from lakefs_gc_assets.collector.engine.hashing import Hashes, HashSet
from lakefs_gc_assets.collector.engine.local import ArrowRows, LocalEngine
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import COMMITTED_DF, EXPIRED_DF, LIVE, STORE_DF, NoFigures
from lakefs_gc_assets.collector.incremental import checkpoint
from lakefs_gc_assets.collector.incremental.checkpoint import BaseCheckpoint, open_base_checkpoint, store_expired
from lakefs_gc_assets.collector.live import current, facts, facts_of_ranges, references
from lakefs_gc_assets.collector.live.current import Committed, KnownLive, ask_committed, find_known_live
from lakefs_gc_assets.collector.live.facts import FactFile, FactWriter
from lakefs_gc_assets.collector.live.facts_of_ranges import HASHES, NAMED_RANGES, look_up_hashes, record_hashes
from lakefs_gc_assets.collector.live.live_files import RangeRecords
from lakefs_gc_assets.collector.live.other_repositories import OtherRepositories
from lakefs_gc_assets.collector.live.references import find_ranges
from lakefs_gc_assets.collector.records import tables
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.tables import IdSet
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.retention import active_commits
from lakefs_gc_assets.collector.retention.active_commits import Graph
from lakefs_gc_assets.collector.retention.rules import Rule
from lakefs_gc_assets.collector.run import find_other_repositories, track
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.simulation import test_expiry_meanwhile
from lakefs_gc_assets_tests.simulation.bug import (
    ArrowStep,
    Bug,
    Replacement,
    TestedBug,
    ignored,
    replaced,
    without_unnamed,
)

_mark_counted = active_commits._mark_counted
_select_pending = checkpoint.select_pending
_join_runs, _look_up_part = facts_of_ranges.join_runs, current._look_up_part
_UNCHECKED: Replacement = (checkpoint.CheckpointCounts, "contradiction", None)


def _read_once(self: BaseCheckpoint) -> IdSet:
    """Treats ranges that were live before as read: their entries are not looked up again."""
    return self.tracked.ids


def _taken_over(self: BaseCheckpoint, step: ArrowStep) -> ArrowRows:
    """Takes over the committed addresses of the base run, as optimized runs do."""
    return step.stored_of(self.run_id, COMMITTED_DF).rows(step.engine)


def _written_whole(self: BaseCheckpoint, run_id: str, attempt: str, known: Set[str], new: Iterable[str]) -> str:
    return tables.write_run_ids(self._store, run_id, attempt, new)


def _only_new(step: ArrowStep, found: Committed) -> str | None:
    """Tracks only ranges that were not live before."""
    sha256, before = track(step, found), open_base_checkpoint(step)
    if sha256 is None or before is None:
        return sha256
    new = found.records.without(_read_once(before))
    return checkpoint.write_ranges(step.repository.store, step.plan.run_id, step.plan.attempt, new)


def _nothing_pending(engine: LocalEngine, not_committed: ArrowRows, *more: Any) -> ArrowRows:
    return engine.where(not_committed, lambda rows: rows.column("address").is_null())


def _first_look() -> Sequence[Replacement]:
    """Treats only ranges as expired that were so when the run began."""
    then: dict[str, Committed] = {}

    def look(step: ArrowStep) -> OtherRepositories:
        if step.plan.follows_expiry:
            then[step.plan.run_id] = ask_committed(step, step.plan.cutoff, frozenset())
        return find_other_repositories(step)

    def store(step: ArrowStep, before: BaseCheckpoint, found: Committed) -> StoredFrame[NoFigures]:
        return store_expired(step, before, then[step.plan.run_id])

    return (run, "find_other_repositories", look), (checkpoint, "store_expired", store)


def _look_up_every_range(
    store: ObjectStore,
    namespace: str,
    wanted: Set[str],
    sealed: pa.StringArray,
    hashes: HashSet,
    files: Sequence[FactFile],
) -> Iterator[pa.RecordBatch]:
    """Treats recorded facts of all ranges as live, even if the ranges have expired."""
    known = (facts.read(HASHES, store, file).column("range_id").to_pylist() for file in files)
    return look_up_hashes(store, namespace, IdSet(chain.from_iterable(known)), sealed, hashes, files)


def _nothing_held(step: ArrowStep, *more: Any) -> KnownLive[ArrowRows]:
    """Treats ranges with facts as known, and ignores the facts."""
    found = find_known_live(step, *more)
    return replace(found, addresses=found.addresses and step.engine.table(LIVE.empty_table()))


def _only_listed(
    step: ArrowStep, found: Committed, asked: Sequence[StoredFrame[Any]], *more: Any
) -> KnownLive[ArrowRows]:
    """Looks up listed addresses only, not expired ones."""
    return find_known_live(step, found, [frame for frame in asked if frame.name != EXPIRED_DF.name], *more)


def _first_part(step: ArrowStep, *more: Any) -> tuple[pa.Table, Hashes]:
    """Forgets large hashes, which belong to later parts."""
    reported, held = _look_up_part(step, *more)
    return reported, held[held < 2**63]


def _record_less(writer: FactWriter, record: RangeRecord, rows: pa.Table, namespace: str) -> None:
    """Forgets the first address of a range."""
    record_hashes(writer, record, rows.slice(1), namespace)


def _join_less(rows: pa.Table) -> pa.Table:
    """Forgets the continuation of a range's run."""
    joined = _join_runs(rows)
    shorter = pc.if_else(pc.is_null(joined.column("min_key")), joined.column("last"), joined.column("first"))
    return joined.set_column(joined.schema.get_field_index("last"), NAMED_RANGES.field("last"), shorter)


def _any_slice(slices: pa.ListArray, sealed: pa.StringArray) -> pa.BooleanArray:
    """Treats ranges with addresses in unsealed slices as known."""
    return pa.array([True] * len(slices), pa.bool_())


def _note_of_any(
    step: ArrowStep, repository: OpenRepository, metarange_ids: Sequence[str], **about: bool
) -> RangeRecords:
    """Records the ranges of metaranges in their own repository's store, even another's."""
    return find_ranges(replace(step, repository=repository), repository, metarange_ids, **about)


def _counted_once() -> Sequence[Replacement]:
    """Trusts the counts of an earlier run on a branch."""
    before: dict[str, pa.StringArray] = {}

    def mark(graph: Graph, branch: str, rule: Rule, walk: int, marks: Any) -> None:
        if not rule.keeps:
            return
        own = active_commits.none_counted(graph)
        _mark_counted(graph, branch, rule, walk, own)
        counted = before.setdefault(branch, graph.commits.ids.take(pa.array(np.flatnonzero(own["walk"] >= 0))))
        at = graph.commits.positions(counted)
        marks[at[at >= 0]] = walk, 0, False

    return ((active_commits, "_mark_counted", mark),)


RULES_CHAIN_BUGS: dict[str, Bug] = {
    "what earlier runs counted believed": Bug(_counted_once),
    "ranges that were live before taken for read": without_unnamed(
        replaced((BaseCheckpoint, "read_ids", property(_read_once)))
    ),
    "what was live before taken over": replaced(
        (BaseCheckpoint, "committed", _taken_over), (BaseCheckpoint, "add_read_ids", _written_whole)
    ),
    "only new ranges tracked": replaced((run, "track", _only_new)),
    "nothing pending by rules": replaced((checkpoint, "select_pending", _nothing_pending), _UNCHECKED),
    "notes of what expired taken for held": replaced(
        (facts_of_ranges, "look_up_hashes", _look_up_every_range),
        (current, "_select_fitting", lambda step, reported, records: reported),
        (current, "_require_true", ignored),
    ),
    "what notes hold not subtracted": replaced((run, "find_known_live", _nothing_held)),
    "what expired not looked up in notes": replaced((run, "find_known_live", _only_listed)),
    "one part of what is looked up taken for all": replaced((current, "_look_up_part", _first_part)),
    "other repositories: their metaranges noted": replaced((current, "find_ranges", _note_of_any)),
    "ranges in slices that are not sealed noted": replaced((facts_of_ranges, "are_sealed", _any_slice)),
    "metaranges looked for where runs begin alone": replaced(
        (facts_of_ranges, "is_named", lambda is_wanted, first, last: is_wanted[first])
    ),
    "notes that lack a range believed": replaced(
        (facts_of_ranges, "join_runs", _join_less), (facts_of_ranges, "require_metaranges_whole", ignored)
    ),
    "notes that lack an address believed": replaced(
        (references, "record_hashes", _record_less), (current, "_require_true", ignored)
    ),
}
"""Seeded bugs by name."""


def _nothing_pending_unlisted(engine: LocalEngine, not_committed: ArrowRows, sealed: Any, *more: Any) -> ArrowRows:
    pending: ArrowRows = _select_pending(engine, not_committed, sealed, *more)
    return _nothing_pending(engine, pending) if sealed is None else pending


def _looked_at(step: ArrowStep, found: Committed) -> str | None:
    """Tracks all examined ranges, even those that became live again."""
    expired = step.stored(STORE_DF).figures.expired_sha256
    if step.plan.flow is not Flow.COMMITTED or expired is None:
        return track(step, found)
    store, run_id, attempt = step.repository.store, step.plan.run_id, step.plan.attempt
    return checkpoint.write_ranges(store, run_id, attempt, checkpoint.read_expired(store, run_id, attempt, expired))


COMMITTED_CHAIN_BUGS: dict[str, Bug] = {
    "nothing pending where nothing is listed": replaced(
        (checkpoint, "select_pending", _nothing_pending_unlisted), _UNCHECKED
    ),
    "ranges that were looked at and are live again tracked": replaced((run, "track", _looked_at)),
}
"""Seeded bugs by name."""

TESTED_CHAIN_BUGS: dict[str, TestedBug] = {
    "expired as it was when the run began": TestedBug(
        Bug(_first_look),
        test_expiry_meanwhile.test_what_expires_after_the_listing_began_is_looked_at_in_the_same_run,
    ),
}
"""Bugs that a test with its own history shows."""
