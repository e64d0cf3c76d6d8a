from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakefs_gc_assets.collector.live import head_ranges, hidden
from lakefs_gc_assets.collector.live.head_ranges import HEAD_RANGES, HeadNotes, HeadRanges
from lakefs_gc_assets.collector.stored import objects, run_folder, tables
from lakefs_gc_assets.errors import StorageError
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.storage.local.store import LocalStore
from lakefs_gc_assets_tests.collector.breaking import flipped
from lakefs_gc_assets_tests.collector.written import METADATA, Staged, put_metarange, put_range

Named = Mapping[str, Sequence[tuple[str, int]]]


@pytest.fixture(autouse=True)
def _worth_noting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_ranges, "WORTH_NOTING", 1)


def known_of(named: Named) -> HeadRanges:
    known = HeadRanges()
    for metarange_id, ranges in named.items():
        known.add(metarange_id, ranges)
    return known


def notes(store: LocalStore, run: str = "run", base: str | None = "base") -> tuple[HeadNotes, list[str]]:
    warned: list[str] = []
    return HeadNotes(store, run, base, warned.append), warned


def note(store: LocalStore, named: Named, run: str = "base") -> None:
    notes(store, run)[0].write(known_of(named), named)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


@given(
    st.dictionaries(st.sampled_from("mnopq"), st.sets(st.sampled_from("abcdef")), max_size=5),
    st.sets(st.sampled_from("mnopq")),
)
@settings(max_examples=100, deadline=None)
def test_what_was_noted_is_known(named: dict[str, set[str]], wanted: set[str]) -> None:
    counts = {range_id: number for number, range_id in enumerate("abcdef", start=1)}
    known = known_of({name: [(each, counts[each]) for each in sorted(ids)] for name, ids in named.items()})
    noted = sorted(wanted & named.keys())
    again = HeadRanges.of(known.table(noted))
    for name in "mnopq":
        # One that names no range is as good as unknown: it is read again.
        assert (name in again) == (name in noted and bool(named[name]))
        if name in again:
            assert sorted(again.ranges(name)) == sorted(named[name])
            assert [again.entries(range_id) for range_id in named[name]] == [counts[each] for each in named[name]]


def test_a_range_of_many_heads_is_noted_once(store: LocalStore) -> None:
    part = [("a", 1), ("b", 2)]
    assert known_of({"m": part, "n": part}).table(["m", "n"]).to_pylist() == [
        {"range_id": "a", "entries": 1, "metarange_ids": ["m", "n"]},
        {"range_id": "b", "entries": 2, "metarange_ids": ["m", "n"]},
    ]


class Repository:
    """Ranges a to f, and heads that name some of them."""

    def __init__(self, folder: Path) -> None:
        self.store = LocalStore(folder)
        self.parts: dict[str, RangeRecord] = {
            name: put_range(self.store, {f"{name}{place}": Staged(f"data/{name}{place}") for place in range(number)})
            for number, name in enumerate("abcdef", start=1)
        }

    def head(self, names: str) -> str:
        return put_metarange(self.store, [self.parts[name] for name in sorted(names)])


@given(st.dictionaries(st.sampled_from("vwxyz"), st.text("abcdef", max_size=4)), st.sets(st.sampled_from("vwxyz")))
@settings(max_examples=50, deadline=None)
def test_whatever_is_noted_the_ranges_of_heads_are_the_same(branches: dict[str, str], before: set[str]) -> None:
    with TemporaryDirectory() as folder:
        repository = Repository(Path(folder))
        heads = {branch: repository.head("".join(set(names))) for branch, names in branches.items()}
        noting, told = notes(repository.store)
        first = HeadRanges()
        earlier = {branch: head for branch, head in heads.items() if branch in before}
        hidden.heads_by_range(repository.store, earlier, first)
        HeadNotes(repository.store, "base", None, told.append).write(first, earlier.values())
        found = hidden.heads_by_range(repository.store, heads, noting.read())
        expected = hidden.heads_by_range(repository.store, heads)
        assert {name: (set(head.branches), head.entries) for name, head in found.items()} == {
            name: (set(head.branches), head.entries) for name, head in expected.items()
        }
        assert told == []


def test_heads_that_are_noted_are_not_read(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    heads = {"x": repository.head("ab"), "y": repository.head("bc")}
    first = HeadRanges()
    expected = hidden.heads_by_range(repository.store, heads, first)
    notes(repository.store, "base")[0].write(first, heads.values())
    repository.store.delete([METADATA + head for head in heads.values()])
    heads["z"] = repository.head("f")
    found = hidden.heads_by_range(repository.store, heads, notes(repository.store)[0].read())
    assert {name: found[name] for name in expected} == expected
    assert found[repository.parts["f"].id].branches == ("z",)


class TestNotes:
    def test_a_run_that_builds_on_none_finds_nothing(self, store: LocalStore) -> None:
        note(store, {"m": [("a", 1)]})
        noting, told = notes(store, base=None)
        noting.take_over()
        assert ("m" in noting.read(), told) == (False, [])

    def test_a_base_run_that_noted_nothing(self, store: LocalStore) -> None:
        noting, told = notes(store)
        noting.take_over()
        assert (noting.read(), told) == (HeadRanges(), [])

    @pytest.mark.parametrize("what", ["damaged", "another schema", "cut off", "a range twice", "no metarange"])
    def test_what_is_not_what_was_written_counts_for_nothing_and_is_told(self, store: LocalStore, what: str) -> None:
        note(store, {"m": [("a", 1), ("b", 2)]})
        key = head_ranges.key("base")
        whole = store.get(key)
        rows = tables.decode(HEAD_RANGES, whole, key, "notes")
        null = pa.ListArray.from_arrays([0, 1, 2], pa.array([None, "m"], pa.string()))
        contents = {
            "damaged": whole.replace(b"PAR1", b"PAR2"),
            "another schema": tables.encode(rows.drop_columns(["entries"])),
            "cut off": whole[: len(whole) // 2],
            "a range twice": tables.encode(pa.concat_tables([rows, rows])),
            "no metarange": tables.encode(rows.set_column(2, "metarange_ids", null)),
        }
        store.put(key, contents[what])
        noting, told = notes(store)
        assert "m" not in noting.read()
        assert len(told) == 1 and "every head is read" in told[0]
        # Rows that mean nothing are found in a table that could be read.
        named = what not in ("a range twice", "no metarange")
        assert (key in told[0], "ranges of heads" in told[0]) == (named, named)

    def test_every_changed_byte_counts_for_nothing_or_changes_nothing(self, store: LocalStore) -> None:
        named: Named = {"m" * 64: [("a" * 64, 1), ("b" * 64, 2)], "n" * 64: [("b" * 64, 2)]}
        note(store, named)
        key = head_ranges.key("base")
        whole = store.get(key)
        for place in range(len(whole)):
            store.put(key, flipped(whole, place))
            found = notes(store)[0].read()
            for metarange_id, parts in named.items():
                if metarange_id in found:
                    assert sorted(found.ranges(metarange_id)) == [range_id for range_id, _ in parts]

    def test_only_what_is_asked_for_is_noted(self, store: LocalStore) -> None:
        notes(store, "base")[0].write(known_of({"m": [("a", 1)], "n": [("b", 2)]}), ["n", "n"])
        found = notes(store)[0].read()
        assert ("m" in found, "n" in found, found.ranges("n")) == (False, True, ["b"])

    def test_they_lie_where_the_frames_of_a_run_that_expires_are_removed(self) -> None:
        assert head_ranges.key("run").startswith(run_folder.frame("run", head_ranges.NAME))

    def test_little_is_not_noted(self, store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(head_ranges, "WORTH_NOTING", 3)
        note(store, {"m": [("a", 1), ("b", 2)]})
        assert "m" not in notes(store)[0].read()
        note(store, {"m": [("a", 1), ("b", 2)], "n": [("b", 2)]})
        assert "m" in notes(store)[0].read()

    @pytest.mark.parametrize("copies", [False, True])
    def test_a_run_without_use_for_them_hands_them_on(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch, copies: bool
    ) -> None:
        if not copies:
            monkeypatch.setattr(objects, "CopiesObjects", type("Nothing", (), {}))
        note(store, {"m": [("a", 1)]})
        notes(store)[0].take_over()
        store.delete([head_ranges.key("base")])
        assert notes(store, "next", "run")[0].read().ranges("m") == ["a"]

    def test_a_store_that_refuses_is_told_and_ends_nothing(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(self: LocalStore, key: str, *more: object) -> None:
            raise StorageError(f"{key} is refused")

        note(store, {"m": [("a", 1)]})
        monkeypatch.setattr(LocalStore, "put", refuse)
        monkeypatch.setattr(LocalStore, "copy", refuse)
        noting, told = notes(store)
        noting.write(known_of({"m": [("a", 1)]}), ["m"])
        noting.take_over()
        assert len(told) == 2 and all("is refused" in line for line in told)
