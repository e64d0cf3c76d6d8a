"""The definition of retention: the commits that keep their objects, computed from the complete commit graph.

A walk follows the whole main ancestry from each branch head, and from a hypothetical child of every dangling commit,
with the same date. If a commit on a walk is young by the walk's rule, its main parent is active: it was head inside the
window or when the window opened. Heads are active at any age. The limit is strict: a commit of exactly seven days is
not young under a rule of seven days. A commit on several walks follows the longest rule. So one pass over all commits,
children before parents, computes all walks. A second such pass follows all parents, for rules that require it.

Counting rules keep commits of a branch's line of first parents at any age: the newest ones, and the newest one in each
of the last days, weeks, months or years (UTC, ISO weeks) with commits. They handle dates in doubt, see `mark_counted`.
Commits that object lifecycle made are not counted: they stay if the count goes on behind them.
If files or parents prove that a commit is younger than its claimed date, the later date counts (`dated_by_files`).

Walks are compiled and visit each commit once. Inside a walk, commits are positions, and the main parent of a commit
without parents is -1. All compiled functions share this file, because numba invalidates its disk cache only if this
file changes (`lakefs.formats.compilation`).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.commits import NOT_LISTED
from lakefs_gc_assets.collector.records import run_folder, tables
from lakefs_gc_assets.collector.retention.rules import COUNTS, LAST, PERIODS, EffectiveRules, Rule, count_number
from lakefs_gc_assets.errors import CorruptFile, LakeFSError, LogLine
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.formats.compilation import compiled
from lakefs_gc_assets.lakefs.formats.refs import CommitColumns, Integers
from lakefs_gc_assets.storage.interface import ObjectStore, get_if_there

Array = npt.NDArray[Any]


@compiled
def children_first(parents: Array, offsets: Array) -> Array:
    """The commits, each before its parents; fewer than the input if parents form a cycle.

    Args:
        parents: positions of the parents to follow, grouped by commit; -1 for none.
        offsets: start of each commit's group; one longer than the number of commits.
    """
    count = len(offsets) - 1
    children = np.zeros(count, np.int64)
    for parent in parents:
        if parent >= 0:
            children[parent] += 1
    ready = np.empty(count, np.int64)
    last = 0
    for commit in range(count):
        if children[commit] == 0:
            ready[last] = commit
            last += 1
    visited = 0
    while visited < last:
        commit = ready[visited]
        visited += 1
        for at in range(offsets[commit], offsets[commit + 1]):
            parent = parents[at]
            if parent >= 0:
                children[parent] -= 1
                if children[parent] == 0:
                    ready[last] = parent
                    last += 1
    return ready[:last]


@compiled
def spread_longest(parents: Array, offsets: Array, longest: Array, start: Array) -> int:
    """Passes the longest retention of the walks through each commit on to its parents, children first.

    `longest` (seconds, -1 for none) and `start` (number of the walk) hold the walk that begins at each commit, and in
    the end the longest walk through it. Returns the number of visited commits: fewer than all if parents form a cycle.

    Args:
        parents, offsets: as for `children_first`.
    """
    order = children_first(parents, offsets)
    for commit in order:
        for at in range(offsets[commit], offsets[commit + 1]):
            parent = parents[at]
            if parent >= 0 and longest[commit] > longest[parent]:
                longest[parent] = longest[commit]
                start[parent] = start[commit]
    return len(order)


@compiled
def mark_counted(
    main_parents: Array, uncounted: Array, first: Array, last: Array, rule: tuple[int, int, int, int], marks: Array
) -> None:
    """Marks in `marks` the commits that a counting rule keeps on a branch's line; the first mark of a commit counts.

    A commit's date is *in doubt* for a period if the commit may have been made in several. Either its claimed date, the
    write time of its metarange's file and its parents point to different periods, or a newer commit of the line claims
    an earlier period. Such a commit fills no period, and stays until others fill all periods that the rule counts.

    Args:
        uncounted: True for each commit that object lifecycle made. It fills no period, and stays if the count is not
            full yet. So a wrong flag only keeps more: each commit stays that stays without it.
        first, last: the earliest and the latest period in which each commit may have been made; empty to count commits.
        rule: the head, the number of commits or periods that count, and `walk` and `count` of the mark.
        marks: COUNTED. A mark without doubt replaces one in doubt.
    """
    commit, limit, walk, count = rule
    walks, counts, doubts = marks["walk"], marks["count"], marks["in_doubt"]
    filled, newest, lowest = 0, 2**62, 2**62
    while commit >= 0 and filled < limit:
        stays, in_doubt = len(last) == 0, False
        if len(last):
            in_doubt = first[commit] < last[commit] or last[commit] > lowest
            lowest = min(lowest, last[commit])
            if not in_doubt and last[commit] < newest and not uncounted[commit]:
                stays, newest = True, last[commit]
        if stays and not uncounted[commit]:
            filled += 1
        if uncounted[commit]:
            stays = True
        if (stays and doubts[commit]) or ((stays or in_doubt) and walks[commit] < 0):
            walks[commit], counts[commit], doubts[commit] = walk, count, not stays
        commit = main_parents[commit]


@compiled
def mark_kept(
    main_parents: Array, seconds: Array, nanos: Array, head: int, after: tuple[int, int], kept: Array
) -> None:
    """Marks in `kept` the commits that the walk from a head keeps: the head, and parents of commits after a moment.

    The walk follows main parents. The moment is a second and a nanosecond.
    """
    from_second, from_nano = after
    commit = head
    kept[commit] = True
    while main_parents[commit] >= 0:
        if seconds[commit] > from_second or (seconds[commit] == from_second and nanos[commit] > from_nano):
            kept[main_parents[commit]] = True
        commit = main_parents[commit]


@compiled
def raise_dates(parents: Array, offsets: Array, dates: Array, proved: Array, now: Array) -> int:
    """Raises dates of commits to the latest dates that their files or parents prove, parents first.

    The claimed date of a parent counts for its children too, unless it lies in the future: nothing was made then.

    Args:
        parents, offsets: of all parents, as for `children_first`; -1 for an unknown one.
        dates: claimed seconds and nanoseconds of commits, shape (commits, 2); raised in place.
        proved: seconds and nanoseconds before which commits cannot have been made, by their files; overwritten.
        now: second and nanosecond of the present.
    Returns:
        Number of visited commits: fewer than all if parents form a cycle.
    """
    order = children_first(parents, offsets)
    for commit in order[::-1]:
        for at in range(offsets[commit], offsets[commit + 1]):
            parent = parents[at]
            if parent >= 0:
                second, nano = proved[parent, 0], proved[parent, 1]
                if second > proved[commit, 0] or (second == proved[commit, 0] and nano > proved[commit, 1]):
                    proved[commit, 0], proved[commit, 1] = second, nano
        second, nano = dates[commit, 0], dates[commit, 1]
        if proved[commit, 0] > second or (proved[commit, 0] == second and proved[commit, 1] > nano):
            dates[commit, 0], dates[commit, 1] = proved[commit, 0], proved[commit, 1]
        elif second < now[0] or (second == now[0] and nano <= now[1]):
            proved[commit, 0], proved[commit, 1] = second, nano
    return len(order)


Flags = npt.NDArray[np.bool_]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_BEFORE_ALL = -(2**62)
"""A second before any commit."""
_FAR = 2**40
"""Seconds from 1970 to dates that no calendar needs to distinguish."""
COUNTED = np.dtype([("walk", np.int32), ("count", np.int8), ("in_doubt", np.bool_)])
"""The count by which a rule keeps a commit: positions in `Active.walk_names` and in COUNTS, and True if the commit
only stays because its date is in doubt. `walk` is -1 for a commit that no rule counts."""


@dataclass(frozen=True, slots=True)
class Graph:
    """Commits with their main parents, heads and loose ends; commits are positions in the columns.

    Attributes:
        main_parents: -1 for a commit without parents.
        heads: position of the head by branch.
        branches_at: branches by head.
        leaves: dangling commits, which are neither a main parent nor a head.
        periods: periods in which commits may have been made.
        by_lifecycle: True for each commit that object lifecycle made, which no rule counts.
    """

    commits: CommitColumns
    main_parents: Integers
    heads: dict[str, int]
    branches_at: dict[int, tuple[str, ...]]
    leaves: Integers
    periods: "Periods"
    by_lifecycle: Flags

    @classmethod
    def from_commits(
        cls, commits: CommitColumns, branches: Mapping[str, str], lifecycle: Collection[str] = ()
    ) -> "Graph":
        """Builds the graph. Raises LakeFSError if a head or a main parent is not among the commits.

        Args:
            lifecycle: ids of commits that object lifecycle made; others may be among them.
        """
        heads = positions_by_name(commits, branches)
        for branch, head in heads.items():
            if head < 0:
                raise LakeFSError(f"commit {branches[branch]}, head of branch {branch}, is missing from the commits")
        parents = _main_parents(commits)
        periods = Periods(commits.seconds, commits.seconds)
        made = commits.positions(pa.array(lifecycle, pa.string()))
        by_lifecycle = np.zeros(len(commits), np.bool_)
        by_lifecycle[made[made >= 0]] = True
        return cls(commits, parents, heads, names_by_position(heads), _leaves(parents, heads), periods, by_lifecycle)

    def dated(self, commits: CommitColumns, earliest: Integers) -> "Graph":
        """The graph of the same commits with other dates.

        Args:
            earliest: the first second in which each commit may have been made; the last one is that of its date.
        """
        return replace(self, commits=commits, periods=Periods(earliest, commits.seconds))

    def without(self, branch: str) -> "Graph":
        """The graph as if this branch was deleted; its head may then be dangling."""
        heads = {name: head for name, head in self.heads.items() if name != branch}
        leaves = _leaves(self.main_parents, heads)
        return replace(self, heads=heads, branches_at=names_by_position(heads), leaves=leaves)

    def without_lifecycle(self) -> "Graph":
        """The graph in which commits that object lifecycle made are on no line, and so dangling.

        Only a head stays in place if object lifecycle made every commit of its line.
        """
        parents = self.main_parents.copy()
        while (skipped := np.flatnonzero((parents >= 0) & self.by_lifecycle[parents])).size:
            parents[skipped] = parents[parents[skipped]]
        moved = {branch: int(parents[head]) for branch, head in self.heads.items() if self.by_lifecycle[head]}
        heads = self.heads | {branch: head for branch, head in moved.items() if head >= 0}
        return replace(
            self,
            main_parents=parents,
            heads=heads,
            branches_at=names_by_position(heads),
            leaves=_leaves(parents, heads),
        )


def positions_by_name(commits: CommitColumns, named: Mapping[str, str]) -> dict[str, int]:
    """Positions of commits that branches or tags name, by their names; -1 for a commit that is not there."""
    positions = commits.positions(pa.array(named.values(), pa.string()))
    return dict(zip(named, positions.tolist(), strict=True))


def names_by_position(positions: Mapping[str, int]) -> dict[int, tuple[str, ...]]:
    """Names of branches or tags by the commits that they name."""
    names: dict[int, tuple[str, ...]] = {}
    for name, at in positions.items():
        names[at] = (*names.get(at, ()), name)
    return names


def _leaves(main_parents: Integers, heads: Mapping[str, int]) -> Integers:
    """Dangling commits: no main parents, and no heads."""
    dangling = np.ones(len(main_parents), np.bool_)
    dangling[main_parents[main_parents >= 0]] = False
    dangling[list(heads.values())] = False
    return np.flatnonzero(dangling)


def _main_parents(commits: CommitColumns) -> Integers:
    """Positions of first parents; for commits of version 0, of last parents."""
    offsets = commits.parent_offsets
    chosen = np.where(commits.versions == 0, offsets[1:] - 1, offsets[:-1])
    has_parents = np.diff(offsets) > 0
    named = commits.parents.take(pa.array(chosen[has_parents]))
    parents = np.full(len(commits), -1, np.int64)
    parents[has_parents] = commits.positions(named)
    lost = np.flatnonzero(has_parents & (parents < 0))
    if len(lost):
        raise LakeFSError(
            f"the graph is incomplete: the main parent of commit {commits.ids[int(lost[0])]} is missing from the "
            f"commits ({len(lost)} such commits)"
        )
    return parents


@dataclass(frozen=True, slots=True)
class Walks:
    """Walks along some parents, and the commits that they keep.

    Attributes:
        kept_by: for each kept commit the young commit whose parent it is; for a dangling commit itself; -1 for all
            others.
        longest: for each commit the longest walk through it: a position in `Active.walk_names`; -1 for none.
    """

    kept_by: Integers
    longest: Integers


@dataclass(frozen=True, slots=True)
class Active:
    """Commits that the definition keeps, and the reasons; heads are kept in any case.

    Attributes:
        flags: True for each active commit.
        walks: walks along main parents; if rules follow all parents, walks along all parents, too.
        walk_names: branches by walk, None for dangling commits.
        counted: COUNTED for each commit.
    """

    graph: Graph
    rules: EffectiveRules
    now: datetime
    flags: Flags
    walks: tuple[Walks, ...]
    walk_names: tuple[str | None, ...]
    counted: npt.NDArray[np.void]

    @property
    def young(self) -> Flags:
        """True for each commit that stays by its age."""
        kept: Flags = np.any([walks.kept_by >= 0 for walks in self.walks], axis=0)
        return kept

    @property
    def in_doubt(self) -> Flags:
        """True for each commit with objects that stays only because a rule counts and its date is in doubt."""
        only: Flags = ~self.young & self.counted["in_doubt"]
        only &= pc.not_equal(self.graph.commits.metarange_ids, "").to_numpy(zero_copy_only=False)
        only[list(self.graph.heads.values())] = False
        return only

    def why(self, at: int) -> str:
        """The reason why an active commit is active, in words. Raises ValueError for a commit that is not."""
        if not self.flags[at]:
            raise ValueError(f"commit {self.graph.commits.ids[at]} is not active")
        if at in self.graph.branches_at:
            return f"head of {', '.join(self.graph.branches_at[at])}"
        walks = next((each for each in self.walks if each.kept_by[at] >= 0), None)
        if walks is None:
            counted = self.counted[at]
            branch, doubt = self.walk_names[counted["walk"]], ", as its date is in doubt" if counted["in_doubt"] else ""
            how = "made by object lifecycle, not counted" if self.graph.by_lifecycle[at] else "kept"
            return f"{how} by {COUNTS[counted['count']]} on {branch}{doubt}: {self.rules.of(branch)}"
        by = int(walks.kept_by[at])
        branch = self.walk_names[walks.longest[by]]
        rule = self.rules.of(branch)
        age = in_words(self.now - date(self.graph.commits, by))
        if by == at:
            return f"dangling, made {age}: {rule}"
        where = "a dangling line" if branch is None else f"branch {branch}"
        merged = "" if self.graph.main_parents[by] == at else "was merged or "
        return f"{merged}was replaced on {where} by {self.graph.commits.ids[by]}, made {age}: {rule}"


def active_commits(graph: Graph, rules: EffectiveRules, now: datetime) -> Active:
    """The active commits at a moment.

    Args:
        rules: one for each branch of the graph.
        now: aware; if clocks differ, the earliest one keeps most.
    Raises:
        LakeFSError: parents form a cycle.
    """
    names = (None, *graph.heads)
    of_branches = {branch: rules.branches[branch] for branch in graph.heads}
    walks = [_walk(graph, {name: rule.retention for name, rule in of_branches.items()}, rules.default.retention, now)]
    merged = {name: rule.merged for name, rule in of_branches.items() if rule.merged is not None}
    if merged:
        walks.append(_walk(graph, merged, None, now))
    counted = none_counted(graph)
    for walk, (branch, rule) in enumerate(of_branches.items(), 1):
        _mark_counted(graph, branch, rule, walk, counted)
    flags = np.any([kept.kept_by >= 0 for kept in walks], axis=0) | (counted["walk"] >= 0)
    flags[list(graph.heads.values())] = True
    return Active(graph, rules, now, flags, tuple(walks), names, counted)


def _walk(graph: Graph, retentions: Mapping[str, timedelta], dangling: timedelta | None, now: datetime) -> Walks:
    """Walks from heads, and from loose ends along main parents; along all parents if `dangling` is None."""
    commits, parents, offsets = graph.commits, graph.main_parents, np.arange(len(graph.commits) + 1)
    # The walk that begins at each commit, and in the end the longest walk through it.
    longest, walks = np.full(len(commits), -1, np.int64), np.full(len(commits), -1, np.int64)
    if dangling is None:
        parents, offsets = commits.positions(commits.parents), commits.parent_offsets
    else:
        longest[graph.leaves], walks[graph.leaves] = dangling // _SECOND, 0
    for walk, (branch, head) in enumerate(graph.heads.items(), 1):
        retention = retentions[branch] // _SECOND if branch in retentions else -1
        if retention > longest[head]:
            longest[head], walks[head] = retention, walk
    if spread_longest(parents, offsets, longest, walks) != len(commits):
        raise _circle("parents" if dangling is None else "main parents")
    young = _after(commits, now, longest) & (longest >= 0)
    children = np.repeat(np.arange(len(commits)), np.diff(offsets))
    kept_by = np.full(len(commits), -1, np.int64)
    replaced = young[children] & (parents >= 0)
    kept_by[parents[replaced]] = children[replaced]
    if dangling is not None:
        loose = graph.leaves[young[graph.leaves]]
        kept_by[loose] = loose
    return Walks(kept_by, walks)


def none_counted(graph: Graph) -> npt.NDArray[np.void]:
    """COUNTED without any counted commit."""
    return np.full(len(graph.commits), np.array((-1, 0, False), COUNTED))


def _mark_counted(graph: Graph, branch: str, rule: Rule, walk: int, marks: npt.NDArray[np.void]) -> None:
    """Marks the commits that a counting rule keeps on the line of a branch, see `mark_counted`."""
    for name, limit in rule.keeps:
        count, (first, last) = count_number(name), graph.periods.named(name)
        rule_of_count = (graph.heads[branch], limit, walk, count)
        mark_counted(graph.main_parents, graph.by_lifecycle, first, last, rule_of_count, marks)


class Periods:
    """The earliest and latest days, weeks, months and years of commits, each computed when a rule first counts them."""

    def __init__(self, earliest: Integers, latest: Integers) -> None:
        self._seconds = earliest, latest
        self._known: dict[str, tuple[Integers, Integers]] = {LAST: (np.empty(0, np.int64), np.empty(0, np.int64))}

    def named(self, name: str) -> tuple[Integers, Integers]:
        """Numbers of the commits' earliest and latest periods; empty for LAST, which counts commits."""
        if name not in self._known:
            earliest, latest = self._seconds
            self._known[name] = _periods(earliest, name), _periods(latest, name)
        return self._known[name]


def _periods(seconds: Integers, name: str) -> Integers:
    """Numbers of the periods (UTC) of seconds since 1970."""
    return PERIODS[name](np.clip(seconds, -_FAR, _FAR))


def kept_dangling(graph: Graph, rules: EffectiveRules, now: datetime) -> int:
    """Number of commits that walks of dangling commits would keep without any branch."""
    return int((_walk(graph, {}, rules.default.retention, now).kept_by >= 0).sum())


def kept_by_branch(graph: Graph, rules: EffectiveRules, now: datetime) -> dict[str, int]:
    """Number of commits that a branch's rule would keep without the others, by branch."""
    return {
        branch: int(np.count_nonzero(kept_alone(graph, branch, rules.branches[branch], now))) for branch in graph.heads
    }


def kept_alone(graph: Graph, branch: str, rule: Rule | None, now: datetime) -> Flags:
    """True for each commit that the rule of a branch alone would keep.

    Args:
        rule: None if nothing expires: the whole main ancestry stays.
    """
    second, nano = _moment(now)
    commits, kept = graph.commits, np.zeros(len(graph.commits), np.bool_)
    moment = _BEFORE_ALL if rule is None else second - rule.retention // _SECOND, nano
    mark_kept(graph.main_parents, commits.seconds, commits.nanos, graph.heads[branch], moment, kept)
    if rule is not None and rule.keeps:
        counted = none_counted(graph)
        _mark_counted(graph, branch, rule, 0, counted)
        kept |= counted["walk"] >= 0
    if rule is not None and rule.merged:
        kept |= _walk(graph, {branch: rule.merged}, None, now).kept_by >= 0
    return kept


def dated_by_files(graph: Graph, written: Integers | None, now: datetime) -> Graph:
    """The graph with the latest known dates of commits in place of the claimed ones.

    Any client may claim any date for a commit (`date` of lakeFS's API). Yet a commit was made after its metarange's
    file was written, and after its parents were made, so it is no older than these. A later date only keeps more.

    A file that several commits share, or that was copied, may be older or newer than a commit. So a commit may have
    been made since its claimed date or the time of its file, and nothing is known about one without a file.

    Args:
        written: LastModified of the commits' metaranges, microseconds since 1970 by the store's clock; NOT_LISTED for a
            missing file. Ignored for a commit without a metarange. None trusts the claimed dates.
        now: a date claimed after this moment counts for the commit itself, and not for its children.
    Raises:
        LakeFSError: parents form a cycle.
    """
    if written is None:
        return graph
    commits = graph.commits
    dates = np.stack([commits.seconds, commits.nanos], axis=1)
    has_file = pc.not_equal(commits.metarange_ids, "").to_numpy(zero_copy_only=False)
    known = has_file & (written != NOT_LISTED)
    proved = np.full(dates.shape, _BEFORE_ALL, np.int64)
    proved[known, 0], proved[known, 1] = np.divmod(written[known], 1_000_000)
    proved[known, 1] *= 1000
    parents = commits.positions(commits.parents)
    if raise_dates(parents, commits.parent_offsets, dates, proved, np.array(_moment(now), np.int64)) != len(commits):
        raise _circle("parents")
    # A commit of unknown age is taken for the youngest possible.
    unknown = has_file & ~known & ~_is_after(dates[:, 0], dates[:, 1], *_moment(now))
    dates[unknown] = _moment(now)
    earliest = np.where(has_file, np.minimum(commits.seconds, written // 1_000_000), _BEFORE_ALL)
    return graph.dated(replace(commits, seconds=dates[:, 0].copy(), nanos=dates[:, 1].copy()), earliest)


def _circle(what: str) -> LakeFSError:
    return LakeFSError(f"the commit graph is corrupt: {what} form a cycle. Nothing may be collected")


def date(commits: CommitColumns, at: int) -> datetime:
    """The date of a commit in these columns, clamped to the range of datetime."""
    seconds = min(max(int(commits.seconds[at]), -(2**35)), 2**37)
    return _EPOCH + timedelta(seconds=seconds, microseconds=int(commits.nanos[at]) // 1000)


def in_words(age: timedelta) -> str:
    """An age in words for a person."""
    if age < timedelta():
        return "in the future"
    if age < timedelta(days=2):
        return f"{age / timedelta(hours=1):.1f} hours ago"
    return f"{age / timedelta(days=1):.1f} days ago"


def _after(commits: CommitColumns, now: datetime, longest: Integers) -> Flags:
    """True for each commit made strictly less than `longest` seconds before a moment."""
    second, nano = _moment(now)
    return _is_after(commits.seconds, commits.nanos, second - longest, nano)


def _is_after(seconds: Integers, nanos: Integers, from_second: Integers | int, from_nano: int) -> Flags:
    later: Any = (seconds > from_second) | ((seconds == from_second) & (nanos > from_nano))
    return later  # type: ignore[no-any-return]


def _moment(now: datetime) -> tuple[int, int]:
    since = now - _EPOCH
    second = since // _SECOND
    return second, (since - second * _SECOND) // timedelta(microseconds=1) * 1000


LAST_HOLDERS = pa.schema(
    [
        pa.field("metarange_id", pa.string(), nullable=False),
        pa.field("commit_id", pa.string(), nullable=False),
        pa.field("branch", pa.string()),
        pa.field("rule", pa.string(), nullable=False),
    ]
)
"""Last holders: metaranges that only expired commits have, each with its newest commit, newest commits first.
A row also has the branch whose rule would have kept that commit longest (null if no branch leads to it), and the rule.

A run by retention rules stores them in one small file beside the committed addresses. With it, a reader explains
garbage from those metaranges and their ranges without asking the server.
"""


def last_holders(active: Active, stays: Flags, metarange_ids: pa.StringArray) -> pa.Table:
    """The newest expired commits of metaranges (LAST_HOLDERS); the highest id among equally new ones.

    Args:
        stays: True for each commit that stays for any reason.
    """
    commits = active.graph.commits
    expired = np.flatnonzero(~stays)
    asked = pc.is_in(commits.metarange_ids.take(pa.array(expired)), value_set=metarange_ids)
    at = expired[asked.to_numpy(zero_copy_only=False)]
    columns = {
        "at": at,
        "seconds": commits.seconds[at],
        "nanos": commits.nanos[at],
        "id": commits.ids.take(pa.array(at)),
        "metarange_id": commits.metarange_ids.take(pa.array(at)),
    }
    newest_first = pa.table(columns).sort_by([(name, "descending") for name in ("seconds", "nanos", "id")])
    # Arrow's groups come in the order of their first rows mostly, but not always.
    codes = newest_first.column("metarange_id").combine_chunks().dictionary_encode().indices
    _, first = np.unique(codes.to_numpy(), return_index=True)
    chosen = newest_first.column("at").to_numpy()[np.sort(first)]
    walks = pa.array(reduce(lambda own, more: np.where(own < 0, more, own), [w.longest[chosen] for w in active.walks]))
    rules = [str(active.rules.of(branch)) for branch in active.walk_names]
    of_commits = [column.take(pa.array(chosen)) for column in (commits.metarange_ids, commits.ids)]
    of_walks = [pa.array(texts, pa.string()).take(walks) for texts in (active.walk_names, rules)]
    return pa.table([*of_commits, *of_walks], schema=LAST_HOLDERS)


def write_last_holders(store: ObjectStore, run_id: str, attempt: str, holders: pa.Table) -> None:
    """Stores an attempt's facts about expired commits (LAST_HOLDERS)."""
    store.put(_key(run_id, attempt), tables.encode(holders))


def read_last_holders(store: ObjectStore, run_id: str, attempt: str) -> pa.Table | None:
    """An attempt's facts about expired commits (LAST_HOLDERS); None if nothing is stored.

    Raises CorruptFile.
    """
    key = _key(run_id, attempt)
    data = get_if_there(store, key)
    return None if data is None else tables.decode(LAST_HOLDERS, data, key, "expired commits")


EXPIRED_BEFORE = pa.schema([pa.field("metarange_id", pa.string(), nullable=False)])
"""Metaranges that only expired commits had when a sweep began to delete, from all sweeps so far."""
EXPIRED_BEFORE_KEY = f"{layout.RUNS_PREFIX}expired.parquet"


def read_expired_before(store: ObjectStore, note: LogLine) -> pa.ChunkedArray:
    """The ids that `add_expired_before` stored; none, with a line in the log, if the list is damaged."""
    table = EXPIRED_BEFORE.empty_table()
    try:
        if (data := get_if_there(store, EXPIRED_BEFORE_KEY)) is not None:
            table = tables.decode(EXPIRED_BEFORE, data, EXPIRED_BEFORE_KEY, "metaranges of expired commits")
    except CorruptFile as damage:
        note(f"WARNING: commits whose objects earlier sweeps deleted cannot be counted: {damage}")
    return table.column("metarange_id")


def add_expired_before(store: ObjectStore, run_id: str, attempt: str) -> None:
    """Adds an attempt's expired metaranges (LAST_HOLDERS) to the shared list of all sweeps, which outlasts its frames.

    An unreadable list is replaced. Raises StorageError; CorruptFile if the attempt's own list cannot be read.
    """
    holders = read_last_holders(store, run_id, attempt)
    if holders is None or not holders.num_rows:
        return
    before = read_expired_before(store, lambda message: None)
    ids = pc.unique(pa.chunked_array([*before.chunks, *holders.column("metarange_id").chunks], pa.string()))
    if len(ids) > len(before):
        tables.put(store, EXPIRED_BEFORE_KEY, pa.table([ids], schema=EXPIRED_BEFORE))


def _key(run_id: str, attempt: str) -> str:
    return f"{run_folder.frame(run_id, 'committed_df')}expired-{attempt}.parquet"
