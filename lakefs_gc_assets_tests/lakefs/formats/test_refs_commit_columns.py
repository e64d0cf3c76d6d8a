from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.lakefs.api.models import Commit
from lakefs_gc_assets.lakefs.formats import ranges
from lakefs_gc_assets.lakefs.formats.refs import CommitColumns, read_commits
from lakefs_gc_assets_tests.lakefs.formats.commit_rows import rows
from lakefs_gc_assets_tests.lakefs.formats.table_bytes import TableBytes, framed, integer, text, varint

_IDS = st.text("0123456789abcdef", min_size=64, max_size=64)
_COMMITS = st.builds(
    Commit,
    id=_IDS,
    metarange_id=_IDS | st.just(""),
    parents=st.lists(_IDS, max_size=9).map(tuple),
    creation_date=st.integers(-(1 << 63), (1 << 63) - 1),
    version=st.integers(-(1 << 31), (1 << 31) - 1),
)
_LISTS = st.lists(_COMMITS, max_size=20, unique_by=lambda commit: commit.id)


def table(messages: dict[str, bytes], **properties: bytes) -> bytes:
    records = sorted((id_.encode(), framed(id_.encode(), message)) for id_, message in messages.items())
    return TableBytes(records, {"entity": b"commit", **properties}).build()


def message(commit: Commit, nanos: int = 0) -> bytes:
    data = text(1, commit.id) + text(2, "committer") + text(3, "message")
    data += text(4, integer(1, commit.creation_date) + integer(2, nanos))
    data += text(5, commit.metarange_id) + text(6, text(1, "key") + text(2, "value"))
    data += b"".join(text(7, parent) for parent in commit.parents)
    return data + integer(8, commit.version) + integer(9, 4711)


@given(_LISTS)
def test_commits_are_read_in_order_of_their_ids(commits: list[Commit]) -> None:
    found = read_commits(table({commit.id: message(commit, 7) for commit in commits}), "commits")
    assert rows(found) == sorted(commits, key=lambda commit: commit.id)
    assert found.nanos.tolist() == [7] * len(commits)
    for column in (found.ids, found.metarange_ids, found.parents):
        column.validate(full=True)
        assert (column.type, column.null_count) == (pa.string(), 0)


@given(st.lists(_LISTS, max_size=4))
def test_parts_are_joined_in_their_order(parts: list[list[Commit]]) -> None:
    joined = CommitColumns.joined([CommitColumns.from_commits(part) for part in parts])
    assert rows(joined) == [commit for part in parts for commit in part]
    assert len(joined) == len(joined.parent_offsets) - 1


@given(_LISTS, st.lists(_IDS, max_size=40), st.integers(1, 5))
def test_commits_are_found_by_their_ids(commits: list[Commit], others: list[str], times: int) -> None:
    columns = CommitColumns.from_commits(commits)
    ids = [commit.id for commit in commits]
    for asked in ([], ids[:1], ids[-1:] * times, ids + others, others, [*others[:1], *ids[:2], *others[:1]]):
        expected = [ids.index(each) if each in ids else -1 for each in asked]
        assert columns.positions(pa.array(asked, pa.string())).tolist() == expected


def test_dates_of_the_api_count_as_the_latest_in_their_second() -> None:
    assert CommitColumns.from_commits([Commit("a", "", (), 5)]).nanos.tolist() == [999_999_999]


def test_absent_fields_are_zero_unknown_ones_passed_over_and_the_last_of_several_counts() -> None:
    unknown = varint(20 << 3 | 1) + bytes(8) + varint(21 << 3 | 5) + bytes(4) + integer(22, 1) + text(23, b"\xff")
    twice = text(1, "x") + text(4, integer(1, 5) + integer(2, 6)) + integer(8, 9) + text(1, "b") + integer(8, 1)
    later = text(4, integer(2, 8))
    found = read_commits(table({"a": text(1, "a") + unknown, "b": twice + later}), "commits")
    assert rows(found) == [Commit("a", "", (), 0, version=0), Commit("b", "", (), 5, version=1)]
    assert found.nanos.tolist() == [0, 8]


def test_a_commit_of_many_parents() -> None:
    parents = tuple(f"{number:064x}" for number in range(1000))
    found = read_commits(table({"a": message(Commit("a", "", parents, 1)), "b": text(1, "b")}), "commits")
    assert [commit.parents for commit in rows(found)] == [parents, ()]
    assert np.array_equal(found.parent_offsets, [0, 1000, 1000])


@pytest.mark.parametrize(
    ("wrong", "check"),
    [
        (text(1, "other"), "commit id"),
        (b"", "commit id"),
        (text(1, "name") + integer(2, 1), "protobuf"),
        (text(1, "name") + integer(7, 1), "protobuf"),
        (text(1, "name") + text(8, "x"), "protobuf"),
        (text(1, "name") + text(4, text(1, "x")), "protobuf"),
        (text(1, "name") + text(4, b"\x08"), "protobuf"),
        (text(1, "name") + text(7, b"\xff"), "parent"),
        (text(1, "name") + b"\x12\x20short", "protobuf"),
        (text(1, "name") + varint(9 << 3 | 3), "protobuf"),
        (text(1, "name") + b"\x80", "protobuf"),
        (text(1, "name") + b"\x00", "protobuf"),
        (text(1, "name") + text(5, "a" * 63), "metarange id"),
        (text(1, "name") + text(5, "../../etc"), "metarange id"),
        (text(1, "name") + text(5, "A" * 64), "metarange id"),
        (text(1, "name") + text(5, "a" * 64 + "\n"), "metarange id"),
    ],
)
def test_a_malformed_commit_is_an_error(wrong: bytes, check: str) -> None:
    with pytest.raises(CorruptFile) as caught:
        read_commits(table({"name": wrong}), "table")
    assert (caught.value.file, caught.value.check) == ("table", check)


def test_an_id_that_is_no_text_is_an_error() -> None:
    data = TableBytes([(b"\xff", framed(b"", text(1, b"\xff")))], {"entity": b"commit"}).build()
    with pytest.raises(CorruptFile, match="commit id"):
        read_commits(data, "table")


@pytest.mark.parametrize("entity", ["branch", "tag"])
def test_a_table_of_another_entity_is_refused(entity: str) -> None:
    with pytest.raises(CorruptFile, match="type"):
        read_commits(table({"name": text(1, "name")}, entity=entity.encode()), "table")


def test_a_table_must_be_as_its_metarange_states_it() -> None:
    data = table({"name": text(1, "name")})
    right: dict[str, Any] = {"id": "0" * 64, "min_key": b"name", "max_key": b"name", "count": 1, "estimated_size": 0}
    assert len(read_commits(data, "table", expected=ranges.RangeRecord(**right))) == 1
    with pytest.raises(CorruptFile, match="metarange"):
        read_commits(data, "table", expected=ranges.RangeRecord(**{**right, "count": 2}))
