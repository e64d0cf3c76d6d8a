"""Seeded bugs of runs by retention rules: data that a hurried collector mistakes for expired."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from lakefs_gc_assets.collector import commits as live_commits
from lakefs_gc_assets.collector import recheck, run, sweeping
from lakefs_gc_assets.collector.commits import Dump, ServerCommits, complete_dump, server_commits
from lakefs_gc_assets.collector.engine.local import ArrowRows
from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import LISTED, LIVE, TIME, UNCOMMITTED_DF, NoFigures
from lakefs_gc_assets.collector.incremental.earlier_runs import deleted_before
from lakefs_gc_assets.collector.live import current
from lakefs_gc_assets.collector.live.current import (
    Committed,
    Samples,
    Uncommitted,
    ask_committed,
    define_live,
    prepare_uncommitted,
)
from lakefs_gc_assets.collector.live.references import References
from lakefs_gc_assets.collector.recheck import find_live_again
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.records.outcomes import Outcome
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.repository.lock import latest_clock
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.retention import active_commits, retention
from lakefs_gc_assets.collector.retention.active_commits import Graph, Walks
from lakefs_gc_assets.collector.retention.retention import LiveDefinition, Retention
from lakefs_gc_assets.collector.retention.rules import Policy
from lakefs_gc_assets.collector.universe import listing
from lakefs_gc_assets.collector.universe.listing import read_expired
from lakefs_gc_assets.collector.universe.subtraction import subtract_committed
from lakefs_gc_assets.errors import LakeFSError
from lakefs_gc_assets.lakefs.api.models import RetentionRules
from lakefs_gc_assets.lakefs.formats.refs import CommitColumns, Integers
from lakefs_gc_assets_tests.simulation import test_expiry_meanwhile
from lakefs_gc_assets_tests.simulation.bug import ArrowStep, Bug, Replacement, TestedBug, replaced
from lakefs_gc_assets_tests.simulation.chain_bugs import reading_only
from lakefs_gc_assets_tests.simulation.clean_bugs import only_uncommitted

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


def _last_parents(commits: CommitColumns) -> Integers:
    return _main_parents(replace(commits, versions=np.zeros(len(commits), np.int64)))


def _not_after(commits: CommitColumns, now: datetime, longest: Integers) -> active_commits.Flags:
    found: active_commits.Flags = _after(commits, now, longest + 1) & (
        commits.seconds >= active_commits._moment(now)[0] - longest
    )
    return found


def _oldest_of_periods(main_parents: Any, first: Any, last: Any, rule: tuple[int, int, int, int], marks: Any) -> None:
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


def _without_leaves(cls: type[Graph], commits: CommitColumns, branches: Mapping[str, str]) -> Graph:
    return replace(_graph_of(commits, branches), leaves=np.empty(0, np.int64))


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
