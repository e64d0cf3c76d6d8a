"""The definition of retention: which commits keep their objects, by the complete graph of commits.

From each branch head, and from a hypothetical child of each dangling commit that has its date, the whole main ancestry
is walked: wherever a commit is young by the rule of that walk, its main parent is active, because it was head inside
the window or when the window opened. Heads are active whatever their age. Young is strict: a commit of exactly seven
days is not young by seven days. A commit on several walks goes by the longest rule, so one pass over all commits,
children before parents, computes what all the walks would.

What a commit says of its date is not believed where its file or its parents prove it to be younger (`dated_by_files`).

Walks are compiled and visit each commit once, however long a history is. In them commits are positions, and the main
parent of a commit without parents is -1. All compiled functions share this file because what numba keeps on disk counts
as old only when this file changes (`lakefs.formats.compilation`).

A run by retention rules also records, in one small file beside the committed addresses, the last holder of each
metarange that only expired commits have: the newest of these commits. With it, a reader explains garbage from those
metaranges and their ranges, without asking the server.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.retention.commits import NOT_LISTED
from lakefs_gc_assets.collector.retention.rules import EffectiveRules, Rule
from lakefs_gc_assets.collector.stored import run_folder, tables
from lakefs_gc_assets.errors import LakeFSError
from lakefs_gc_assets.lakefs.formats.compilation import compiled
from lakefs_gc_assets.lakefs.formats.refs import CommitColumns, Integers
from lakefs_gc_assets.storage.interface import ObjectStore, get_if_there

Array = npt.NDArray[Any]


@compiled
def spread_longest(main_parents: Array, longest: Array, start: Array) -> int:
    """Hands the longest retention of the walks through each commit on to its main parent, children first.

    `longest` (seconds, -1 for none) and `start` (which walk it is) hold what begins at each commit, and in the end what
    goes through it. Returns how many commits were visited: fewer than there are where parents go in a circle.
    """
    count = len(main_parents)
    children = np.zeros(count, np.int64)
    for commit in range(count):
        if main_parents[commit] >= 0:
            children[main_parents[commit]] += 1
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
        parent = main_parents[commit]
        if parent < 0:
            continue
        if longest[commit] > longest[parent]:
            longest[parent] = longest[commit]
            start[parent] = start[commit]
        children[parent] -= 1
        if children[parent] == 0:
            ready[last] = parent
            last += 1
    return visited


@compiled
def mark_kept(main_parents: Array, seconds: Array, nanos: Array, head: int, after: tuple[int, int], kept: Array) -> int:
    """Marks in `kept` what the walk from one branch head keeps: the head, and main parents of commits after a moment.

    The moment is a second and a nanosecond. Returns how many they are; what was marked before stays marked.
    """
    from_second, from_nano = after
    count = 1
    commit = head
    kept[commit] = True
    while main_parents[commit] >= 0:
        if seconds[commit] > from_second or (seconds[commit] == from_second and nanos[commit] > from_nano):
            count += 1
            kept[main_parents[commit]] = True
        commit = main_parents[commit]
    return count


@compiled
def raise_dates(parents: Array, offsets: Array, dates: Array, proved: Array, now: Array) -> int:
    """Raises the date of each commit to what is proved of it and of its parents, parents first.

    What a parent says of its own date counts for its children too, unless it lies in the future: nobody made it then.

    Args:
        parents: positions of all parents, those of each commit one after the other; -1 for one that is not known.
        offsets: where the parents of a commit begin; one longer than there are commits.
        dates: second and nanosecond of each commit as it says itself, shape (commits, 2); raised in place.
        proved: the same of what is known not to be later than the commit; used up.
        now: second and nanosecond of the present.
    Returns:
        How many commits were visited: fewer than there are where parents go in a circle.
    """
    count = len(dates)
    begins = np.zeros(count + 1, np.int64)
    waits = np.zeros(count, np.int64)
    for commit in range(count):
        for at in range(offsets[commit], offsets[commit + 1]):
            if parents[at] >= 0:
                begins[parents[at] + 1] += 1
                waits[commit] += 1
    for commit in range(count):
        begins[commit + 1] += begins[commit]
    children = np.empty(begins[count], np.int64)
    filled = begins[:-1].copy()
    ready = np.empty(count, np.int64)
    last = 0
    for commit in range(count):
        for at in range(offsets[commit], offsets[commit + 1]):
            parent = parents[at]
            if parent >= 0:
                children[filled[parent]] = commit
                filled[parent] += 1
        if waits[commit] == 0:
            ready[last] = commit
            last += 1
    visited = 0
    while visited < last:
        commit = ready[visited]
        visited += 1
        second, nano = dates[commit, 0], dates[commit, 1]
        if proved[commit, 0] > second or (proved[commit, 0] == second and proved[commit, 1] > nano):
            dates[commit, 0], dates[commit, 1] = proved[commit, 0], proved[commit, 1]
        elif second < now[0] or (second == now[0] and nano <= now[1]):
            proved[commit, 0], proved[commit, 1] = second, nano
        second, nano = proved[commit, 0], proved[commit, 1]
        for at in range(begins[commit], begins[commit + 1]):
            child = children[at]
            if second > proved[child, 0] or (second == proved[child, 0] and nano > proved[child, 1]):
                proved[child, 0], proved[child, 1] = second, nano
            waits[child] -= 1
            if waits[child] == 0:
                ready[last] = child
                last += 1
    return visited


Flags = npt.NDArray[np.bool_]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_BEFORE_ALL = -(2**62)
"""A second before any commit."""


@dataclass(frozen=True, slots=True)
class Graph:
    """Commits with their main parents, heads and loose ends; commits are positions among the columns.

    Attributes:
        main_parents: -1 for a commit without parents.
        heads: by branch.
        branches_at: branches of each head.
        leaves: commits that are nobody's main parent and no head (dangling), in order of their ids.
    """

    commits: CommitColumns
    main_parents: Integers
    heads: dict[str, int]
    branches_at: dict[int, tuple[str, ...]]
    leaves: Integers

    @classmethod
    def from_commits(cls, commits: CommitColumns, branches: Mapping[str, str]) -> "Graph":
        """Makes the graph. Raises LakeFSError where a head or a main parent is not among the commits."""
        heads = commits.positions(pa.array(branches.values(), pa.string()))
        branches_at: dict[int, tuple[str, ...]] = {}
        for branch, at in zip(branches, heads.tolist(), strict=True):
            if at < 0:
                raise LakeFSError(f"commit {branches[branch]}, head of branch {branch}, is not among the commits")
            branches_at[at] = (*branches_at.get(at, ()), branch)
        parents = _main_parents(commits)
        inner = np.zeros(len(commits), np.bool_)
        inner[parents[parents >= 0]] = True
        inner[heads] = True
        return cls(
            commits,
            parents,
            dict(zip(branches, heads.tolist(), strict=True)),
            branches_at,
            _by_id(commits, np.flatnonzero(~inner)),
        )

    def without(self, branch: str) -> "Graph":
        """The graph as it were if this branch was deleted: its head may be dangling then."""
        head = self.heads[branch]
        heads = {name: at for name, at in self.heads.items() if name != branch}
        branches_at = dict(self.branches_at)
        remaining = tuple(name for name in branches_at.pop(head) if name != branch)
        leaves = self.leaves
        if remaining:
            branches_at[head] = remaining
        elif not (self.main_parents == head).any():
            leaves = _by_id(self.commits, np.append(leaves, head))
        return replace(self, heads=heads, branches_at=branches_at, leaves=leaves)


def _main_parents(commits: CommitColumns) -> Integers:
    """Positions of first parents; of commits of version 0, of last ones."""
    offsets = commits.parent_offsets
    chosen = np.where(commits.versions == 0, offsets[1:] - 1, offsets[:-1])
    has_parents = np.diff(offsets) > 0
    named = commits.parents.take(pa.array(chosen[has_parents]))
    parents = np.full(len(commits), -1, np.int64)
    parents[has_parents] = commits.positions(named)
    lost = np.flatnonzero(has_parents & (parents < 0))
    if len(lost):
        raise LakeFSError(
            f"the graph is incomplete: commit {commits.ids[int(lost[0])]} has a main parent that is not among the "
            f"commits ({len(lost)} such commits)"
        )
    return parents


def _by_id(commits: CommitColumns, positions: Integers) -> Integers:
    order: Integers = pc.sort_indices(commits.ids.take(pa.array(positions, pa.int64()))).to_numpy().astype(np.int64)
    ordered: Integers = positions[order]
    return ordered


@dataclass(frozen=True, slots=True)
class Active:
    """Commits that the definition keeps, and the walks that keep them.

    Attributes:
        flags: True for each active commit.
        kept_by: for each active commit that is no head: the young commit whose main parent it is; itself for a dangling
            one; -1 otherwise.
        walks: for each commit the longest walk through it: a position in `walk_names`.
        walk_names: branch of each walk, None for dangling commits.
    """

    graph: Graph
    rules: EffectiveRules
    now: datetime
    flags: Flags
    kept_by: Integers
    walks: Integers
    walk_names: tuple[str | None, ...]

    def rule(self, at: int) -> tuple[str | None, Rule]:
        """The walk that keeps an active commit that is no head: its branch, None for dangling commits, and the rule."""
        branch = self.walk_names[self.walks[self.kept_by[at]]]
        return branch, self.rules.default if branch is None else self.rules.branches[branch]

    def why(self, at: int) -> str:
        """Why an active commit is active, in words."""
        if at in self.graph.branches_at:
            return f"head of {', '.join(self.graph.branches_at[at])}"
        by = int(self.kept_by[at])
        branch, rule = self.rule(at)
        age = in_words(self.now - date(self.graph.commits, by))
        if by == at:
            return f"dangling, made {age}: {rule}"
        where = "a dangling line" if branch is None else f"branch {branch}"
        return f"was replaced on {where} by {self.graph.commits.ids[by]}, made {age}: {rule}"


def active_commits(graph: Graph, rules: EffectiveRules, now: datetime) -> Active:
    """The active commits at a moment.

    Args:
        rules: one for each branch of the graph.
        now: aware; where clocks differ, the earliest one keeps most.
    Raises:
        LakeFSError: parents go in a circle.
    """
    longest, walks = np.full(len(graph.commits), -1, np.int64), np.full(len(graph.commits), -1, np.int64)
    names: list[str | None] = [None, *graph.heads]
    longest[graph.leaves], walks[graph.leaves] = _seconds(rules.default), 0
    for walk, (branch, head) in enumerate(graph.heads.items(), 1):
        retention = _seconds(rules.branches[branch])
        if retention > longest[head]:
            longest[head], walks[head] = retention, walk
    kept_by = _walked(graph, longest, walks, now)
    flags = kept_by >= 0
    flags[list(graph.heads.values())] = True
    return Active(graph, rules, now, flags, kept_by, walks, tuple(names))


def _walked(graph: Graph, longest: Integers, walks: Integers, now: datetime) -> Integers:
    """Walks from everywhere at once; gives for each commit that is kept the young one it is kept by, else -1.

    `longest` and `walks` hold the walks that begin at each commit, and in the end the longest that goes through it.
    """
    if spread_longest(graph.main_parents, longest, walks) != len(graph.commits):
        raise _circle("main parents")
    young = _after(graph.commits, now, longest) & (longest >= 0)
    kept_by = np.full(len(graph.commits), -1, np.int64)
    replaced = np.flatnonzero(young & (graph.main_parents >= 0))
    kept_by[graph.main_parents[replaced]] = replaced
    loose = graph.leaves[young[graph.leaves]]
    kept_by[loose] = loose
    return kept_by


def kept_dangling(graph: Graph, rules: EffectiveRules, now: datetime) -> int:
    """The number of commits that walks of dangling commits would keep without any branch."""
    longest, walks = np.full(len(graph.commits), -1, np.int64), np.full(len(graph.commits), -1, np.int64)
    longest[graph.leaves] = _seconds(rules.default)
    return int((_walked(graph, longest, walks, now) >= 0).sum())


def kept_by_branch(graph: Graph, rules: EffectiveRules, now: datetime) -> dict[str, int]:
    """The number of commits that the walk of each branch would keep without the others."""
    marked = np.zeros(len(graph.commits), np.bool_)
    return {branch: mark_kept_by(graph, branch, rules.branches[branch], now, marked) for branch in graph.heads}


def mark_kept_by(graph: Graph, branch: str, rule: Rule | None, now: datetime, marked: Flags) -> int:
    """Marks the commits that the walk of a branch keeps, were there no other; returns how many they are.

    Args:
        rule: None where nothing expires: the whole main ancestry stays.
        marked: for each commit a flag; those that are set stay so.
    """
    second, nano = _moment(now)
    commits = graph.commits
    begin = _BEFORE_ALL if rule is None else second - _seconds(rule)
    moment = (begin, nano)
    return int(mark_kept(graph.main_parents, commits.seconds, commits.nanos, graph.heads[branch], moment, marked))


def dated_by_files(commits: CommitColumns, written: Integers, now: datetime) -> CommitColumns:
    """The commits with the latest date that is known of each, in place of the one that it claims.

    Anybody who commits may name any date (`date` of lakeFS's API). Yet a commit was made after its metarange's file was
    written, and after its parents were made; so it is no older than these. A later date only keeps more.

    Args:
        written: LastModified of each commit's metarange, microseconds since 1970 by the store's clock; NOT_LISTED for a
            file that is missing. Of a commit without a metarange it does not count.
        now: what a commit claims to be later than this moment counts for itself, and not for its children.
    Raises:
        LakeFSError: parents go in a circle.
    """
    dates = np.stack([commits.seconds, commits.nanos], axis=1)
    has_file = pc.not_equal(commits.metarange_ids, "").to_numpy(zero_copy_only=False)
    known = has_file & (written != NOT_LISTED)
    proved = np.full(dates.shape, _BEFORE_ALL, np.int64)
    proved[known, 0], proved[known, 1] = np.divmod(written[known], 1_000_000)
    proved[known, 1] *= 1000
    parents = commits.positions(commits.parents)
    if raise_dates(parents, commits.parent_offsets, dates, proved, np.array(_moment(now), np.int64)) != len(commits):
        raise _circle("parents")
    # What cannot be known may be as young as can be.
    unknown = has_file & ~known & ~_is_after(dates[:, 0], dates[:, 1], *_moment(now))
    dates[unknown] = _moment(now)
    return replace(commits, seconds=dates[:, 0].copy(), nanos=dates[:, 1].copy())


def _circle(what: str) -> LakeFSError:
    return LakeFSError(f"the graph of commits is broken: {what} go in a circle. Nothing may be collected")


def date(commits: CommitColumns, at: int) -> datetime:
    """When a commit was made by these columns, as far as a datetime can say it."""
    seconds = min(max(int(commits.seconds[at]), -(2**35)), 2**37)
    return _EPOCH + timedelta(seconds=seconds, microseconds=int(commits.nanos[at]) // 1000)


def in_words(age: timedelta) -> str:
    """How long ago something was, as a person says it."""
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


def _seconds(rule: Rule) -> int:
    return rule.retention // _SECOND


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
"""Metaranges that only expired commits have, those of the newest commits first; each with the newest of its commits,
the branch whose rule would have kept that commit longest (null where no branch leads to it), and the rule."""


def last_holders(active: Active, stays: Flags, metarange_ids: pa.StringArray) -> pa.Table:
    """The newest expired commit of each of these metaranges (LAST_HOLDERS); of one moment, that of the highest id.

    Args:
        stays: for each commit whether it stays for any reason.
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
    walks = pa.array(active.walks[chosen])
    rules = [_rule_of(branch, active.rules.branches, active.rules.default) for branch in active.walk_names]
    return pa.table(
        [
            commits.metarange_ids.take(pa.array(chosen)),
            commits.ids.take(pa.array(chosen)),
            pa.array(active.walk_names, pa.string()).take(walks),
            pa.array(rules, pa.string()).take(walks),
        ],
        schema=LAST_HOLDERS,
    )


def _rule_of(branch: str | None, rules: Mapping[str, Rule], default: Rule) -> str:
    return str(default if branch is None else rules[branch])


def write_last_holders(store: ObjectStore, run_id: str, attempt: str, holders: pa.Table) -> None:
    """Stores what an attempt's commits step learnt of expired commits (LAST_HOLDERS)."""
    store.put(_key(run_id, attempt), tables.encode(holders))


def read_last_holders(store: ObjectStore, run_id: str, attempt: str) -> pa.Table | None:
    """Reads what an attempt recorded about expired commits (LAST_HOLDERS); None if nothing is stored.

    Raises CorruptFile.
    """
    key = _key(run_id, attempt)
    data = get_if_there(store, key)
    return None if data is None else tables.decode(LAST_HOLDERS, data, key, "expired commits")


def _key(run_id: str, attempt: str) -> str:
    return f"{run_folder.frame(run_id, 'committed_df')}expired-{attempt}.parquet"
