"""Decisions about made-up branches equal the decisions of a plain implementation."""

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from math import nan
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.collector.retention.active_commits import Graph
from lakefs_gc_assets.errors import LakeFSError
from lakefs_gc_assets.extensions.lifecycle import entries, expired
from lakefs_gc_assets.extensions.lifecycle.history import PathHistory
from lakefs_gc_assets.extensions.lifecycle.listing import ENTRIES
from lakefs_gc_assets.lakefs.formats.ranges import RangeEntries, RangeRecord
from lakefs_gc_assets_tests.extensions.lifecycle.plain_branches import NOW, PlainBranches, decide, moment, paths_of

BRANCHES = ("main", "dev", "hid")
FOLDERS = ["", "a/", "a/b/", "a/dt=1/", "a/dt=10/", "a/dt=9/b/", "a/dt=2026-11-01/", "a/dt=x/", "é/dt=2026-10-01/"]
FOLDERS += ["é/dt=2026-11-28/", "é/dt=2027-01-01/", "é/dt=2026-09-01/dt=3/"]
PATHS = st.builds("{}{}".format, st.sampled_from(FOLDERS), st.sampled_from("fghi"))
DAYS = st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7, -1])
STEPS = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(BRANCHES), PATHS, DAYS | st.just(nan), st.booleans()),
    st.tuples(st.just("put"), st.sampled_from(BRANCHES), PATHS, DAYS, st.booleans()),
    st.tuples(st.just("drop"), st.sampled_from(BRANCHES), PATHS),
    st.tuples(st.just("commit"), st.sampled_from(BRANCHES), DAYS),
    st.tuples(st.just("fork"), st.sampled_from(BRANCHES[1:]), st.sampled_from(BRANCHES)),
    st.tuples(st.just("merge"), st.sampled_from(BRANCHES), st.sampled_from(BRANCHES), DAYS),
    st.tuples(st.just("tag"), st.sampled_from(BRANCHES)),
)
PATTERNS = st.sampled_from(["a/", "**", "*", "a/**/f", "a/*", "**f", "a/f", "é/", "a/dt=1/", "**/dt=*/*"])
KINDS = st.one_of(
    st.fixed_dictionaries({"older_than": st.sampled_from(["1d", "3d", "5d"])}),
    st.fixed_dictionaries({"unchanged_for": st.sampled_from(["1d", "3d", "5d"])}),
    st.fixed_dictionaries({"keep_newest": st.integers(1, 3), "of": st.just("objects")}),
    st.fixed_dictionaries({"keep_newest": st.integers(1, 3), "of": st.just("partitions"), "partition": st.just("dt")}),
)
RULE = st.builds(
    lambda fixed, kind, more: {**fixed, **kind, **more},
    st.fixed_dictionaries(
        {
            "branches": st.sampled_from([["main"], ["dev"], ["main", "dev"], [*BRANCHES]]),
            "paths": st.just(["**"]) | st.lists(PATTERNS, min_size=1, max_size=2),
        }
    ),
    KINDS,
    st.fixed_dictionaries({}, optional={"except": st.lists(PATTERNS, min_size=1, max_size=1)}),
)
RULES = st.lists(RULE, min_size=1, max_size=3).map(
    lambda rules: [{"name": f"rule-{number}", **rule} for number, rule in enumerate(rules)]
)


def act(plain: PlainBranches, step: tuple[Any, ...]) -> None:
    kind, branch, *rest = step
    if branch not in plain.heads and kind != "fork":
        return
    if kind == "put":
        plain.put(branch, rest[0], rest[1], is_dated=rest[2])
    elif kind == "drop":
        plain.staged[branch].pop(rest[0], None)
    elif kind == "commit":
        plain.commit(branch, rest[0])
    elif kind == "fork" and branch not in plain.heads and rest[0] in plain.heads:
        plain.fork(branch, rest[0])
    elif kind == "merge" and rest[0] in plain.heads:
        plain.merge(rest[0], branch, rest[1])
    elif kind == "tag":
        plain.tags[f"tag-{len(plain.tags)}"] = plain.heads[branch]


WRITTEN = st.sampled_from([1, 2, 3, 4, 5, 6, 7, 7, 6, nan, -1])
BASE = st.lists(st.tuples(PATHS, WRITTEN, st.integers(1, 7), st.booleans()), min_size=12, max_size=30)
"""Paths with days since they were written and committed, and True if the address states the former."""


@settings(max_examples=50)
@given(
    BASE,
    st.dictionaries(st.integers(1, 7), st.sampled_from([-1, 0, 9, 20]), max_size=3),
    st.lists(STEPS, max_size=16),
    RULES,
    st.lists(STEPS, max_size=4),
)
def test_decisions_equal_those_of_a_plain_implementation(
    tmp_path_factory: pytest.TempPathFactory,
    base: list[tuple[str, float, int, bool]],
    claims: dict[int, float],
    steps: list[tuple[Any, ...]],
    rules: list[dict[str, Any]],
    later: list[tuple[Any, ...]],
) -> None:
    plain = PlainBranches(tmp_path_factory.mktemp("plain"))
    plain.hidden.add("hid")
    for day in range(7, 0, -1):
        for path, days, committed, is_dated in base:
            if committed == day:
                plain.put("main", path, days, is_dated=is_dated)
        plain.commit("main", claims.get(day, day))
        if day == 4:
            plain.fork("dev", "main")
    for step in [*steps, ("commit", "main", 1), ("commit", "dev", 2)]:
        act(plain, step)
    listing = plain.listed(rules)
    opened = plain.opened(rules)
    stored = {(each.branch, each.rule): expired.read_entries(opened, listing, each) for each in listing.groups}
    plainly = {(branch, rule): paths for branch in plain.heads for rule, paths in decide(plain, rules, branch).items()}
    assert {name: paths_of(rows) for name, rows in stored.items()} == plainly
    going = {
        name: {path for (branch, _), paths in plainly.items() if branch == name for path in paths}
        for name in plain.heads
    }
    contents = {name: plain.commits[head].content for name, head in plain.heads.items()}
    held = {entry.address for name in contents for path, entry in contents[name].items() if path not in going[name]}
    held |= {entry.address for id_ in plain.tags.values() for entry in plain.commits[id_].content.values()}
    freed = {contents[name][path].address: 2 ** (len(path) % 5) for name, paths in going.items() for path in paths}
    freed = {address: size for address, size in freed.items() if address not in held}
    total = Amount.total(each.freed for each in listing.groups if each.freed) if listing.groups else Amount()
    assert total == Amount(len(freed), sum(freed.values()))
    for step in later:
        act(plain, step)
    for branch in plain.heads:
        head, before = plain.commits[plain.heads[branch]].content, contents.get(branch, {})
        still = {
            rule: {path for path in paths & plainly.get((branch, rule), set()) if head[path] == before.get(path)}
            for rule, paths in decide(plain, rules, branch).items()
        }
        assert plain.expired_now(rules, listing, branch) == {rule: paths for rule, paths in still.items() if paths}


def expired_paths(plain: PlainBranches, **rule: Any) -> list[str]:
    """Expired paths of main by one rule."""
    rules = [{"name": "rule", "branches": ["main"], "paths": "**", **rule}]
    listing, repository = plain.listed(rules), plain.opened(rules)
    return [
        path
        for group in listing.groups
        for path in expired.read_entries(repository, listing, group).column("path").to_pylist()
    ]


@pytest.mark.parametrize(
    ("values", "expired_values"),
    [
        ("9 10 11 007 7", "007 7 9"),
        ("2026-11-01 2026-11-02 2026-11-02T10 2026-10-31", "2026-10-31 2026-11-01"),
        ("2026-11-01 2026-11-02 2026-11-03 9999-12-31 2026-10 x __HIVE__", ""),
        ("2026-11-01 2026-11-02 2026-11-03 9999-12-31 x __HIVE__", "2026-11-01"),
        ("2026-01 2026-02 2026-03 2026-12", "2026-01"),
        ("2026-11-01 2026-11-02 20261103", ""),
        ("1 2", ""),
    ],
)
def test_all_but_the_newest_two_partitions_expire(tmp_path: Path, values: str, expired_values: str) -> None:
    plain = PlainBranches(tmp_path)
    for value in values.split():
        plain.put("main", f"t/dt={value}/x", 1)
    for path in ("dt=0/dt=9/x", "t/x", "other/dt=0"):
        plain.put("main", path, 100)
    plain.commit("main", 1)
    paths = expired_paths(plain, keep_newest=2, of="partitions", partition="dt")
    assert paths == sorted(f"t/dt={value}/x" for value in expired_values.split())


def test_a_partition_counts_once_whatever_number_of_ranges_it_spans(tmp_path: Path) -> None:
    plain = PlainBranches(tmp_path)
    paths = [f"t/dt={value}/{number:02}" for value in (1, 2, 3) for number in range(30)]
    for path in paths:
        plain.put("main", path, 1)
    plain.commit("main", 1)
    assert expired_paths(plain, keep_newest=2, of="partitions", partition="dt") == paths[:30]


def test_nothing_of_a_branch_that_was_hidden_after_the_listing_is_given_for_deletion(tmp_path: Path) -> None:
    plain = PlainBranches(tmp_path)
    plain.put("main", "a", 100)
    plain.commit("main", 100)
    rules = [{"name": "r", "branches": "main", "paths": "a", "older_than": "10d"}]
    listing = plain.listed(rules)
    assert plain.expired_now(rules, listing, "main") == {"r": {"a"}}
    plain.hidden.add("main")
    assert plain.expired_now(rules, listing, "main") == {}


def test_all_but_the_newest_two_objects_of_each_folder_expire(tmp_path: Path) -> None:
    plain = PlainBranches(tmp_path)
    for path, days in {"a": 1, "b": 3, "c": 3, "d": 4, "e": nan, "f": -1, "g": 50, "s/a": 60, "s/b": 70}.items():
        plain.put("main", path, days)
    plain.commit("main", 1)
    assert expired_paths(plain, keep_newest=2, of="objects") == ["d", "g"]


def test_an_object_is_no_older_than_its_address(tmp_path: Path) -> None:
    plain = PlainBranches(tmp_path)
    plain.put("main", "claimed", 8, is_dated=True)
    plain.put("main", "dated", 11, is_dated=True)
    plain.put("main", "exact", 10)
    plain.commit("main", 20)
    assert plain.staged["main"]["claimed"].written == moment(13)
    assert expired_paths(plain, older_than="10d") == ["dated"]
    assert expired_paths(plain, unchanged_for="10d") == ["dated"]
    assert expired_paths(plain, unchanged_for="20d") == []


def test_a_path_has_its_object_since_the_commit_that_brought_it(tmp_path: Path) -> None:
    plain = PlainBranches(tmp_path)

    def commit(days: float, **paths: float) -> None:
        for path, written in paths.items():
            plain.put("main", path, written)
        plain.commit("main", days)

    commit(60, first=90, twice=90, changed=90)
    again = plain.staged["main"].pop("twice")
    commit(50)
    plain.staged["main"]["twice"] = again
    commit(30, changed=95)
    commit(200, backdated=90)
    commit(-1, future=90)
    commit(20, later=90)
    plain.fork("dev", "main")
    plain.put("dev", "merged", 90)
    plain.commit("dev", 80)
    plain.merge("dev", "main", 10)
    for days, paths in {
        59: ["first"],
        29: ["backdated", "changed", "first", "twice"],
        19: ["backdated", "changed", "first", "later", "twice"],
        9: ["backdated", "changed", "first", "later", "merged", "twice"],
        60: [],
    }.items():
        assert expired_paths(plain, unchanged_for=f"{days}d") == paths
    graph = Graph.from_commits(plain.dumped().commits, plain.heads)
    history = PathHistory(mock.Mock(), mock.Mock(), graph, NOW, pytest.fail)
    with pytest.raises(LakeFSError, match="is missing from the commits"):
        history.are_older("f" * 64, ENTRIES.empty_table(), timedelta(9))


def test_objects_that_no_request_can_name_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = PlainBranches(tmp_path)
    plain.put("main", "a", 100)
    plain.put("main", "strange", 100)
    plain.commit("main", 100)
    read = entries.EntryReader.read

    def rename(reader: entries.EntryReader, record: RangeRecord) -> RangeEntries:
        found = read(reader, record)
        assert isinstance(found, RangeEntries) and found.keys is not None
        keys = [b"\xff" if key == b"strange" else key for key in found.keys.to_pylist()]
        return replace(found, keys=pa.array(keys, pa.binary()))

    monkeypatch.setattr(entries.EntryReader, "read", rename)
    assert expired_paths(plain, older_than="10d") == ["a"]
    assert expired_paths(plain, keep_newest=1, of="objects") == []
    (kept,) = plain.listed([{"name": "r", "branches": "main", "paths": "**", "older_than": "10d"}]).kept
    assert kept.why == "1 entries stay: their path is no text"


def test_configuration_of_lakefs_stays_unless_a_rule_names_it(tmp_path: Path) -> None:
    plain = PlainBranches(tmp_path)
    for path in ("_lakefs_actions/hook.yaml", "_lakefs_tables/a.yaml", "data"):
        plain.put("main", path, 100)
    plain.commit("main", 100)
    assert expired_paths(plain, older_than="10d") == ["data"]
    assert expired_paths(plain, older_than="10d", paths=["_lakefs_tables/*", "*"]) == ["_lakefs_tables/a.yaml", "data"]


def test_a_range_of_several_heads_is_read_once_and_counted_ones_twice_if_they_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = PlainBranches(tmp_path)
    for number in range(40):
        plain.put("main", f"a/{number:02}", number)
    plain.commit("main", 0)
    for number in range(5):
        plain.fork(f"dev-{number}", "main")
        plain.put(f"dev-{number}", f"b/{number}", 0)
        plain.commit(f"dev-{number}", 0)
    by_age = {"name": "r", "branches": "*", "paths": "a/", "older_than": "10d"}
    ranges = len(plain.store.ranges_read(lambda: plain.listed([by_age])))
    assert ranges == len({*plain.store.ranges_read(lambda: plain.listed([by_age]))}) > 5
    monkeypatch.setattr(entries, "_MOST_CACHED", 0)
    by_count = {"name": "r", "branches": "*", "paths": "a/", "keep_newest": 5, "of": "objects"}
    read = Counter(plain.store.ranges_read(lambda: plain.listed([by_count])))
    assert max(read.values()) <= 3
