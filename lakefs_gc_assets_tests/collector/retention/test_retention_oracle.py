"""Retention against its specification: an object stays if and only if a head of a branch had it within its window.

The oracle uses no parents and no graph. A history keeps a log for each line of work: each commit that was its head, and
until when. A branch created from another one copies its log so far. A line without a successor (its branch was deleted
or reset) follows the default rule, and counts as if its last commit had been replaced the moment it was made.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from lakefs_gc_assets.lakefs.api.models import Commit, RetentionRules
from lakefs_gc_assets_tests.collector.retention.retention_cases import active, active_ids

START = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())
HOUR = 3600
BRANCHES = ("main", "dev", "x", "y")


@dataclass(frozen=True)
class Entry:
    """A commit was head from its creation until `until`; None while it still is."""

    commit: str
    made: int
    until: int | None = None


Line = tuple[Entry, ...]


@dataclass
class History:
    """Branches in use, contents per commit, and the logs."""

    draw: Callable[[st.SearchStrategy[int]], int]
    now: int = START
    commits: dict[str, Commit] = field(default_factory=dict)
    objects: dict[str, frozenset[int]] = field(default_factory=dict)
    lines: dict[str, Line] = field(default_factory=dict)
    lost: list[Line] = field(default_factory=list)
    numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self._record("main", (), frozenset())

    def chosen(self, number: int) -> int:
        return self.draw(st.integers(0, number - 1))

    def head(self, branch: str) -> str:
        return self.lines[branch][-1].commit

    def step(self) -> None:
        self.now += self.draw(st.integers(0, 60)) * HOUR
        branch = sorted(self.lines)[self.chosen(len(self.lines))]
        things = [self.commit, self.commit, self.commit, self.branch, self.merge, self.delete, self.set_back]
        things[self.chosen(len(things))](branch)

    def commit(self, branch: str) -> None:
        held = set(self.objects[self.head(branch)])
        if held and self.chosen(2):
            held.discard(sorted(held)[self.chosen(len(held))])
        held.add(next(self.numbers))
        self._record(branch, (self.head(branch),), frozenset(held))

    def merge(self, branch: str) -> None:
        other = sorted(self.lines)[self.chosen(len(self.lines))]
        if other == branch:
            return
        parents = (self.head(branch), self.head(other))
        held = self.objects[parents[0]] | self.objects[parents[1]]
        if self.chosen(4) == 0:
            self._record(branch, parents[::-1], held, version=0)
        else:
            self._record(branch, parents, held)

    def branch(self, source: str) -> None:
        """Creates a branch from the head, or from an earlier head."""
        name = BRANCHES[self.chosen(len(BRANCHES))]
        if name not in self.lines:
            self.lines[name] = self._back(source)

    def delete(self, branch: str) -> None:
        if branch != "main":
            self.lost.append(self.lines.pop(branch))

    def set_back(self, branch: str) -> None:
        """Resets a branch; no line continues its commits since then."""
        self.lost.append(self.lines[branch])
        self.lines[branch] = self._back(branch)

    def _back(self, source: str) -> Line:
        line = self.lines[source]
        kept = line[: 1 + self.chosen(len(line))]
        return (*kept[:-1], replace(kept[-1], until=None))

    def _record(self, branch: str, parents: tuple[str, ...], held: frozenset[int], version: int = 1) -> None:
        name = f"{self.draw(st.integers(0, 9999)):04d}-{len(self.commits)}"
        self.commits[name] = Commit(name, "", parents, self.now, version)
        self.objects[name] = held
        line = self.lines.get(branch, ())
        if line:
            line = (*line[:-1], replace(line[-1], until=self.now))
        self.lines[branch] = (*line, Entry(name, self.now))

    def kept(self, rules: RetentionRules) -> set[int]:
        """Objects of any head within its branch's window."""
        windows = [(line, rules.branches.get(branch, rules.default_days)) for branch, line in self.lines.items()]
        windows += [(self._ended(line), rules.default_days) for line in self.lost if not self._continued(line)]
        return {
            number
            for line, days in windows
            for entry in line
            if entry.until is None or entry.until > self.now - days * 24 * HOUR
            for number in self.objects[entry.commit]
        }

    @staticmethod
    def _ended(line: Line) -> Line:
        return (*line[:-1], replace(line[-1], until=line[-1].made))

    def _continued(self, line: Line) -> bool:
        """True if the last head of a lost line is in the log of a branch."""
        return any(line[-1].commit == entry.commit for other in self.lines.values() for entry in other)


RULES = st.builds(
    RetentionRules, st.integers(0, 14), st.dictionaries(st.sampled_from(BRANCHES), st.integers(0, 14), max_size=4)
)


@given(st.data(), st.integers(1, 30), RULES)
def test_an_object_stays_if_and_only_if_a_head_within_its_window_had_it(
    data: st.DataObject, steps: int, rules: RetentionRules
) -> None:
    history = History(data.draw)
    for _ in range(steps):
        history.step()
    history.now += data.draw(st.integers(0, 200)) * HOUR
    heads = {branch: line[-1].commit for branch, line in history.lines.items()}
    now = datetime.fromtimestamp(history.now, UTC)
    found = active_ids(active(list(history.commits.values()), heads, rules, now))
    stays = {number for commit in found for number in history.objects[commit]}
    every = {number for held in history.objects.values() for number in held}
    event(f"some go: {stays != every}")
    event(f"lost lines that nobody continues: {sum(not history._continued(line) for line in history.lost) > 0}")
    assert stays == history.kept(rules)


@pytest.mark.parametrize(("default", "expected"), [(7, {2, 3, 4}), (3, {2})])
def test_a_deleted_branch_goes_by_the_default_rule(default: int, expected: set[int]) -> None:
    """Two commits on main, 10 and 8 days ago; two on a branch that was deleted, 5 and 4 days ago."""
    history = History(lambda strategy: 0)
    for days, branch, held in ((10, "main", {1}), (8, "main", {2}), (5, "feature", {2, 3}), (4, "feature", {2, 3, 4})):
        history.now = START - days * 24 * HOUR
        history.lines.setdefault(branch, history.lines["main"])
        history._record(branch, (history.head(branch),), frozenset(held))
    history.delete("feature")
    history.now = START
    rules = RetentionRules(default, {"main": 7})
    heads = {"main": history.head("main")}
    found = active_ids(active(list(history.commits.values()), heads, rules, datetime.fromtimestamp(START, UTC)))
    assert {number for commit in found for number in history.objects[commit]} == expected == history.kept(rules)
