import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.live import hidden
from lakefs_gc_assets.collector.live.hidden import PLACES, Answers, HeadRange
from lakefs_gc_assets.collector.live.references import ranges_of_heads
from lakefs_gc_assets.errors import CorruptFile, ServerUnavailable
from lakefs_gc_assets.lakefs.addresses import AddressType, Namespace
from lakefs_gc_assets.lakefs.api.models import ObjectStats
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets.storage.opening import StoreOpener
from lakefs_gc_assets_tests.collector.made_frames import made_step, opened_by
from lakefs_gc_assets_tests.collector.scripted import Script, ScriptedApi
from lakefs_gc_assets_tests.collector.written import METADATA, Staged, put_metarange, put_range

NAMESPACE = Namespace.parse("s3://bucket/repo")
_TOO_LONG = 60.0
Place = tuple[str, bytes]


def stats(path: str, address: str) -> Script[ObjectStats]:
    return Script(ObjectStats(path, address, 1))


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


def heads_by_range(store: LocalStore, heads: dict[str, str]) -> Mapping[str, HeadRange]:
    """Ranges of branch heads, from their files."""
    root = Path(os.fsdecode(store._root))
    opener = StoreOpener(StoreSettings(local_root=str(root.parent)), f"local://{root.name}/")
    step = made_step(LocalEngine(), replace(opened_by(opener), store=store))
    return hidden.heads_by_range(heads.items(), ranges_of_heads(step, step.repository, {*heads.values()}, record=False))


class TestHeadsByRange:
    def test_each_range_has_all_branches_whose_head_holds_it(self, store: LocalStore) -> None:
        a, b, c = (put_range(store, {name: Staged(f"data/{name}")}) for name in "abc")
        ab, bc = put_metarange(store, [a, b]), put_metarange(store, [b, c])
        found = heads_by_range(store, {"main": ab, "copy": ab, "x": bc, "empty": put_metarange(store, [])})
        assert {range_id: set(head.branches) for range_id, head in found.items()} == {
            a.id: {"main", "copy"},
            b.id: {"main", "copy", "x"},
            c.id: {"x"},
        }
        assert all(len(head.branches) == len(set(head.branches)) for head in found.values())

    def test_a_range_has_so_many_entries(self, store: LocalStore) -> None:
        part = put_range(store, {name: Staged(f"data/{name}") for name in "abc"})
        assert heads_by_range(store, {"main": put_metarange(store, [part])})[part.id].entries == 3

    def test_no_heads(self, store: LocalStore) -> None:
        assert heads_by_range(store, {}) == {}

    def test_a_head_that_cannot_be_read_ends_the_run(self, store: LocalStore) -> None:
        whole = put_metarange(store, [put_range(store, {"a": Staged("data/a")})])
        heads = {"main": whole, "x": "a" * 64, **{f"b{number}": whole for number in range(20)}}
        with pytest.raises(CorruptFile, match="existence"):
            heads_by_range(store, heads)
        store.put(METADATA + "a" * 64, b"damaged")
        with pytest.raises(CorruptFile) as caught:
            heads_by_range(store, heads)
        assert caught.value.file == METADATA + "a" * 64

    def test_eight_heads_are_read_at_once(self, store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
        heads = {name: put_metarange(store, [put_range(store, {name: Staged(f"data/{name}")})]) for name in "abcdefgh"}
        all_at_once, get = Barrier(8, timeout=_TOO_LONG), store.get
        monkeypatch.setattr(store, "get", lambda key: all_at_once.wait() >= 0 and get(key))
        assert len(heads_by_range(store, heads)) == 8


def table(places: list[Place]) -> pa.Table:
    return pa.Table.from_pylist([{"range_id": range_id, "path": path} for range_id, path in places], schema=PLACES)


def ask(
    api: ScriptedApi, places: list[Place], branches: dict[str, tuple[str, ...]], entries: int = 1_000_000
) -> Answers:
    heads = {range_id: HeadRange(names, entries) for range_id, names in branches.items()}
    return hidden.ask(api, NAMESPACE, table(places), heads)


class TestAsking:
    def test_finds_what_is_staged_at_the_path(self) -> None:
        api = ScriptedApi(stats={("main", "p"): stats("p", NAMESPACE.uri + "data/staged")})
        answers = ask(api, [("r", b"p")], {"r": ("main",)})
        assert (answers.live, answers.asked, answers.requests) == (frozenset({"data/staged"}), 1, 1)
        assert answers.unaskable.num_rows == 0

    def test_every_spelling_of_the_answer_is_live(self) -> None:
        api = ScriptedApi(stats={("main", "p"): stats("p", "s3a://bucket/repo/data//staged")})
        assert "data/staged" in ask(api, [("r", b"p")], {"r": ("main",)}).live

    def test_every_branch_of_the_range_is_asked(self) -> None:
        api = ScriptedApi(
            stats={
                ("a", "p"): stats("p", NAMESPACE.uri + "data/of-a"),
                ("b", "p"): stats("p", NAMESPACE.uri + "data/of-b"),
            }
        )
        answers = ask(api, [("r", b"p")], {"r": ("a", "b", "c")})
        assert (answers.live, answers.asked) == (frozenset({"data/of-a", "data/of-b"}), 3)

    def test_each_branch_and_path_is_asked_once(self) -> None:
        api = ScriptedApi()
        answers = ask(api, [("r", b"p"), ("s", b"p"), ("r", b"q")], {"r": ("a", "b"), "s": ("c",)})
        assert sorted(api.asked) == [("a", "p"), ("a", "q"), ("b", "p"), ("b", "q"), ("c", "p")]
        assert (answers.asked, answers.requests) == (5, 5)

    def test_an_object_elsewhere_or_none_is_not_live_here(self) -> None:
        api = ScriptedApi(stats={("main", "p"): stats("p", "s3://bucket/repo2/data/x")})
        assert ask(api, [("r", b"p"), ("r", b"q")], {"r": ("main",)}).live == frozenset()

    def test_a_path_that_is_no_text_is_left_unasked_and_reported(self) -> None:
        answers = ask(ScriptedApi(), [("r", b"\xff"), ("r", b"p")], {"r": ("main",)})
        assert answers.unaskable.to_pylist() == [{"range_id": "r", "path": b"\xff"}]
        assert answers.asked == 1

    def test_an_answer_that_fails_ends_the_run(self) -> None:
        api = ScriptedApi(stats={("main", "p7"): Script(ServerUnavailable("GET stat: 503"))})
        with pytest.raises(ServerUnavailable):
            ask(api, [("r", f"p{number}".encode()) for number in range(30)], {"r": ("main",)})

    def test_thirty_two_paths_are_asked_for_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        api, all_at_once = ScriptedApi(), Barrier(32, timeout=_TOO_LONG)
        stat = api.stat
        monkeypatch.setattr(api, "stat", lambda *of: stat(*of) if all_at_once.wait() >= 0 else None)
        assert ask(api, [("r", b"%d" % number) for number in range(32)], {"r": ("main",)}).asked == 32

    @pytest.mark.parametrize(("paths", "branches"), [(300, 1), (30, 33), (20_000, 1)])
    def test_each_of_many_paths_is_asked_once(self, paths: int, branches: int) -> None:
        """Paths are divided among tasks, whose size depends on the number of paths."""
        api, names = ScriptedApi(), tuple(f"branch-{number}" for number in range(branches))
        answers = ask(api, [("r", b"%d" % number) for number in range(paths)], {"r": names}, 10**9)
        assert sorted(api.asked) == sorted((name, str(number)) for name in names for number in range(paths))
        assert (answers.asked, answers.requests, api.listed) == (paths * branches, paths * branches, [])

    @given(
        st.sets(st.tuples(st.sampled_from("rst"), st.sampled_from(["p", "q", "\xff", "é"])), max_size=12),
        st.sampled_from([1, 100_000]),
    )
    def test_what_was_asked_was_asked_everywhere(self, pairs: set[tuple[str, str]], entries: int) -> None:
        branches = {"r": ("a",), "s": ("b", "f"), "t": ("c", "d", "e")}
        places = [(range_id, path.encode("latin-1")) for range_id, path in pairs]
        api = ScriptedApi()
        answers = ask(api, places, branches, entries)
        unasked = {(row["range_id"], row["path"]) for row in answers.unaskable.to_pylist()}
        assert len(api.asked) == len(set(api.asked)) == answers.asked
        for range_id, path in places:
            if (range_id, path) not in unasked:
                for branch in branches[range_id]:
                    assert (branch, path.decode()) in api.asked


class TestListing:
    """Many paths in the same range."""

    def branch(self, names: list[str], on_page: int = 1000) -> ScriptedApi:
        objects = [ObjectStats(name, f"{NAMESPACE.uri}data/of-{name}", 1) for name in names]
        return ScriptedApi(objects={"main": objects}, objects_on_page=on_page)

    def test_takes_a_request_for_each_page(self) -> None:
        names = [f"p{number:05}" for number in range(10_000)]
        api = self.branch(names)
        answers = ask(api, [("r", name.encode()) for name in names], {"r": ("main",)}, entries=10_000)
        assert answers.live == {f"data/of-{name}" for name in names}
        assert (answers.asked, answers.requests, len(api.listed), api.asked) == (10_000, 10, 10, [])

    def test_passes_over_what_nobody_asks_for(self) -> None:
        names = [f"{folder}/{number:04}" for folder in "abc" for number in range(1000)]
        api = self.branch(names, on_page=100)
        asked = [*names[:50], *names[-50:]]
        answers = ask(api, [("r", name.encode()) for name in asked], {"r": ("main",)}, entries=1000)
        assert answers.live == {f"data/of-{name}" for name in asked}
        assert len(api.listed) == 2

    def test_pages_with_few_of_the_paths_are_not_worth_it(self) -> None:
        names = [f"{number:05}" for number in range(10_000)]
        api = self.branch(names)
        near = hidden.stats_at(api, "main", names[:1_500])
        addresses = {path: each.physical_address for path, each in near.items()}
        assert addresses == {name: f"{NAMESPACE.uri}data/of-{name}" for name in names[:1_500]}
        assert (len(api.listed), api.asked) == (2, [])
        far = names[::1_000]
        api.stats |= {("main", name): stats(name, NAMESPACE.uri + "data/far") for name in far}
        assert hidden.stats_at(api, "main", [*far, "no such path"]).keys() == {*far}
        assert (len(api.listed), len(api.asked)) == (3, 10)

    def test_a_path_that_a_listing_lacks_is_asked_for_by_itself(self) -> None:
        names = [f"p{number:02}" for number in range(20)]
        api = self.branch([name for name in names if name not in ("p00", "p07", "p19")])
        api.stats["main", "p07"] = stats("p07", NAMESPACE.uri + "data/staged")
        answers = ask(api, [("r", name.encode()) for name in names], {"r": ("main",)}, entries=20)
        assert "data/staged" in answers.live
        assert sorted(api.asked) == [("main", "p00"), ("main", "p07"), ("main", "p19")]
        assert (answers.asked, answers.requests) == (20, 4)

    @pytest.mark.parametrize(
        ("paths", "entries", "listed"),
        [(10, 1000, True), (9, 1000, False), (9, 900, False), (10, 1001, False), (20, 1001, True)],
    )
    def test_is_worth_it_from_ten_paths_for_each_page_of_the_range(
        self, paths: int, entries: int, listed: bool
    ) -> None:
        names = [f"p{number:02}" for number in range(paths)]
        api = self.branch(names)
        answers = ask(api, [("r", name.encode()) for name in names], {"r": ("main",)}, entries)
        assert (len(api.listed), len(api.asked)) == ((1, 0) if listed else (0, paths))
        assert answers.requests == (1 if listed else paths)

    @pytest.mark.parametrize(
        ("path", "before"),
        [
            ("b", "a\U0010ffff"),
            ("ab", "aa\U0010ffff"),
            ("\ue000", "\ud7ff\U0010ffff"),
            ("\ue001", "\ue000\U0010ffff"),
            ("a\0", "a"),
            ("\x01", "\0\U0010ffff"),
        ],
    )
    def test_begins_right_before_the_first_path(self, path: str, before: str) -> None:
        names = [path, *(f"\uffff{number}" for number in range(9))]
        api = self.branch(names)
        ask(api, [("r", name.encode()) for name in names], {"r": ("main",)}, entries=1000)
        assert api.listed == [("main", before)] and before < path

    def test_few_paths_of_a_large_range_are_asked_for_one_by_one(self) -> None:
        names = [f"p{number:05}" for number in range(50_000)]
        api = self.branch(names)
        answers = ask(api, [("r", name.encode()) for name in names[::1000]], {"r": ("main",)}, entries=50_000)
        assert (len(api.asked), api.listed, answers.asked) == (50, [], 50)

    @given(
        st.sets(st.text(max_size=3), max_size=20),
        st.sets(st.text(min_size=1, max_size=3), min_size=10, max_size=20),
        st.integers(1, 4),
    )
    def test_finds_every_path_whatever_lies_between(self, others: set[str], asked: set[str], on_page: int) -> None:
        api = self.branch(sorted((others | asked) - {""}), on_page)
        answers = ask(api, [("r", name.encode()) for name in asked], {"r": ("main",)}, entries=1)
        assert api.asked == []
        assert answers.live == {
            key for name in asked for key in NAMESPACE.live_keys(f"{NAMESPACE.uri}data/of-{name}", AddressType.FULL)
        }
