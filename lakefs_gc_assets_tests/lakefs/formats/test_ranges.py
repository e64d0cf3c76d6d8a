from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.lakefs.formats import ranges
from lakefs_gc_assets_tests.lakefs.formats.table_bytes import Entry, TableBytes, framed, integer, text, varint

_INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
_UNSIGNED = st.integers(0, (1 << 63) - 1)


def _one(data: bytes, **properties: bytes | None) -> bytes:
    return TableBytes([(b"path", framed(bytes(32), data))], properties).build()


def _read(data: bytes) -> ranges.RangeEntries:
    found = ranges.read_range(_one(data), "range", columns={"etags"})
    return found


def _check(built: bytes, **arguments: Any) -> str:
    with pytest.raises(CorruptFile) as caught:
        ranges.read_range(built, "range", **arguments)
    return caught.value.check


_ENTRIES = st.fixed_dictionaries(
    {},
    optional={
        "address": st.text().map(str.encode),
        "last_modified": st.fixed_dictionaries({}, optional={"seconds": _INT64, "nanos": st.integers(0, 999_999_999)}),
        "size": _UNSIGNED,
        "e_tag": st.text().map(str.encode),
        "metadata": st.binary(max_size=20),
        "address_type": st.integers(0, 255),
        "content_type": st.binary(max_size=20),
    },
)


@given(st.dictionaries(st.binary(max_size=20), _ENTRIES, max_size=25), st.integers(1, 12))
def test_reads_the_entries_that_protobuf_wrote(stated: dict[bytes, dict[str, Any]], per_block: int) -> None:
    messages: dict[bytes, Any] = {key: Entry(**stated[key]) for key in sorted(stated)}
    records = [(key, framed(bytes(32), message.SerializeToString())) for key, message in messages.items()]
    found = ranges.read_range(
        TableBytes(records, records_per_block=per_block).build(), "range", columns=("keys", "etags", "identities")
    )
    assert found.keys is not None and found.etags is not None and found.identities is not None
    assert found.keys.to_pylist() == list(messages)
    assert [address.encode() for address in found.addresses.to_pylist()] == [m.address for m in messages.values()]
    assert found.address_types.to_pylist() == [message.address_type for message in messages.values()]
    assert found.sizes.to_pylist() == [message.size for message in messages.values()]
    assert found.last_modified.to_pylist() == [message.last_modified.seconds for message in messages.values()]
    assert [etag.encode() for etag in found.etags.to_pylist()] == [message.e_tag for message in messages.values()]
    assert found.identities.to_pylist() == [bytes(32)] * len(messages)


_FIELD = st.one_of(
    st.builds(integer, st.integers(1, 20), st.integers(-2, 300) | _INT64),
    st.builds(text, st.integers(1, 20), st.binary(max_size=12) | st.text(max_size=6)),
    st.builds(lambda seconds: text(2, integer(1, seconds)), _INT64),
    st.builds(lambda number, raw: varint(number << 3 | 1) + raw, st.integers(1, 20), st.binary(min_size=8, max_size=8)),
    st.builds(lambda number, raw: varint(number << 3 | 5) + raw, st.integers(1, 20), st.binary(min_size=4, max_size=4)),
    st.binary(max_size=6),
)


@given(st.lists(_FIELD, max_size=8).map(b"".join))
def test_whatever_it_accepts_protobuf_reads_alike(data: bytes) -> None:
    try:
        found = _read(data)
    except CorruptFile:
        return
    entry: Any = Entry.FromString(data)
    assert found.etags is not None
    assert (found.addresses[0].as_py().encode(), found.address_types[0].as_py()) == (entry.address, entry.address_type)
    assert (found.sizes[0].as_py(), found.last_modified[0].as_py()) == (entry.size, entry.last_modified.seconds)
    assert found.etags[0].as_py().encode() == entry.e_tag


@given(st.lists(_FIELD, max_size=8).map(b"".join))
def test_whatever_protobuf_refuses_it_refuses(data: bytes) -> None:
    try:
        Entry.FromString(data)
    except DecodeError:
        with pytest.raises(CorruptFile):
            _read(data)


def test_unknown_fields_are_passed_over_and_the_last_value_counts() -> None:
    data = text(1, "first") + integer(3, 1) + text(9, "new") + varint(10 << 3 | 1) + bytes(8)
    data += varint(11 << 3 | 5) + bytes(4) + integer(12, -1) + text(1, "last") + integer(3, 2)
    found = _read(data)
    assert (found.addresses.to_pylist(), found.sizes.to_pylist()) == (["last"], [2])


def test_parts_of_a_time_count_as_one() -> None:
    found = _read(text(2, integer(1, 7)) + text(2, integer(2, 5)))
    assert found.last_modified.to_pylist() == [7]


def test_absent_fields_are_zero() -> None:
    found = _read(b"")
    assert (found.addresses.to_pylist(), found.address_types.to_pylist()) == ([""], [0])
    assert (found.sizes.to_pylist(), found.last_modified.to_pylist()) == ([0], [0])


@pytest.mark.parametrize(
    ("data", "check"),
    [
        (text(1, b"\xff"), "address"),
        (text(1, b"\xed\xa0\x80"), "address"),
        (integer(1, 1), "protobuf"),
        (text(2, text(1, "a")), "protobuf"),
        (text(3, "1"), "protobuf"),
        (text(6, "1"), "protobuf"),
        (integer(3, -1), "protobuf"),
        (integer(6, 256), "protobuf"),
        (integer(6, -1), "protobuf"),
        (varint(1 << 3 | 2) + varint(100) + b"short", "protobuf"),
        (varint(1 << 3 | 2) + varint(-1), "protobuf"),
        (varint(8 << 3 | 3) + varint(8 << 3 | 4), "protobuf"),
        (varint(0), "protobuf"),
        (b"\x0a", "protobuf"),
        (b"\xff" * 11, "protobuf"),
        (varint(9 << 3) + b"\xff" * 9 + b"\x02", "protobuf"),
        (text(2, b"\x08"), "protobuf"),
    ],
)
def test_a_malformed_entry_is_an_error(data: bytes, check: str) -> None:
    assert _check(_one(data)) == check


def test_two_halves_of_a_character_in_neighbouring_addresses_are_no_text() -> None:
    whole = "é".encode()
    records = [(bytes((key,)), framed(bytes(32), text(1, whole[key : key + 1]))) for key in range(2)]
    assert _check(TableBytes(records).build()) == "address"


def test_an_etag_that_is_no_text_matters_only_where_it_is_asked_for() -> None:
    built = _one(text(1, "data/a/b") + text(4, b"\xff"))
    assert ranges.read_range(built, "range").addresses.to_pylist() == ["data/a/b"]
    assert _check(built, columns=("etags",)) == "etag"


@pytest.mark.parametrize(
    ("name", "value", "check"),
    [
        ("type", b"metaranges", "type"),
        ("type", b"other", "type"),
        ("type", b"\xff", "type"),
        ("type", None, "type"),
        ("entity", b"commit", "type"),
        ("count", b"2", "count"),
        ("count", b"", "count"),
        ("count", b"-1", "count"),
        ("count", b"9" * 30, "count"),
        ("count", None, "count"),
        ("min_key", b"pat", "min_key"),
        ("min_key", None, "min_key"),
        ("max_key", b"pathh", "max_key"),
        ("max_key", None, "max_key"),
    ],
)
def test_what_lakefs_states_must_agree(name: str, value: bytes | None, check: str) -> None:
    assert _check(_one(b"", **{name: value})) == check


def test_a_range_must_be_as_its_metarange_states_it() -> None:
    built = _one(text(1, "data/a/b"))
    right = {"id": "0" * 64, "min_key": b"path", "max_key": b"path", "count": 1, "estimated_size": 0}
    assert len(ranges.read_range(built, "range", expected=ranges.RangeRecord(**right))) == 1  # type: ignore[arg-type]
    for name, value in {"min_key": b"a", "max_key": b"z", "count": 2}.items():
        wrong = ranges.RangeRecord(**{**right, name: value})  # type: ignore[arg-type]
        assert _check(built, expected=wrong) == "metarange"


def test_a_range_without_entries_has_empty_columns() -> None:
    found = ranges.read_range(TableBytes([]).build(), "range", columns=("keys", "etags", "identities"))
    columns = (found.addresses, found.address_types, found.sizes, found.last_modified, found.keys, found.etags)
    assert [len(column) for column in columns if column is not None] == [0] * 6


_ID = "0123456789abcdef" * 4


def _metarange(records: list[tuple[bytes, bytes]], **properties: bytes | None) -> bytes:
    return TableBytes(records, {"type": b"metaranges", **properties}).build()


def _stated(least: bytes, greatest: bytes, key: bytes | None = None, id_: str = _ID) -> tuple[bytes, bytes]:
    data = text(1, least) + text(2, greatest) + integer(3, 5) + integer(4, 6)
    return greatest if key is None else key, framed(id_.encode(), data)


@given(st.lists(st.binary(min_size=1, max_size=12), min_size=2, max_size=60, unique=True), st.data())
def test_reads_the_ranges_of_a_metarange(keys: list[bytes], data: st.DataObject) -> None:
    keys = sorted(keys)[: len(keys) // 2 * 2]
    count, size = data.draw(_UNSIGNED), data.draw(_UNSIGNED)
    expected = [
        ranges.RangeRecord(f"{number:064x}", least, greatest, count, size)
        for number, (least, greatest) in enumerate(zip(keys[::2], keys[1::2], strict=True))
    ]
    records = [
        (
            record.max_key,
            framed(
                record.id.encode(),
                text(1, record.min_key) + text(2, record.max_key) + integer(3, size) + integer(4, count),
            ),
        )
        for record in expected
    ]
    assert ranges.read_metarange(_metarange(records), "metarange") == expected


@pytest.mark.parametrize(
    ("record", "check"),
    [
        (_stated(b"a", b"b", key=b"c"), "range bounds"),
        (_stated(b"a", b"b", key=b"bb"), "range bounds"),
        (_stated(b"c", b"b"), "range bounds"),
        (_stated(b"bb", b"b"), "range bounds"),
        (_stated(b"a", b"b", id_=_ID[:-1]), "range id"),
        (_stated(b"a", b"b", id_=_ID.upper()), "range id"),
        (_stated(b"a", b"b", id_="../" + _ID[3:]), "range id"),
        ((b"b", framed(_ID.encode(), text(2, b"b") + integer(4, -1))), "protobuf"),
        ((b"b", framed(_ID.encode(), text(2, b"b") + integer(3, -1))), "protobuf"),
        ((b"b", framed(_ID.encode(), integer(2, 1))), "protobuf"),
        ((b"b", framed(_ID.encode(), text(2, b"b") + text(4, b"6"))), "protobuf"),
        ((b"b", framed(_ID.encode(), b"\x0a\x05a")), "protobuf"),
    ],
)
def test_a_malformed_metarange_is_an_error(record: tuple[bytes, bytes], check: str) -> None:
    with pytest.raises(CorruptFile) as caught:
        ranges.read_metarange(_metarange([record]), "metarange")
    assert caught.value.check == check


def test_a_metarange_of_another_kind_is_refused() -> None:
    built = _metarange([_stated(b"a", b"b")], entity=b"commit")
    assert len(ranges.read_metarange(built, "metarange", entity="commit")) == 1
    for entity in (None, "branch"):
        with pytest.raises(CorruptFile, match="type"):
            ranges.read_metarange(built, "metarange", entity=entity)
    with pytest.raises(CorruptFile, match="type"):
        ranges.read_range(built, "metarange")


def test_the_kind_is_known_from_properties_alone() -> None:
    built = bytearray(_metarange([_stated(b"a", b"b")], entity=b"tag"))
    built[0] ^= 1
    assert ranges.table_kind(bytes(built), "metarange") == ranges.Kind("metaranges", "tag", 1)
    with pytest.raises(CorruptFile):
        ranges.table_kind(b"{}", "actions.json")
