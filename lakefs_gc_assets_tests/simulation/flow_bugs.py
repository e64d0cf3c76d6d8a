"""Seeded bugs of optimized runs and of runs by retention rules: state that a hurried collector passes from one run to
the next, and data that it mistakes for expired.

All bugs of optimized runs can be built, but three take more than one line. A checkpoint is part of the report, so
leaving one without success takes another report. A run limited to some windows leaves no checkpoint at all. Slices to
list, pending objects and objects committed elsewhere all come from one set of sealed slices.

By retention rules, runs examine expired ranges only in faulty ways; docs/evidence/retention-runs.md names them. In a
run that reads everything live, all bugs that compare with less are the same one: to treat ranges read before as known.
Learning expired commits from a server's list fails only if a server forgets commits; simulated servers forget none.
"""

import copy
import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector import commits as live_commits
from lakefs_gc_assets.collector import make_step, run
from lakefs_gc_assets.collector.commits import (
    CommitSource,
    Dump,
    ServerCommits,
    complete_dump,
    server_commits,
)
from lakefs_gc_assets.collector.engine.hashing import Hashes, HashSet
from lakefs_gc_assets.collector.engine.local import ArrowRows, LocalEngine
from lakefs_gc_assets.collector.frame import receipts, slices
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import (
    COMMITTED_DF,
    DELETED_REPORT,
    EXPIRED_DF,
    LISTED,
    LIVE,
    STORE_DF,
    TIME,
    UNCOMMITTED_DF,
    DeletedFigures,
    NoFigures,
)
from lakefs_gc_assets.collector.frame.slices import folders, select_unsealed
from lakefs_gc_assets.collector.incremental import checkpoint, planning
from lakefs_gc_assets.collector.incremental import checkpoint as checkpoints
from lakefs_gc_assets.collector.incremental.checkpoint import (
    BaseCheckpoint,
    open_base_checkpoint,
    reason_for_none,
    select_pending,
    store_expired,
    write_checkpoint,
)
from lakefs_gc_assets.collector.incremental.earlier_runs import deleted_before
from lakefs_gc_assets.collector.live import current, facts, facts_of_ranges, references
from lakefs_gc_assets.collector.live.current import (
    Committed,
    KnownLive,
    Samples,
    Uncommitted,
    Unread,
    ask_committed,
    define_live,
    find_known_live,
    find_unread,
    prepare_uncommitted,
)
from lakefs_gc_assets.collector.live.facts import FactFile, FactWriter
from lakefs_gc_assets.collector.live.facts_of_ranges import HASHES, NAMED_RANGES, look_up_hashes, record_hashes
from lakefs_gc_assets.collector.live.live_files import RangeRecords
from lakefs_gc_assets.collector.live.other_repositories import OtherRepositories
from lakefs_gc_assets.collector.live.references import References, find_ranges
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records import report, run_folder, tables
from lakefs_gc_assets.collector.records.outcomes import Outcome
from lakefs_gc_assets.collector.records.own_commits import MARK
from lakefs_gc_assets.collector.records.plan import Flow, Plan
from lakefs_gc_assets.collector.records.report import Checkpoint
from lakefs_gc_assets.collector.records.tables import IdSet
from lakefs_gc_assets.collector.repository.lock import latest_clock
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.retention import active_commits, retention
from lakefs_gc_assets.collector.retention.active_commits import Graph, Walks
from lakefs_gc_assets.collector.retention.retention import LiveDefinition, Readings, Retention
from lakefs_gc_assets.collector.retention.rules import Policy, Rule
from lakefs_gc_assets.collector.run import find_other_repositories, store_tracked_ranges, sweep_candidates
from lakefs_gc_assets.collector.sweep import recheck, sweeping
from lakefs_gc_assets.collector.sweep.recheck import find_live_again
from lakefs_gc_assets.collector.universe import listing
from lakefs_gc_assets.collector.universe.listing import read_expired
from lakefs_gc_assets.collector.universe.subtraction import subtract_committed
from lakefs_gc_assets.errors import LakeFSError
from lakefs_gc_assets.lakefs.api.models import RetentionRules
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.lakefs.formats.refs import CommitColumns, Integers
from lakefs_gc_assets.lakefs.layout import OTHER_WINDOW
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
from lakefs_gc_assets_tests.simulation.clean_bugs import only_uncommitted

Frame = StoredFrame[Any]
_UNCHECKED: Replacement = (checkpoint, "contradiction", lambda both, lost: None)
"""Skips the check that the checkpoint does not contradict itself."""


def reading_only(step: ArrowStep, found: Committed, metarange_ids: Collection[str], known: frozenset[str]) -> Committed:
    """Treats only these metaranges of this repository as unread."""
    chosen = tuple(name for name in found.own.metarange_ids if name in metarange_ids)
    unread = find_unread(step, step.repository, replace(found.own, metarange_ids=chosen), known)
    return replace(found, unread=(unread, *found.unread[1:]))


def _new_by_date(limit: Callable[[BaseCheckpoint, Mapping[str, float]], float]) -> Bug:
    """Reads only commits that are dated after some moment of the base run."""

    def replacements() -> Sequence[Replacement]:
        dumps: list[Dump] = []
        newest: dict[str, float] = {}

        def dump(*arguments: Any, **named: Any) -> Dump:
            dumps[:] = [complete_dump(*arguments, **named)]
            return dumps[0]

        def ask(step: ArrowStep, until: datetime, known: frozenset[str], *more: Any, **named: Any) -> Committed:
            found = ask_committed(step, until, known, *more, **named)
            before = open_base_checkpoint(step)
            if found.own.source is not CommitSource.REFS_DUMP:
                return found
            dated = dumps[-1].commits
            seconds = dated.seconds.tolist()
            newest[step.plan.run_id] = max(seconds, default=0)
            if before is None or before.report.commit_source != found.source:
                return found
            after = limit(before, newest)
            pairs = zip(dated.metarange_ids.to_pylist(), seconds, strict=True)
            return reading_only(step, found, {metarange_id for metarange_id, made in pairs if made > after}, known)

        return (live_commits, "complete_dump", dump), (run, "ask_committed", ask)

    return Bug(replacements)


def _newest_commit(before: BaseCheckpoint, newest: Mapping[str, float]) -> float:
    """Date of the newest commit known to the base run."""
    return newest[before.run_id]


def _start(before: BaseCheckpoint, newest: Mapping[str, float]) -> float:
    """When the base run began."""
    return before.report.started_at.timestamp()


class _UpToLastSlice(BaseCheckpoint):
    """Treats every slice as sealed unless it is newer than the newest one that the base run listed."""

    @property
    def sealed(self) -> frozenset[str]:
        there = folders(self._store).slices
        return frozenset(name for name in there if name >= self.report.last_read_slice)


def _open_at_last_slice(step: ArrowStep) -> BaseCheckpoint | None:
    before = open_base_checkpoint(step)
    return None if before is None else _UpToLastSlice(step.repository.store, before.run_id)


def _young_pending() -> Sequence[Replacement]:
    """Carries all objects that are too young, including committed ones."""
    steps: dict[int, ArrowStep] = {}

    def leave_by_age(step: ArrowStep, outcomes: Frame) -> Checkpoint | str:
        steps[id(step.engine)] = step
        return write_checkpoint(step, outcomes)

    def select(engine: LocalEngine, rows: ArrowRows, *more: Any, **named: Any) -> Any:
        step = steps[id(engine)]
        moment = pa.scalar(step.plan.cutoff, TIME)
        listed, held = step.stored(STORE_DF), step.stored(COMMITTED_DF)
        young = engine.where(
            engine.among_exactly(listed.rows(engine), held.rows(engine, "address")),
            lambda batch: pc.greater_equal(batch.column("last_modified"), moment),
        )
        left: ArrowRows = select_pending(engine, engine.union(rows, young), *more, **named)
        return left

    return (checkpoints, "write_checkpoint", leave_by_age), (checkpoints, "select_pending", select), _UNCHECKED


def _rechecked_as_read() -> Sequence[Replacement]:
    """Records the ranges that a recheck reads as known, but keeps none of their addresses."""
    rechecked: dict[str, frozenset[str]] = {}

    def ask(step: ArrowStep, until: datetime, known: frozenset[str], *more: Any) -> Committed:
        found = ask_committed(step, until, known, *more)
        rechecked[step.plan.run_id] = known | found.ids
        return found

    def leave_more(step: ArrowStep, outcomes: Frame) -> Checkpoint | str:
        left = write_checkpoint(step, outcomes)
        ids = rechecked.get(step.plan.run_id)
        if not isinstance(left, Checkpoint) or ids is None:
            return left
        sha256 = tables.write_run_ids(step.repository.store, step.plan.run_id, step.plan.attempt, ids)
        return replace(left, read=len(ids), read_sha256=sha256)

    return (recheck, "ask_committed", ask), (checkpoints, "write_checkpoint", leave_more)


def _sealed_anew(step: ArrowStep) -> frozenset[str]:
    """Seals only slices that it lists itself."""
    plan = step.plan
    listed = checkpoints.read_listed_slices(step.repository.store, plan.run_id, plan.attempt)
    return checkpoints.sealed_after(frozenset(), listed, plan.cutoff, plan.skew)


def _dealt_with(*outcomes: Outcome) -> Replacement:
    """Never retries candidates that have one of these outcomes."""
    return (
        checkpoints,
        "receipts",
        SimpleNamespace(NOT_THERE=(*receipts.NOT_THERE, *(each.value for each in outcomes))),
    )


def _as_if_swept(step: ArrowStep, outcomes: Frame) -> str | None:
    figures = DeletedFigures(swept=True)
    return reason_for_none(step, replace(outcomes, manifest=replace(outcomes.manifest, figures=figures)))


def _newest_of_all(
    store: ObjectStore, before: str | None = None, among: int | None = None, *, committed: bool = False
) -> Plan | None:
    run_ids: Iterator[str] = run_folder.newest_runs(store)
    newest = next((run_id for run_id in run_ids if before is None or run_id > before), None)
    return None if newest is None else plans.read(store, newest)


def all_accepted(step: ArrowStep, candidates: Frame) -> Frame:
    """The outcomes of a sweep that has not begun, as if every deletion succeeded."""
    decide = vars(sweeping)["_decide"]
    written = step.write(DELETED_REPORT, decide(step, candidates.rows(step.engine), Outcome.ACCEPTED))
    return step.unfinished(DELETED_REPORT, DeletedFigures(swept=True), written)


def _carry_before_sweep(step: ArrowStep, candidates: Frame) -> Iterator[Any]:
    """Writes the checkpoint of a fully successful sweep before it deletes."""
    left = vars(checkpoints)["write_checkpoint"](step, all_accepted(step, candidates))
    early = report.failed(step.plan, step.repository.clock.now(), "it has not ended")
    source = step.stored(COMMITTED_DF).figures.commit_source
    checkpoint = left if isinstance(left, Checkpoint) else None
    report.write(step.repository.store, replace(early, commit_source=source, checkpoint=checkpoint))
    yield from sweep_candidates(step, candidates)


def _first_row(step: ArrowStep, outcomes: Frame) -> Checkpoint | str:
    """Makes the next run list from the slice of an arbitrary row, mistaken for the newest one."""
    left = write_checkpoint(step, outcomes)
    if not isinstance(left, Checkpoint):
        return left
    store, run_id, attempt = step.repository.store, step.plan.run_id, step.plan.attempt
    before = open_base_checkpoint(step)
    listed = checkpoints.read_listed_slices(store, run_id, attempt)
    rows = sorted(step.stored(STORE_DF).table().to_pylist(), key=_hash)
    first = next((row["slice"] for row in rows if row["slice"] in listed), "")
    older = frozenset(name for name in listed if name >= first) | (before.sealed if before else frozenset())
    return replace(left, sealed_sha256=checkpoints.write_sealed(store, run_id, attempt, older))


def _hash(row: Mapping[str, Any]) -> str:
    return hashlib.md5(row["address"].encode(), usedforsecurity=False).hexdigest()


def _inside_alone(engine: LocalEngine, rows: ArrowRows, *more: Any, **named: Any) -> Any:
    """Carries only rows in the windows of the run."""
    inside = engine.where(rows, lambda batch: pc.not_equal(batch.column("slice_window"), OTHER_WINDOW))
    return select_pending(engine, inside, *more, **named)


def _everything(self: Committed) -> tuple[Unread, ...]:
    unnamed = () if self.unnamed is None else (self.unnamed,)
    return (*self.unread, *unnamed, *self.provisional)


def _select_unsharded(engine: LocalEngine, rows: ArrowRows, sealed: Iterable[str]) -> ArrowRows:
    """Treats all rows in shards as sealed."""
    return engine.where(
        select_unsealed(engine, rows, sealed),
        lambda batch: pc.invert(pc.starts_with(batch.column("address"), "data/!")),
    )


_contains = slices.UnsealedSlices.contains


def _without_the_last(self: slices.UnsealedSlices, addresses: pa.StringArray) -> pa.BooleanArray:
    """Stops in each shard one slice too early: the oldest one that is not sealed is left out."""
    listed = _contains(self, addresses)
    names = pc.if_else(listed, pc.struct_field(pc.extract_regex(addresses, slices._SLICE_FOLDER), "folder"), None)
    return pc.fill_null(pc.less(names, pc.max(names)), False)


CHAIN_BUGS: dict[str, Bug] = {
    "what is live for now taken for committed": replaced((Committed, "everything", property(_everything))),
    "new commits chosen by date": _new_by_date(_newest_commit),
    "new commits chosen by the last run's timestamp": _new_by_date(_start),
    "stop at the last read slice": replaced((checkpoints, "open_base_checkpoint", _open_at_last_slice)),
    "pending without subtracting committed": replaced((checkpoints, "NOT_COMMITTED_DF", STORE_DF), _UNCHECKED),
    "too young without subtracting committed": Bug(_young_pending),
    "ranges of the recheck marked as read": without_unnamed(Bug(_rechecked_as_read)),
    "sealed recomputed and shrinking": replaced((checkpoints, "find_sealed", _sealed_anew)),
    "committed left out of the checkpoint": replaced(
        (BaseCheckpoint, "committed", lambda self, step: step.engine.table(LIVE.empty_table()))
    ),
    "committed in shards left out of the checkpoint": replaced((checkpoints, "select_unsealed", _select_unsharded)),
    "what lies in shards taken for sealed": replaced((slices, "_SLICE_FOLDER", r"^data/(?P<folder>[0-9a-v]{19}[0g])/")),
    "shards listed down to one slice too early": replaced((slices.UnsealedSlices, "contains", _without_the_last)),
    "failed deletions dropped": replaced(_dealt_with(Outcome.FAILED), _UNCHECKED),
    "a dry run as base run": replaced(
        (planning, "newest_sweep", _newest_of_all),
        (checkpoints, "reason_for_none", _as_if_swept),
        _dealt_with(Outcome.DRY_RUN),
        _UNCHECKED,
    ),
    "checkpoint without success": replaced(
        (run, "sweep_candidates", _carry_before_sweep), (make_step, "store_report", ignored)
    ),
    "first slice from an unsorted frame": replaced((checkpoints, "write_checkpoint", _first_row)),
    "rows outside the run's windows dropped from the checkpoint": replaced(
        (checkpoints, "is_limited", lambda listed, universe: False),
        (checkpoints, "select_pending", _inside_alone),
        _UNCHECKED,
    ),
}
"""Seeded bugs by name."""


_mark_counted = active_commits._mark_counted
_select_pending = checkpoint.select_pending
_join_runs, _look_up_part = facts_of_ranges.join_runs, current._look_up_part


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
    sha256, before = store_tracked_ranges(step, found), open_base_checkpoint(step)
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
    "only new ranges tracked": replaced((run, "store_tracked_ranges", _only_new)),
    "nothing pending by rules": replaced((checkpoint, "select_pending", _nothing_pending), _UNCHECKED),
    "notes of what expired taken for held": replaced(
        (facts_of_ranges, "look_up_hashes", _look_up_every_range),
        (current, "_select_fitting", lambda step, reported, records: reported),
        (current, "_require_facts_match", ignored),
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
        (references, "record_hashes", _record_less), (current, "_require_facts_match", ignored)
    ),
}
"""Seeded bugs by name."""


def _nothing_pending_unlisted(engine: LocalEngine, not_committed: ArrowRows, sealed: Any, *more: Any) -> ArrowRows:
    pending: ArrowRows = _select_pending(engine, not_committed, sealed, *more)
    return _nothing_pending(engine, pending) if sealed is None else pending


def _looked_at(step: ArrowStep, found: Committed) -> str | None:
    """Tracks all examined ranges, also ranges that became live again."""
    expired = step.stored(STORE_DF).figures.expired_sha256
    if step.plan.flow is not Flow.COMMITTED or expired is None:
        return store_tracked_ranges(step, found)
    store, run_id, attempt = step.repository.store, step.plan.run_id, step.plan.attempt
    return checkpoint.write_ranges(store, run_id, attempt, checkpoint.read_expired(store, run_id, attempt, expired))


COMMITTED_CHAIN_BUGS: dict[str, Bug] = {
    "nothing pending where nothing is listed": replaced(
        (checkpoint, "select_pending", _nothing_pending_unlisted), _UNCHECKED
    ),
    "ranges that were looked at and are live again tracked": replaced((run, "store_tracked_ranges", _looked_at)),
}
"""Seeded bugs by name."""

TESTED_CHAIN_BUGS: dict[str, TestedBug] = {
    "expired as it was when the run began": TestedBug(
        Bug(_first_look),
        test_expiry_meanwhile.test_what_expires_after_the_listing_began_is_looked_at_in_the_same_run,
    ),
}
"""Bugs that a test with its own history shows."""


Ask = Callable[[], RetentionRules | None]
_dated_by_files = active_commits.dated_by_files
_ZERO = RetentionRules(0, {"-": 0})
_NONE_LISTED = ServerCommits("", pa.array([], pa.string()), None)


class _Misled:
    """A server with other rules."""

    def __init__(self, api: Any, rules: Ask, lists: bool = True) -> None:
        self._api = api
        self.retention_rules = rules
        self.lists = lists

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)


def _defining(define: Callable[..., LiveDefinition]) -> tuple[Replacement, ...]:
    """Replaces the definition of live commits wherever it is used."""
    return (current, "define_live", define), (listing, "define_live", define)


def _with_rules(step: ArrowStep, rules: Callable[[Ask], RetentionRules | None], lists: bool = True) -> ArrowStep:
    """A copy of the step that gets other answers about rules."""
    reported, misled = step.repository, copy.copy(step)
    misled.repository = replace(reported, api=_Misled(reported.api, lambda: rules(reported.api.retention_rules), lists))
    return misled


def _by_rules(rules: Callable[[Ask], RetentionRules | None]) -> tuple[Replacement, ...]:
    def define(step: ArrowStep, *more: Any, **named: Any) -> LiveDefinition:
        return define_live(_with_rules(step, rules), *more, **named)

    return _defining(define)


def _ask_by_rules_of_the_mark(step: ArrowStep, *more: Any, **named: Any) -> Committed:
    """Rechecks by the rules of the mark, without the server's list, which goes by the present rules."""
    at_mark = step.stored(UNCOMMITTED_DF).figures.reasons_before
    if at_mark is None:
        return ask_committed(step, *more, **named)
    return ask_committed(_with_rules(step, lambda ask: at_mark.rules, lists=False), *more, **named)


def _list_unless_misled(repository: OpenRepository, *more: Any) -> ServerCommits:
    return server_commits(repository, *more) if getattr(repository.api, "lists", True) else _NONE_LISTED


def _none_where_unread(ask: Ask) -> RetentionRules | None:
    """Treats unreadable rules as no rules."""
    try:
        return ask()
    except LakeFSError:
        return None


def _zero_where_unread(ask: Ask) -> RetentionRules | None:
    """Treats unreadable rules as zero days."""
    try:
        return ask()
    except LakeFSError:
        return _ZERO


def _zero_where_none(ask: Ask) -> RetentionRules | None:
    """Treats missing rules as zero days."""
    return ask() or _ZERO


def _new_commits_alone() -> Sequence[Replacement]:
    """Rechecks only commits made since the mark, not old ones that count again."""
    let_go: dict[str, frozenset[str]] = {}

    rechecking: set[tuple[str, str]] = set()

    def find(step: ArrowStep, samples: Samples) -> ArrowRows:
        rechecking.add((step.plan.run_id, step.plan.attempt))
        return find_live_again(step, samples)

    def define(step: ArrowStep, until: datetime, *more: Any, **named: Any) -> LiveDefinition:
        found = define_live(step, until, *more, **named)
        if (step.plan.run_id, step.plan.attempt) not in rechecking:
            let_go[step.plan.run_id] = frozenset(found.expired_metaranges)
        return found

    def ask(step: ArrowStep, until: datetime, known: frozenset[str], *more: Any) -> Committed:
        found = ask_committed(step, until, known, *more)
        if not step.plan.flow.by_retention:
            return found
        return reading_only(step, found, set(found.own.metarange_ids) - let_go[step.plan.run_id], known)

    return *_defining(define), (recheck, "ask_committed", ask), (sweeping, "find_live_again", find)


def _uncommitted_alone(step: ArrowStep, samples: Samples) -> ArrowRows:
    """Rechecks uncommitted data only."""
    return only_uncommitted(step, samples) if step.plan.flow.by_retention else find_live_again(step, samples)


def _by_latest_clock(step: ArrowStep, *more: Any, **named: Any) -> LiveDefinition:
    """Counts ages back from the clock that is ahead of the others."""
    ahead = max(latest_clock(step.repository) - step.repository.clock.now(), timedelta())
    late = copy.copy(step)
    late.plan = replace(step.plan, earliest_clock=step.plan.started_at + ahead)
    return define_live(late, *more, **named)


def _nothing_staged(step: ArrowStep, *more: Any, **named: Any) -> Uncommitted[ArrowRows]:
    """Treats staged entries as garbage if only expired commits hold them."""
    found = prepare_uncommitted(step, *more, **named)
    nothing = step.engine.table(LIVE.empty_table())
    return replace(found, addresses=(nothing,)) if step.plan.flow is Flow.COMMITTED else found


def _nothing_active(step: ArrowStep, listed: Any, committed: Any) -> StoredFrame[NoFigures]:
    """Treats all entries of expired ranges as garbage, even if an active range holds them too."""
    if step.plan.flow is Flow.COMMITTED:
        committed = StoredFrame(committed.frame, replace(committed.manifest, files=()), committed.opener)
    return subtract_committed(step, listed, committed)


def _aged_by_commit() -> Sequence[Replacement]:
    """Takes the date of a commit for the age of its entries."""
    dumps: list[Dump] = []

    def dump(*arguments: Any, **named: Any) -> Dump:
        dumps[:] = [complete_dump(*arguments, **named)]
        return dumps[0]

    def read(step: ArrowStep, *expired: Any) -> ArrowRows:
        rows = read_expired(step, *expired)
        dates = _dates(step, dumps[-1]) if dumps else {}

        def aged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                made = pa.array([dates[address] for address in batch.column("address").to_pylist()], TIME)
                for name in ("issued_at", "last_modified"):
                    position = batch.schema.get_field_index(name)
                    batch = batch.set_column(position, batch.schema.field(position), made)
                yield batch

        return step.engine.map_batches(rows, aged, LISTED)

    return (live_commits, "complete_dump", dump), (listing, "read_expired", read)


def _dates(step: ArrowStep, dump: Dump) -> dict[str, int]:
    """Date of the first commit that holds each address, in microseconds."""
    references, dates = References.from_step(step), dict[str, int]()
    pairs = zip(dump.commits.metarange_ids.to_pylist(), dump.commits.seconds.tolist(), strict=True)
    for metarange_id, seconds in pairs:
        records = references.range_records((metarange_id,) if metarange_id else ())
        for address in step.engine.collect(references.entries(records)).column("address").to_pylist():
            dates[address] = min(seconds * 1_000_000, dates.get(address, seconds * 1_000_000))
    return dates


def _taken_for_gone(*outcomes: str) -> Replacement:
    """Never retries addresses for which an earlier run's receipt has one of these outcomes."""

    def deleted(step: ArrowStep, *more: Any) -> ArrowRows:
        store = step.repository.store
        earlier = [run_id for run_id in run_folder.newest_runs(store) if run_id != step.plan.run_id]
        rows = (row for run_id in earlier for row in receipts.read(store, run_id).to_pylist())
        gone = {row["address"] for row in rows if row["outcome"] in outcomes}
        reported = step.engine.table(pa.table({"address": pa.array(sorted(gone), pa.string())}))
        return step.engine.union(deleted_before(step, *more), reported)

    return listing, "deleted_before", deleted


_after, _walk, _spread = active_commits._after, active_commits._walk, active_commits.spread_longest
_periods, _dated = active_commits._periods, Graph.dated
_main_parents, _graph_of, _retention = active_commits._main_parents, Graph.from_commits, retention.retention
_read = retention.read


def _last_parents(commits: CommitColumns) -> Integers:
    return _main_parents(replace(commits, versions=np.zeros(len(commits), np.int64)))


def _not_after(commits: CommitColumns, now: datetime, longest: Integers) -> active_commits.Flags:
    found: active_commits.Flags = _after(commits, now, longest + 1) & (
        commits.seconds >= active_commits._moment(now)[0] - longest
    )
    return found


def _oldest_of_periods(
    main_parents: Any, uncounted: Any, first: Any, last: Any, rule: tuple[int, int, int, int], marks: Any
) -> None:
    """Keeps the first commit of each period, as other tools may."""
    commit, limit, walk, count = rule
    oldest: dict[int, int] = {}
    while commit >= 0 and len(oldest) <= limit:
        oldest[int(last[commit]) if len(last) else -len(oldest)] = commit
        commit = int(main_parents[commit])
    marks[[*oldest.values()][:limit]] = walk, count, False


def _from_noon(seconds: Integers, name: str) -> Integers:
    return _periods(seconds + 43_200, name)


def _never_in_doubt(self: Graph, commits: CommitColumns, earliest: Integers) -> Graph:
    return _dated(self, commits, commits.seconds)


def _without_leaves(cls: type[Graph], *arguments: Any) -> Graph:
    return replace(_graph_of(*arguments), leaves=np.empty(0, np.int64))


def _leaves_as_heads(graph: Graph, *more: Any) -> Walks:
    walks = _walk(graph, *more)
    walks.kept_by[graph.leaves] = graph.leaves
    return walks


def _own_walk_first(parents: Any, offsets: Any, longest: Any, walks: Any) -> int:
    began = longest.copy(), walks.copy()
    visited = _spread(parents, offsets, longest, walks)
    for through, start in zip((longest, walks), began, strict=True):
        own = began[0] >= 0
        through[own] = start[own]
    return visited


def _listed_alone(*arguments: Any) -> Retention:
    found = _retention(*arguments)
    if found.active is None:
        return found
    flags = np.zeros(len(found.flags), np.bool_)
    flags[found.listed] = True
    return replace(found, flags=flags)


def _by_files_alone(graph: Graph, *more: Any) -> Graph:
    """Takes the age of a commit's file for its age, even against its claim: a file's time may be too old."""
    long_ago = np.full(len(graph.commits), -(2**40), np.int64)
    return _dated_by_files(replace(graph, commits=replace(graph.commits, seconds=long_ago)), *more)


def _no_tags(settings: Any) -> Policy:
    return Policy(keep_tags=False)


def _nothing_if_refused(*arguments: Any) -> ServerCommits:
    try:
        return server_commits(*arguments)
    except LakeFSError:
        return _NONE_LISTED


def _read_with_marks(repository: OpenRepository, *more: Any, **named: Any) -> Readings:
    """Believes the mark in a commit's metadata, which any client can set."""
    readings = _read(repository, *more, **named)
    every = readings.dump.commits.ids.to_pylist()
    marked = {commit_id for commit_id in every if MARK in dict(repository.api.commit(commit_id).metadata)}
    return replace(readings, lifecycle=readings.lifecycle | marked)


RETENTION_BUGS: dict[str, Bug] = {
    "rules that cannot be read taken for none": replaced(*_by_rules(_none_where_unread)),
    "rules that cannot be read taken for zero days": replaced(*_by_rules(_zero_where_unread)),
    "no rules taken for zero days": replaced(
        *_by_rules(_zero_where_none), (retention, "server_commits", _nothing_if_refused)
    ),
    "recheck of new commits alone": Bug(_new_commits_alone),
    "recheck of uncommitted data alone": replaced((sweeping, "find_live_again", _uncommitted_alone)),
    "ages from the clock ahead of the others": replaced(*_defining(_by_latest_clock)),
    "age not strict": replaced((active_commits, "_after", _not_after)),
    "last parents followed": replaced((active_commits, "_main_parents", _last_parents)),
    "dangling commits ignored": replaced((Graph, "from_commits", classmethod(_without_leaves))),
    "dangling commits taken for heads": replaced((active_commits, "_walk", _leaves_as_heads)),
    "a walk's own rule instead of the longest": replaced((active_commits, "spread_longest", _own_walk_first)),
    "the oldest commit of each period kept": replaced((active_commits, "mark_counted", _oldest_of_periods)),
    "days that begin at noon": replaced((active_commits, "_periods", _from_noon)),
    "dates in doubt believed": replaced((Graph, "dated", _never_in_doubt)),
    "the server's list alone": replaced((retention, "retention", _listed_alone)),
    "tags forgotten by retention rules": replaced((retention, "policy_of", _no_tags)),
    "uncommitted data ignored": replaced(
        *((owner, "prepare_uncommitted", _nothing_staged) for owner in (run, recheck))
    ),
    "what active commits hold not subtracted": replaced((run, "subtract_committed", _nothing_active)),
    "age taken from the commit's date": Bug(_aged_by_commit),
    "commits of object lifecycle counted": replaced((retention, "list_own_commits", lambda *about: frozenset())),
    "marks of object lifecycle believed without receipts": replaced((retention, "read", _read_with_marks)),
    "claimed dates of commits believed": replaced((retention, "dated_by_files", lambda graph, *more: graph)),
    "times of files believed in place of dates": replaced((retention, "dated_by_files", _by_files_alone)),
    "failed deletions taken for done": replaced(_taken_for_gone(Outcome.FAILED.value)),
    "what was brought back taken for gone": replaced(_taken_for_gone(*receipts.GONE)),
}
"""Seeded bugs by name."""

TESTED_RETENTION_BUGS: dict[str, TestedBug] = {
    "rules read at the mark alone": TestedBug(
        replaced(
            (recheck, "ask_committed", _ask_by_rules_of_the_mark), (retention, "server_commits", _list_unless_misled)
        ),
        test_expiry_meanwhile.TestARuleThatBecameLongerSinceTheMark().test_keeps_what_a_branch_goes_back_to_during_a_recheck,
    ),
}
"""Bugs that a test with its own history shows."""
