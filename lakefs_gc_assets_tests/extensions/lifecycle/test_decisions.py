"""Decisions about made-up branches equal those of a plain implementation."""

from math import nan
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.extensions.lifecycle import expired
from lakefs_gc_assets_tests.extensions.lifecycle.plain_branches import PlainBranches, decide, paths_of

BRANCHES = ("main", "dev", "hid")
FOLDERS = ("", "a/", "a/b/", "a/dt=1/", "a/dt=10/", "a/dt=9/b/", "a/dt=2026-11-01/", "a/dt=x/", "é/dt=2026-10-01/")
FOLDERS = (*FOLDERS, "é/dt=2026-11-28/", "é/dt=2027-01-01/", "é/dt=2026-09-01/dt=3/")
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
            "branches": st.lists(st.sampled_from(BRANCHES), min_size=1, unique=True),
            "paths": st.lists(PATTERNS, min_size=1, max_size=2),
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


BASE = st.lists(st.tuples(PATHS, DAYS), min_size=8, max_size=24)
"""Paths with the days for which they are there."""


@settings(max_examples=60)
@given(BASE, st.lists(STEPS, max_size=20), RULES, st.lists(STEPS, max_size=4))
def test_decisions_equal_those_of_a_plain_implementation(
    tmp_path_factory: pytest.TempPathFactory,
    base: list[tuple[str, float]],
    steps: list[tuple[Any, ...]],
    rules: list[dict[str, Any]],
    later: list[tuple[Any, ...]],
) -> None:
    plain = PlainBranches(tmp_path_factory.mktemp("plain"))
    plain.hidden.add("hid")
    for day in range(7, 0, -1):
        for path, days in base:
            if days == day:
                plain.put("main", path, days)
        plain.commit("main", day)
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
