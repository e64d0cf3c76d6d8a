from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.collector.records.own_commits import MARK, OwnCommit, record_own_commit
from lakefs_gc_assets.extensions.holdings import head_commits, head_parts
from lakefs_gc_assets.lakefs.addresses import AddressType
from lakefs_gc_assets.spark.engine import SparkEngine
from lakefs_gc_assets_tests.extensions.holdings.plain_heads import CountingStore, PlainHeads, as_rows, entry

BRANCHES = ("main", "dev", "exp")
PATHS = [f"{folder}{name}" for folder in ("", "a/", "a/b/", "c/") for name in ("k", "m", "p", "s", "v")]
OBJECTS = range(24)
STEPS = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(BRANCHES), st.sampled_from(PATHS), st.sampled_from(OBJECTS)),
    st.tuples(st.just("put"), st.sampled_from(BRANCHES), st.sampled_from(PATHS), st.sampled_from(OBJECTS)),
    st.tuples(st.just("remove"), st.sampled_from(BRANCHES), st.sampled_from(PATHS), st.just(0)),
    st.tuples(st.just("commit"), st.sampled_from(BRANCHES), st.sampled_from(["ann", "bob"]), st.integers(0, 2)),
    st.tuples(st.just("fork"), st.sampled_from(BRANCHES[1:]), st.just(""), st.integers(0, 99)),
    st.tuples(st.just("drop"), st.sampled_from(BRANCHES[1:]), st.just(""), st.just(0)),
)
DAYS = st.lists(st.lists(STEPS, max_size=12), min_size=1, max_size=5)
KEYS = ("team",)


def act(heads: PlainHeads, kind: str, branch: str, name: str, number: int) -> None:
    if kind == "fork" and branch not in heads.heads:
        heads.fork(branch, sorted(heads.commits)[number % len(heads.commits)])
    if branch not in heads.heads:
        return
    if kind == "put":
        heads.branches[branch][name] = entry(number)
    elif kind == "remove":
        heads.branches[branch].pop(name, None)
    elif kind == "commit":
        heads.commit(branch, name, **({"team": f"team {number}"} if number else {}))
    elif kind == "drop":
        heads.drop(branch)


@settings(max_examples=25)
@given(DAYS, st.sampled_from([2, head_parts.ENTRIES_OF_PART]))
def test_each_day_equals_a_plain_count(
    tmp_path_factory: pytest.TempPathFactory, days: list[list[Any]], entries_of_part: int
) -> None:
    """With few entries of a part, days add intervals at the end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head_parts, "ENTRIES_OF_PART", entries_of_part)
        play(tmp_path_factory, days)


def play(tmp_path_factory: pytest.TempPathFactory, days: list[list[Any]]) -> None:
    heads = PlainHeads(CountingStore(tmp_path_factory.mktemp("heads")))
    for path, number in zip(PATHS, OBJECTS, strict=False):
        heads.branches["main"][path] = entry(number)
    heads.commit("main")
    for steps in [[], *days]:
        for step in steps:
            act(heads, *step)
        found = heads.attribute(keys=KEYS)
        assert as_rows(found.rows) == heads.count(keys=KEYS)
        held = {each.address: each.size for commit in heads.heads.values() for each in heads.contents[commit].values()}
        assert (found.in_all, found.uncertain) == (Amount(len(held), sum(held.values())), 0)


def test_a_part_does_not_grow_with_old_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each day brings a partition and drops one, and branches keep the older ones."""
    monkeypatch.setattr(head_parts, "ENTRIES_OF_PART", 20)
    heads = PlainHeads(CountingStore(tmp_path))
    for day in range(40):
        of_main = heads.branches["main"]
        of_main |= {f"day={day:02}/{number}": entry((20 * day + number) % 50) for number in range(20)}
        heads.branches["main"] = {path: each for path, each in of_main.items() if int(path[4:6]) > day - 4}
        heads.commit("main")
        heads.fork(f"copy-{day}", heads.heads["main"])
        if day >= 30:
            found = heads.attribute()
            assert as_rows(found.rows) == heads.count()
    of_part = Counter(found.known["ranges"].column("part").to_pylist())
    assert max(of_part.values()) < 20 < len(of_part)
    heads.attribute()
    assert heads.store.ranges_read == []


def test_unchanged_heads_read_nothing_again(tmp_path: Path) -> None:
    heads = PlainHeads(CountingStore(tmp_path))
    heads.branches["main"] = {f"a/{number}": entry(number) for number in range(30)}
    heads.commit("main")
    heads.fork("dev", heads.heads["main"])
    heads.attribute()
    first = len(heads.store.ranges_read)
    again = heads.attribute()
    assert first > 3 and heads.store.ranges_read == [] and heads.commits_asked == [] and again.ranges_read == 0
    assert as_rows(again.rows) == heads.count()


def test_a_day_reads_only_parts_that_changed(tmp_path: Path) -> None:
    heads = PlainHeads(CountingStore(tmp_path))
    heads.branches["main"] = {f"a/{number:03}": entry(number % 40) for number in range(200)}
    heads.commit("main")
    heads.attribute()
    every = {*heads.store.ranges_read}
    heads.branches["main"]["a/100"] = entry(50)
    heads.commit("main")
    found = heads.attribute()
    # The metarange, the range, and the range that it replaces.
    assert len(every) > 20 and len(heads.store.ranges_read) <= 3
    heads.count()
    assert as_rows(found.rows)["commit", heads.heads["main"], None] == (1, 2**50)


def test_object_lifecycle_is_the_committer_of_its_commits(tmp_path: Path) -> None:
    """A revert brings objects back. One commit has a mark without a receipt, and one a receipt without a mark."""
    heads = PlainHeads(CountingStore(tmp_path))
    heads.branches["main"] = {"a": entry(1)}
    heads.commit("main")
    heads.attribute()
    for number, marked in ((2, True), (3, True), (4, False)):
        heads.branches["main"][f"b/{number}"] = entry(number)
        heads.commit("main", "bob", **({MARK: "run"} if marked else {}))
        if number != 3:
            own = OwnCommit("repo", heads.heads["main"], "main", "run", datetime.now(UTC))
            record_own_commit(heads.store, own)
    rows = as_rows(heads.attribute().rows)
    brought = {key: amount for (dimension, key, _), amount in rows.items() if dimension == "committer"}
    assert brought == {"(object lifecycle)": (1, 4), "bob": (2, 24)}


def test_damaged_facts_are_not_used(tmp_path: Path) -> None:
    heads = PlainHeads(CountingStore(tmp_path))
    heads.branches["main"] = {"a": entry(1), "b": entry(2)}
    heads.commit("main")
    run = heads.attribute().known.run_id
    heads.store.put(f"{run_folder.HOLDINGS_HEADS}{run}/sums.parquet", b"damaged")
    found = heads.attribute()
    assert found.in_all == found.listed == Amount(2, 6) and heads.store.ranges_read


def test_address_that_may_mean_several_objects_is_in_no_figure(tmp_path: Path) -> None:
    heads = PlainHeads(CountingStore(tmp_path))
    odd = replace(entry(3), address="data/a?b", address_type=AddressType.BY_PREFIX_DEPRECATED.value)
    heads.branches["main"] = {"a": entry(1), "b": odd}
    heads.commit("main")
    for _ in range(2):
        found = heads.attribute()
        assert (found.in_all, found.uncertain > 0) == (Amount(1, 2), True)


@pytest.mark.parametrize("depth", [1, 2])
def test_another_depth_reads_everything_again(tmp_path: Path, depth: int) -> None:
    heads = PlainHeads(CountingStore(tmp_path))
    heads.branches["main"] = {path: entry(number) for number, path in enumerate(PATHS)}
    heads.commit("main")
    heads.attribute(3 - depth)
    heads.count()
    assert as_rows(heads.attribute(depth).rows) == heads.count(depth)


@pytest.mark.slow
def test_spark_finds_the_same_on_each_day(spark: SparkSession, tmp_path: Path) -> None:
    heads = PlainHeads(CountingStore(tmp_path))
    heads.branches["main"] = {path: entry(number // 2) for number, path in enumerate(PATHS)}
    heads.commit("main")
    assert as_rows(heads.attribute(engine=SparkEngine(spark, 2)).rows) == heads.count()
    heads.fork("dev", heads.heads["main"])
    act(heads, "put", "dev", "a/q", 20)
    act(heads, "put", "dev", "z/q", 21)
    act(heads, "put", "dev", "a/x", 1)
    act(heads, "commit", "dev", "ann", 1)
    found = heads.attribute(engine=SparkEngine(spark, 2), keys=KEYS)
    assert as_rows(found.rows) == heads.count(keys=KEYS)
    assert found.known["spread"].num_rows and found.known["brought"].num_rows == 2


def test_objects_of_commits_beyond_the_limit_have_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_commits, "MOST_COMMITS", 2)
    heads = PlainHeads(CountingStore(tmp_path))
    heads.commit("main")
    heads.branches["main"] = {"a": entry(1)}
    heads.commit("main")
    heads.attribute()
    for number in range(2, 5):
        heads.branches["main"][f"a{number}"] = entry(number)
        heads.commit("main")
    rows = as_rows(heads.attribute().rows)
    assert {key: rows[key] for key in rows if key[0] == "commit"} == {("commit", heads.heads["main"], None): (1, 16)}
