"""The active set against cases, the documentation's example, a walk-by-walk definition, recorded servers and itself."""

import gzip
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.collector.commits import NOT_LISTED
from lakefs_gc_assets.collector.retention.active_commits import (
    Active,
    Graph,
    active_commits,
    date,
    dated_by_files,
    in_words,
    kept_alone,
    kept_by_branch,
    kept_dangling,
    last_holders,
)
from lakefs_gc_assets.collector.retention.rules import EffectiveRules, Policy, Rule, effective
from lakefs_gc_assets.errors import LakeFSError
from lakefs_gc_assets.lakefs.api.models import Commit, RetentionRules
from lakefs_gc_assets.lakefs.formats.ranges import read_metarange
from lakefs_gc_assets.lakefs.formats.refs import CommitColumns, read_branches, read_commits
from lakefs_gc_assets_tests.collector.retention.retention_cases import (
    NOW,
    active,
    active_ids,
    exactly,
    problems,
    starting_points,
)
from lakefs_gc_assets_tests.lakefs.formats.commit_rows import rows
from lakefs_gc_assets_tests.replay.recording import Recording
from lakefs_gc_assets_tests.runs.recordings import FIXTURES, needs_recordings

CASES = FIXTURES.parent / "retention-cases.json"
DAY = 86_400
SECOND = timedelta(seconds=1)


def main_parent(commit: Commit) -> str | None:
    if not commit.parents:
        return None
    return commit.parents[-1] if commit.version == 0 else commit.parents[0]


def by_definition(
    commits: list[tuple[Commit, int]], heads: Mapping[str, str], rules: RetentionRules, now: datetime
) -> set[str]:
    """Walk by walk, without sharing between walks; commits come with the nanoseconds of their dates."""
    by_id = {commit.id: (commit, nanos) for commit, nanos in commits}
    second, nano = int(now.timestamp() // 1), now.microsecond * 1000
    parents = {main_parent(commit) for commit, _ in commits}
    found = set(heads.values())
    walks = [(head, rules.branches.get(branch, rules.default_days)) for branch, head in heads.items()]
    for commit, nanos in commits:
        if commit.id not in parents and commit.id not in heads.values():
            walks.append((commit.id, rules.default_days))
            if (commit.creation_date, nanos) > (second - rules.default_days * DAY, nano):
                found.add(commit.id)
    for start, days in walks:
        following: str | None = start
        while following is not None:
            commit, nanos = by_id[following]
            following = main_parent(commit)
            if following is not None and (commit.creation_date, nanos) > (second - days * DAY, nano):
                found.add(following)
    return found


Stamp = TypeVar("Stamp", int, datetime)


def line_of(commits: list[tuple[Commit, Stamp]], start: str) -> list[tuple[Commit, Stamp]]:
    """A commit and its main ancestry."""
    by_id = {commit.id: (commit, nanos) for commit, nanos in commits}
    line, following = [], by_id.get(start)
    while following is not None:
        line.append(following)
        following = by_id.get(main_parent(following[0]) or "")
    return line


@pytest.mark.skipif(not CASES.exists(), reason="the cases of retention are not beside this checkout (../shared)")
def test_every_case() -> None:
    found = dict(problems(json.loads(CASES.read_text())))
    assert len(found) == 15
    assert {name: problem for name, problem in found.items() if problem} == {}


class TestTheDocumentationsExample:
    """Branch main keeps 21 days, dev 7, on 2022-03-31."""

    LINES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
        ("2022-02-27", "2022-02-27", ()),
        ("2022-03-01", "2022-03-01", ("2022-02-27",)),
        ("2022-03-09", "2022-03-09", ("2022-03-01",)),
        ("2022-03-12", "2022-03-12", ("2022-03-09",)),
        ("d: 2022-03-14", "2022-03-14", ("2022-03-09",)),
        ("d: 2022-03-16", "2022-03-16", ("d: 2022-03-14",)),
        ("2022-03-18", "2022-03-18", ("2022-03-12",)),
        ("d: 2022-03-20", "2022-03-20", ("d: 2022-03-16",)),
        ("d: 2022-03-23", "2022-03-23", ("d: 2022-03-20",)),
        ("2022-03-26", "2022-03-26", ("2022-03-18", "d: 2022-03-23")),
    )
    HEADS: ClassVar = {"main": "2022-03-26", "dev": "d: 2022-03-23"}
    RULES: ClassVar = RetentionRules(1, {"main": 21, "dev": 7})

    def commits(self) -> list[Commit]:
        return [
            Commit(name, "", parents, int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()))
            for name, day, parents in self.LINES
        ]

    @pytest.mark.parametrize("hour", [0, 12, 23])
    def test_what_stays_at_any_hour_of_the_day(self, hour: int) -> None:
        now = datetime(2022, 3, 31, hour, tzinfo=UTC)
        expired = {"2022-02-27", "2022-03-01", "d: 2022-03-14", "d: 2022-03-16", "d: 2022-03-20"}
        found = active(self.commits(), self.HEADS, self.RULES, now)
        assert active_ids(found) == {commit.id for commit in self.commits()} - expired
        assert kept_by_branch(found.graph, found.rules, now) == {"main": 4, "dev": 1}

    def test_why_each_one_stays(self) -> None:
        found = active(self.commits(), self.HEADS, self.RULES, datetime(2022, 3, 31, tzinfo=UTC))
        ids = found.graph.commits.ids.to_pylist()
        why = {name: found.why(ids.index(name)) for name in active_ids(found)}

        def replaced(by: str, days: int) -> str:
            return f"was replaced on branch main by {by}, made {days}.0 days ago: 21d by the server's rule of main"

        assert why == {
            "2022-03-26": "head of main",
            "d: 2022-03-23": "head of dev",
            "2022-03-18": replaced("2022-03-26", 5),
            "2022-03-12": replaced("2022-03-18", 13),
            "2022-03-09": replaced("2022-03-12", 19),
        }


class TestEdges:
    def test_young_is_strict_to_the_nanosecond(self) -> None:
        exact = int((NOW - timedelta(days=7)).timestamp())
        commits = exactly([Commit("p", "", (), exact), Commit("c", "", ("p",), exact)])
        rules = effective(RetentionRules(7, {}), Policy(), ["main"])
        assert rules is not None
        graph = Graph.from_commits(commits, {"main": "c"})
        assert active_ids(active_commits(graph, rules, NOW)) == {"c"}
        commits.nanos[1] = 1
        assert active_ids(active_commits(graph, rules, NOW)) == {"c", "p"}

    def test_the_moment_counts_to_the_microsecond(self) -> None:
        now = NOW + timedelta(microseconds=500_001)
        exact = int((NOW - timedelta(days=7)).timestamp())
        commits = exactly([Commit("p", "", (), exact), Commit("c", "", ("p",), exact)])
        rules = effective(RetentionRules(7, {}), Policy(), ["main"])
        assert rules is not None
        graph = Graph.from_commits(commits, {"main": "c"})
        for nanos, kept in ((500_001_000, {"c"}), (500_001_001, {"c", "p"}), (999_999_999, {"c", "p"})):
            commits.nanos[1] = nanos
            assert active_ids(active_commits(graph, rules, now)) == kept
            assert kept_by_branch(graph, rules, now) == {"main": len(kept)}
        commits.seconds[1] -= 1
        assert active_ids(active_commits(graph, rules, now)) == {"c"}

    def test_zero_days_keep_heads_only(self) -> None:
        now = int(NOW.timestamp())
        commits = [Commit("a", "", (), now - 9), Commit("b", "", ("a",), now - 1), Commit("loose", "", ("a",), now)]
        assert active_ids(active(commits, {"main": "b"}, RetentionRules(0, {}), NOW)) == {"b"}
        commits = [Commit("a", "", (), now), Commit("b", "", ("a",), now)]
        later = NOW + timedelta(milliseconds=500)
        assert active_ids(active(commits, {"main": "b"}, RetentionRules(0, {}), later)) == {"b"}

    def test_parents_stay_wherever_in_the_list_the_commit_is_that_keeps_them(self) -> None:
        young = int((NOW - timedelta(days=1)).timestamp())
        commits = [Commit("b", "", ("a",), young), Commit("a", "", (), 0), Commit("main", "", (), 0)]
        rules = RetentionRules(5, {})
        assert active_ids(active(commits, {"main": "b"}, rules, NOW)) == {"a", "b"}
        loose = active(commits, {"main": "main"}, rules, NOW)
        assert active_ids(loose) == {"a", "b", "main"}
        assert kept_dangling(loose.graph, loose.rules, NOW) == 2

    def test_dates_from_the_future_and_from_nowhere(self) -> None:
        commits = [
            Commit("a", "", (), -(1 << 63)),
            Commit("b", "", ("a",), (1 << 63) - 1),
            Commit("c", "", ("b",), -(1 << 63)),
            Commit("d", "", ("c",), 0),
        ]
        found = active(commits, {"main": "d"}, RetentionRules(1, {}), NOW)
        assert active_ids(found) == {"a", "d"}
        assert kept_dangling(found.graph, found.rules, NOW) == 0
        assert "made in the future" in found.why(0)

    def test_a_date_is_reported_as_far_as_one_can_be(self) -> None:
        commits = exactly([Commit(str(second), "", (), second) for second in (0, 1, -1, -(1 << 63), (1 << 63) - 1)])
        commits.nanos[:2] = [1_999, 999_999_999]
        epoch = datetime(1970, 1, 1, tzinfo=UTC)
        reported = [date(commits, at) for at in range(5)]
        assert reported[:3] == [epoch + timedelta(microseconds=1), epoch + timedelta(seconds=1.999999), epoch - SECOND]
        assert (reported[3].year, reported[4].year) == (881, 6325)

    @pytest.mark.parametrize(
        ("age", "words"),
        [
            (-SECOND, "in the future"),
            (timedelta(), "0.0 hours ago"),
            (timedelta(hours=47.9), "47.9 hours ago"),
            (timedelta(days=2), "2.0 days ago"),
            (timedelta(days=36), "36.0 days ago"),
        ],
    )
    def test_ages_are_reported_in_hours_and_in_days(self, age: timedelta, words: str) -> None:
        assert in_words(age) == words

    def test_of_several_rules_of_a_head_the_longest_counts_and_the_first_of_equal_ones(self) -> None:
        young = int((NOW - timedelta(days=3)).timestamp())
        commits = [Commit("a", "", (), 0), Commit("b", "", ("a",), young), Commit("loose", "", ("a",), young)]
        heads = {"first": "b", "second": "b", "third": "b"}
        for days, branch in (((4, 5, 5), "second"), ((5, 4, 5), "first"), ((2, 3, 4), "third")):
            rules = RetentionRules(0, dict(zip(heads, days, strict=True)))
            found = active(commits, heads, rules, NOW)
            assert active_ids(found) == {"a", "b"}
            assert found.why(0) == (
                f"was replaced on branch {branch} by b, made 3.0 days ago: "
                f"{max(days)}d by the server's rule of {branch}"
            )
        dangling = active(commits, heads, RetentionRules(4, dict.fromkeys(heads, 0)), NOW)
        assert dangling.why(0) == (
            "was replaced on a dangling line by loose, made 3.0 days ago: 4d by the server's default"
        )
        assert dangling.why(1) == "head of first, second, third"
        assert dangling.why(2) == "dangling, made 3.0 days ago: 4d by the server's default"

    def test_walks_begin_at_heads_and_loose_ends(self) -> None:
        commits = [Commit(name, "", ("root",), 0) for name in ("d", "b", "c")] + [Commit("root", "", (), 0)]
        graph = Graph.from_commits(exactly(commits), {"main": "c", "x": "c"})
        ids = graph.commits.ids.to_pylist()
        assert starting_points(graph) == [("b", False), ("c", True), ("d", False)]
        assert graph.branches_at == {ids.index("c"): ("main", "x")}

    def test_a_repository_of_nothing_but_its_first_commit(self) -> None:
        assert active_ids(active([Commit("a", "", (), 0)], {"main": "a"}, RetentionRules(0, {}), NOW)) == {"a"}

    def test_very_old_commits_go_by_their_last_parent(self) -> None:
        young = int((NOW - timedelta(days=1)).timestamp())
        line = [Commit("x", "", (), 0), Commit("y", "", (), 0)]
        for version, kept in ((0, "y"), (1, "x")):
            commits = [*line, Commit("m", "", ("x", "y"), young, version)]
            assert active_ids(active(commits, {"main": "m"}, RetentionRules(5, {}), NOW)) == {"m", kept}

    def test_what_is_not_whole_is_refused(self) -> None:
        for commits, heads, words in (
            ([Commit("a", "", ("lost",), 0)], {"main": "a"}, "is missing from the commits"),
            ([Commit("a", "", (), 0)], {"main": "lost"}, "head of branch main"),
            ([Commit("a", "", ("b",), 0), Commit("b", "", ("a",), 0)], {"main": "a"}, "form a cycle"),
        ):
            with pytest.raises(LakeFSError, match=words):
                active(commits, heads, RetentionRules(5, {}), NOW)

    def test_other_parents_of_merges_may_be_missing(self) -> None:
        commits = [Commit("a", "", (), 0), Commit("m", "", ("a", "lost"), int(NOW.timestamp()))]
        assert active_ids(active(commits, {"main": "m"}, RetentionRules(5, {}), NOW)) == {"a", "m"}

    def test_a_long_history_takes_one_pass(self) -> None:
        count = 20_000
        ids = [f"{number:08x}" for number in range(count)]
        commits = exactly(
            [
                Commit(ids[at], "", (ids[at - 1],) if at else (), int(NOW.timestamp()) - count + at)
                for at in range(count)
            ]
        )
        rules = EffectiveRules(Rule(timedelta(), ""), {"main": Rule(timedelta(hours=1), "")})
        found = active_commits(Graph.from_commits(commits, {"main": ids[-1]}), rules, NOW)
        assert np.flatnonzero(found.flags).tolist() == list(range(count - 3600, count))


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[tuple[Commit, int]], dict[str, str], RetentionRules]:
    """Any graph of commits in any order: dates and ids in any order, merges, very old versions, dangling lines."""
    count = draw(st.integers(1, 14))
    ids = draw(st.permutations([f"{number:02d}" for number in range(count)]))
    now = int(NOW.timestamp())
    commits = []
    for number in range(count):
        parents = draw(st.lists(st.sampled_from(ids[:number]), max_size=2)) if number else []
        days = draw(st.integers(-1, 12))
        commits.append(
            (
                Commit(
                    ids[number],
                    "",
                    tuple(parents),
                    now - days * DAY + draw(st.sampled_from([-1, 0, 0, 1])),
                    draw(st.sampled_from([0, 1, 1])),
                ),
                draw(st.sampled_from([0, 0, 1, 999_999_999])),
            )
        )
    names = draw(st.lists(st.sampled_from(["main", "a", "b", "c"]), min_size=1, unique=True))
    heads = {name: draw(st.sampled_from(ids)) for name in names}
    days_of = st.integers(0, 12)
    branches = draw(st.dictionaries(st.sampled_from(["main", "a", "b", "gone"]), days_of))
    return draw(st.permutations(commits)), heads, RetentionRules(draw(days_of), branches)


@given(graphs())
def test_one_pass_gives_what_all_walks_give(
    case: tuple[list[tuple[Commit, int]], dict[str, str], RetentionRules],
) -> None:
    commits, heads, rules = case
    columns = exactly([commit for commit, _ in commits])
    columns.nanos[:] = [nanos for _, nanos in commits]
    found = effective(rules, Policy(), heads)
    assert found is not None
    computed = active_commits(Graph.from_commits(columns, heads), found, NOW)
    assert active_ids(computed) == by_definition(commits, heads, rules, NOW)
    for at in np.flatnonzero(computed.flags).tolist():
        assert computed.why(at)
    parents = {main_parent(commit) for commit, _ in commits}
    loose = [commit.id for commit, _ in commits if commit.id not in parents and commit.id not in heads.values()]
    alone = [by_definition(line_of(commits, start), {}, RetentionRules(rules.default_days, {}), NOW) for start in loose]
    assert kept_dangling(computed.graph, found, NOW) == len(set[str]().union(*alone))
    for branch, kept in kept_by_branch(computed.graph, found, NOW).items():
        days = rules.branches.get(branch, rules.default_days)
        line = line_of(commits, heads[branch])
        assert kept == len(by_definition(line, {branch: heads[branch]}, RetentionRules(days, {}), NOW))


@given(graphs())
def test_a_graph_without_a_branch_is_that_of_the_other_branches(
    case: tuple[list[tuple[Commit, int]], dict[str, str], RetentionRules],
) -> None:
    commits, heads, _ = case
    columns = exactly([commit for commit, _ in commits])
    for branch in heads:
        found = Graph.from_commits(columns, heads).without(branch)
        others = Graph.from_commits(columns, {name: head for name, head in heads.items() if name != branch})
        assert (found.heads, found.branches_at) == (others.heads, others.branches_at)
        assert found.leaves.tolist() == others.leaves.tolist()
        assert found.main_parents.tolist() == others.main_parents.tolist()


@given(graphs())
def test_without_rules_a_branch_keeps_its_main_ancestry(
    case: tuple[list[tuple[Commit, int]], dict[str, str], RetentionRules],
) -> None:
    commits, heads, _ = case
    graph = Graph.from_commits(exactly([commit for commit, _ in commits]), heads)
    for branch, head in heads.items():
        line = {commit.id for commit, _ in line_of(commits, head)}
        kept = np.flatnonzero(kept_alone(graph, branch, None, NOW)).tolist()
        assert {graph.commits.ids[at].as_py() for at in kept} == line


@given(graphs(), st.integers(0, 12))
def test_longer_rules_and_earlier_clocks_keep_more(
    case: tuple[list[tuple[Commit, int]], dict[str, str], RetentionRules], more: int
) -> None:
    pairs, heads, rules = case
    commits = [commit for commit, _ in pairs]
    kept = active_ids(active(commits, heads, rules, NOW))
    longer = RetentionRules(rules.default_days + more, {branch: days + more for branch, days in rules.branches.items()})
    assert kept <= active_ids(active(commits, heads, longer, NOW))
    assert kept <= active_ids(active(commits, heads, rules, NOW - timedelta(days=more)))


Made = tuple[Commit, datetime]
"""A commit, and its true creation time."""
COUNTS = ("keep_last", "daily", "weekly", "monthly", "yearly")
CALENDAR: dict[str, Callable[[datetime], object]] = {
    "keep_last": lambda made: made,
    "daily": datetime.date,
    "weekly": lambda made: made.isocalendar()[:2],
    "monthly": lambda made: (made.year, made.month),
    "yearly": lambda made: made.year,
}


def counted(line: Sequence[Made], keeps: Mapping[str, int], lifecycle: Set[str]) -> set[str]:
    """Commits of a line, its newest commit first, that counts keep.

    A commit stays if its users' newer commits fill fewer periods than the count, and none of them its own period. A
    commit of object lifecycle needs the first condition alone. `keep_last` counts as a period of one commit.
    """
    kept = set()
    for name, limit in keeps.items():
        for at, (commit, made) in enumerate(line):
            newer = {CALENDAR[name](when) for each, when in line[:at] if each.id not in lifecycle}
            if len(newer) < limit and (commit.id in lifecycle or CALENDAR[name](made) not in newer):
                kept.add(commit.id)
    return kept


def by_counting(
    commits: Sequence[Made], heads: Mapping[str, str], rules: EffectiveRules, lifecycle: Set[str] = frozenset()
) -> set[str]:
    """Heads, commits that counts keep on each branch's line, and merged-in commits by age, with true times."""
    by_id, kept = {commit.id: (commit, made) for commit, made in commits}, set(heads.values())
    for branch, head in heads.items():
        rule, line, at = rules.branches[branch], list[Made](), head
        while at:
            line.append(by_id[at])
            at = main_parent(by_id[at][0]) or ""
        kept |= counted(line, dict(rule.keeps), lifecycle)
        reached = [head] if rule.merged is not None else []
        for each in reached:
            commit, made = by_id[each]
            reached += [parent for parent in commit.parents if parent not in reached]
            if rule.merged is not None and made > NOW - rule.merged:
                kept.update(commit.parents)
    return kept


@st.composite
def lines(draw: st.DrawFn) -> tuple[list[Made], dict[str, str], EffectiveRules]:
    """Histories in which each commit was made after its parents, on days around ends of weeks, months and years."""
    made = datetime(2024, 12, 20, 12, tzinfo=UTC)
    commits: list[Made] = []
    for number in range(draw(st.integers(1, 20))):
        made += timedelta(hours=draw(st.sampled_from([1, 6, 12, 24, 24, 48, 168, 720])), seconds=7)
        parents = (number - 1, draw(st.integers(0, number - 1))) if number else ()
        named = tuple(f"{parent:02d}" for parent in dict.fromkeys(parents[: draw(st.sampled_from([1, 1, 2]))]))
        commits.append((Commit(f"{number:02d}", f"m{number}", named, int(made.timestamp())), made))
    ids = [commit.id for commit, _ in commits]
    heads = {"main": ids[-1]} | draw(st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from(ids)))
    keeps = st.dictionaries(st.sampled_from(COUNTS), st.integers(1, 4)).map(lambda each: tuple(sorted(each.items())))
    merged = st.sampled_from([None, None, timedelta(), timedelta(days=400), timedelta(days=430)])
    rules = {branch: Rule(timedelta(), "", draw(keeps), draw(merged)) for branch in heads}
    return draw(st.permutations(commits)), heads, EffectiveRules(Rule(timedelta(), ""), rules)


@given(lines(), st.data())
def test_counts_keep_what_the_table_says(
    case: tuple[list[Made], dict[str, str], EffectiveRules], data: st.DataObject
) -> None:
    commits, heads, rules = case
    lifecycle = data.draw(st.sets(st.sampled_from([commit.id for commit, _ in commits])))
    graph = Graph.from_commits(exactly([commit for commit, _ in commits]), heads, {*lifecycle, "elsewhere"})
    found = active_commits(graph, rules, NOW)
    assert by_counting(commits, heads, rules) <= active_ids(found)
    assert active_ids(found) == by_counting(commits, heads, rules, lifecycle)
    for branch, rule in rules.branches.items():
        kept = np.flatnonzero(kept_alone(graph, branch, rule, NOW)).tolist()
        alone = by_counting(commits, {branch: heads[branch]}, rules, lifecycle)
        assert {graph.commits.ids[at].as_py() for at in kept} == alone
    assert not found.in_doubt.any()
    for at in np.flatnonzero(found.flags).tolist():
        assert found.why(at)


@given(lines(), st.data())
def test_what_is_said_falsely_of_dates_lets_nothing_go(
    case: tuple[list[Made], dict[str, str], EffectiveRules], data: st.DataObject
) -> None:
    """At most one fact about each commit is false: its claimed date, or the time of its file."""
    commits, heads, rules = case
    now = datetime(2028, 1, 1, tzinfo=UTC)
    columns = exactly([commit for commit, _ in commits])
    written = columns.seconds * 1_000_000
    for at in range(len(commits)):
        days = data.draw(st.sampled_from([0, 0, 0, 0, -400, -30, -7, -1, 1, 7, 30, 5_000]))
        if data.draw(st.booleans()):
            columns.seconds[at] += days * DAY
        else:
            written[at] += min(days * DAY, int(now.timestamp()) - columns.seconds[at]) * 1_000_000
    if data.draw(st.booleans()):
        written[data.draw(st.integers(0, len(commits) - 1))] = NOT_LISTED
    lifecycle = data.draw(st.sets(st.sampled_from([commit.id for commit, _ in commits])))
    dated = dated_by_files(Graph.from_commits(columns, heads, lifecycle), written, now)
    rules = replace(rules, branches={name: replace(rule, merged=None) for name, rule in rules.branches.items()})
    found = active_commits(dated, rules, now)
    assert by_counting(commits, heads, rules, lifecycle) <= active_ids(found)


@given(lines(), st.data())
def test_lines_without_lifecycle_have_the_commits_of_users_alone(
    case: tuple[list[Made], dict[str, str], EffectiveRules], data: st.DataObject
) -> None:
    commits, heads, _ = case
    lifecycle = data.draw(st.sets(st.sampled_from([commit.id for commit, _ in commits])))
    graph = Graph.from_commits(exactly([commit for commit, _ in commits]), heads, lifecycle).without_lifecycle()
    ids = graph.commits.ids.to_pylist()
    for branch, head in heads.items():
        line, at = list[str](), graph.heads[branch]
        while at >= 0:
            line.append(ids[at])
            at = int(graph.main_parents[at])
        users = [commit.id for commit, _ in line_of(commits, head) if commit.id not in lifecycle]
        assert line == (users or [head])


class TestCounts:
    """Branch main has a commit on each of ten days, the last one today; rules count, and nothing stays by age."""

    IDS: ClassVar = [f"{number:02d}" for number in range(10)]

    def kept(
        self,
        *keeps: tuple[str, int],
        claimed: Mapping[str, int] | None = None,
        file: Mapping[str, int] | None = None,
        lifecycle: Set[str] = frozenset(),
    ) -> Active:
        """Args: days by which claims and files of some commits are off, and commits that object lifecycle made."""
        now, parents = int(NOW.timestamp()), [(), *((each,) for each in self.IDS)]
        columns = exactly(
            [Commit(each, f"m{each}", parents[at], now - (9 - at) * DAY) for at, each in enumerate(self.IDS)]
        )
        written = columns.seconds * 1_000_000
        for each, days in (claimed or {}).items():
            columns.seconds[self.IDS.index(each)] += days * DAY
        for each, days in (file or {}).items():
            written[self.IDS.index(each)] += days * DAY * 1_000_000
        graph = Graph.from_commits(columns, {"main": "09"}, lifecycle)
        rules = EffectiveRules(Rule(timedelta(), ""), {"main": Rule(timedelta(), "the policy", keeps)})
        return active_commits(dated_by_files(graph, written, NOW), rules, NOW)

    def test_last_counts_commits_and_the_head_is_the_first(self) -> None:
        assert active_ids(self.kept(("keep_last", 3))) == {"09", "08", "07"}
        assert active_ids(self.kept(("keep_last", 100))) == {*self.IDS}

    def test_weeks_begin_on_mondays(self) -> None:
        """Today is Wednesday, so 07 is from Monday."""
        assert active_ids(self.kept(("weekly", 2))) == {"09", "06"}

    def test_months_and_years(self) -> None:
        assert active_ids(self.kept(("monthly", 2))) == {"09", "05"}
        assert active_ids(self.kept(("yearly", 2))) == {"09"}

    def test_unknown_period_raises_and_is_not_taken_for_years(self) -> None:
        with pytest.raises(ValueError, match="'hourly' is not one of daily, weekly, monthly, yearly"):
            self.kept(("hourly", 2))

    def test_why_of_an_expired_commit_raises_and_names_no_rule(self) -> None:
        found = self.kept(("keep_last", 2))
        with pytest.raises(ValueError, match="commit 00 is not active"):
            found.why(0)

    def test_reasons_name_branch_count_and_doubt(self) -> None:
        found = self.kept(("keep_last", 2), ("daily", 3), claimed={"08": -1})
        counts = [(found.walk_names[walk], COUNTS[count]) for walk, count, _ in found.counted[6:].tolist()]
        assert counts == [("main", "daily"), ("main", "daily"), ("main", "keep_last"), ("main", "keep_last")]
        in_doubt = self.kept(("daily", 3), claimed={"08": -1}).counted
        assert in_doubt[[0, 8]].tolist() == [(-1, 0, False), (1, COUNTS.index("daily"), True)]

    def test_why(self) -> None:
        found = self.kept(("keep_last", 2), ("weekly", 2))
        assert [found.why(at) for at in (9, 8, 6)] == [
            "head of main",
            "kept by keep_last on main: 0d by the policy, keep_last 2, weekly 2",
            "kept by weekly on main: 0d by the policy, keep_last 2, weekly 2",
        ]

    def test_commits_of_object_lifecycle_are_not_counted_and_stay_up_to_the_last_counted_one(self) -> None:
        found = self.kept(("keep_last", 2), lifecycle={"09", "07", "05"})
        assert active_ids(found) == {"09", "08", "07", "06"}
        assert [found.why(at) for at in (9, 7, 6)] == [
            "head of main",
            "made by object lifecycle, not counted by keep_last on main: 0d by the policy, keep_last 2",
            "kept by keep_last on main: 0d by the policy, keep_last 2",
        ]
        found = self.kept(("weekly", 2), lifecycle={"08", "06"})
        assert active_ids(found) == {"09", "08", "06", "05"}

    def test_a_commit_in_doubt_stays_and_fills_no_period(self) -> None:
        for found in (self.kept(("daily", 3), claimed={"08": -1}), self.kept(("daily", 3), file={"08": -3})):
            assert active_ids(found) == {"09", "08", "07", "06"}
            assert np.flatnonzero(found.in_doubt).tolist() == [8]
            assert found.why(8) == "kept by daily on main, as its date is in doubt: 0d by the policy, daily 3"
            assert found.why(7) == "kept by daily on main: 0d by the policy, daily 3"

    def test_of_claims_that_contradict_each_other_the_older_commits_is_in_doubt(self) -> None:
        now = int(NOW.timestamp())
        ids = ["d", "c", "b", "a"]
        commits = [
            Commit(each, f"m{each}", tuple(ids[at + 1 : at + 2]), now - days * DAY)
            for at, (each, days) in enumerate(zip(ids, (0, 3, 1, 3), strict=True))
        ]
        rules = EffectiveRules(Rule(timedelta(), ""), {"main": Rule(timedelta(), "", (("daily", 3),))})
        found = active_commits(Graph.from_commits(exactly(commits), {"main": "d"}), rules, NOW)
        assert active_ids(found) == {"d", "c", "b"}
        assert np.flatnonzero(found.in_doubt).tolist() == [2]

    def test_a_copied_namespace_keeps_until_newer_commits_fill_the_periods(self) -> None:
        copied = {each: 7 - at for at, each in enumerate(self.IDS[:7])}
        assert active_ids(self.kept(("daily", 5), file=copied)) == {*self.IDS}
        # 07 has the day of the copy.
        assert active_ids(self.kept(("daily", 3), file=copied)) == {"09", "08", "07"}


def recorded_rule_sets() -> Iterator[tuple[str, dict[str, Any], float, set[str]]]:
    """Folder, rules, time and the server's answer for each recorded set of rules."""
    for file in sorted(FIXTURES.rglob("truth.json*")):
        truth = json.loads(gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes())
        folder = file.parent.relative_to(FIXTURES).as_posix()
        if "prepare_commits" in truth:
            answer = {row["commit_id"] for row in truth["prepare_commits"]["rows"]}
            yield folder, truth["gc_rules"], truth["gc_prepared_at"], answer
        for variant in truth.get("rule_variants") or ():
            yield folder, variant["rules"], variant["at"], set(variant["active_commits"])


def recorded_graph(folder: Path) -> tuple[CommitColumns, dict[str, str]]:
    """Commits and heads of the recorded refs dump."""
    recording = Recording(folder, NOW)
    dump = [row.content["refs"] for row in recording.rows if row.path.endswith("/dump") and "refs" in row.content][-1]

    def parts(table: str, entity: str) -> Iterator[bytes]:
        for record in read_metarange(recording.read("_lakefs/" + dump[table]), table, entity=entity):
            yield recording.read("_lakefs/" + record.id)

    commits = CommitColumns.joined([read_commits(data, "c") for data in parts("commits_meta_range_id", "commit")])
    branches = [branch for data in parts("branches_meta_range_id", "branch") for branch in read_branches(data, "b")]
    return commits, {branch.id: branch.commit_id for branch in branches}


@needs_recordings
def test_every_recorded_set_of_rules() -> None:
    sets = list(recorded_rule_sets())
    assert len(sets) == 65
    graphs = {folder: recorded_graph(FIXTURES / folder) for folder in {folder for folder, *_ in sets}}
    lost: dict[tuple[str, float], set[str]] = {}
    for folder, stated, at, answer in sets:
        commits, heads = graphs[folder]
        branches = {rule["branch_id"]: rule["retention_days"] for rule in stated["branches"] or ()}
        rules = RetentionRules(stated["default_retention_days"], branches)
        now = datetime.fromtimestamp(at, UTC)
        found = effective(rules, Policy(), heads)
        assert found is not None
        ours = active_ids(active_commits(Graph.from_commits(commits, heads), found, now))
        pairs = list(zip(rows(commits), commits.nanos.tolist(), strict=True))
        assert ours == by_definition(pairs, heads, rules, now), folder
        assert answer <= ours, folder
        if answer < ours:
            lost[folder, at] = ours - answer
    variants = json.loads((FIXTURES / "random-dag/14/truth.json").read_text())["rule_variants"]
    assert list(lost) == [("random-dag/14", variants[3]["at"])]


@pytest.mark.parametrize("seed", range(20))
def test_metaranges_of_expired_commits_come_newest_first(seed: int) -> None:
    """Some of Arrow's group-by methods keep this order for most ids, but not for all."""
    metaranges = [hashlib.sha256(f"{seed} {number}".encode()).hexdigest() for number in range(40)]
    begun = int(NOW.timestamp()) - 90 * DAY
    commits = [
        Commit(f"c{number:02d}", metarange, (f"c{number - 1:02d}",) if number else (), begun + number)
        for number, metarange in enumerate(metaranges + metaranges[:20])
    ]
    found = active(commits, {"main": commits[-1].id}, RetentionRules(7, {}), NOW)

    holders = last_holders(found, found.flags, pa.array(metaranges))

    newest = {commit.metarange_id: commit.id for commit in commits[:-1]}
    assert holders.select(["metarange_id", "commit_id"]).to_pylist() == [
        {"metarange_id": metarange, "commit_id": commit}
        for metarange, commit in sorted(newest.items(), key=lambda each: each[1], reverse=True)
    ]
