"""Records and identities, compared with recorded files."""

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.extensions.playground.embedded.commits import record_value
from lakefs_gc_assets.extensions.playground.embedded.formats import Entry, decode_entry, retention_rules, table
from lakefs_gc_assets.lakefs.addresses import AddressType
from lakefs_gc_assets.lakefs.formats.records import DATA_END, DATA_START, IDENTITY_END, IDENTITY_START
from lakefs_gc_assets.lakefs.formats.sstables import fields, read_table
from lakefs_gc_assets_tests.runs.recordings import FIXTURES, needs_recordings

_text = st.text(max_size=30)
_entries = st.builds(
    Entry,
    address=_text,
    address_type=st.sampled_from(AddressType),
    size=st.integers(-(2**63), 2**63 - 1),
    etag=_text,
    last_modified=st.integers(-(2**63), 2**63 - 1),
    content_type=_text,
    metadata=st.dictionaries(_text, _text, max_size=4),
)


@given(_entries)
def test_an_entry_is_decoded_as_it_was(entry: Entry) -> None:
    assert decode_entry(entry.encode()) == entry


@given(_entries, _text, st.integers(0, 2**40))
def test_where_an_object_lies_is_no_part_of_its_identity(entry: Entry, address: str, moment: int) -> None:
    elsewhere = Entry(
        address, AddressType.FULL, entry.size, entry.etag, moment, entry.content_type, metadata=entry.metadata
    )
    assert elsewhere.identity == entry.identity
    assert entry.with_metadata({**entry.metadata, "one more": "x"}).identity != entry.identity


def _recorded_ranges(name: str) -> list[str]:
    lines = (FIXTURES / name / "sstables.jsonl").read_text(encoding="utf-8").splitlines()
    tables = [json.loads(line) for line in lines]
    return [
        found["file"]
        for found in tables
        if found["user_properties"]["type"] == "ranges" and "entity" not in found["user_properties"]
    ]


@needs_recordings
def test_recorded_entries_are_written_byte_for_byte() -> None:
    seen = 0
    for name in ("small", "random-dag/11"):
        for file in _recorded_ranges(name):
            found = read_table((FIXTURES / name / "namespace/_lakefs" / file).read_bytes(), file)
            buffer, values = found.buffer.tobytes(), found.values.tolist()
            for row in values:
                data = buffer[row[DATA_START] : row[DATA_END]]
                entry = decode_entry(data)
                assert entry.identity == buffer[row[IDENTITY_START] : row[IDENTITY_END]]
                (moment,) = (value for number, _, value in fields(data) if number == 2)
                assert isinstance(moment, bytes)
                # Real servers keep nanoseconds for linked or staged objects, and write maps in any order.
                if all(number != 2 for number, _, _ in fields(moment)) and len(entry.metadata) < 2:
                    assert entry.encode() == data
                    seen += 1
    assert seen > 200


@needs_recordings
def test_a_recorded_table_written_again_is_read_the_same() -> None:
    for file in _recorded_ranges("small"):
        found = read_table((FIXTURES / "small/namespace/_lakefs" / file).read_bytes(), file)
        offsets, joined = found.keys()
        keys, buffer = joined.tobytes(), found.buffer.tobytes()
        records = [
            (
                keys[start:end],
                record_value(buffer[row[IDENTITY_START] : row[IDENTITY_END]], buffer[row[DATA_START] : row[DATA_END]]),
            )
            for (start, end), row in zip(pairwise(offsets.tolist()), found.values.tolist(), strict=True)
        ]
        again = read_table(table(records, {"type": "ranges"}), file)
        # The same records are in the same blocks: decompressed, the data blocks equal the real writer's byte for byte.
        assert again.buffer.tobytes() == found.buffer.tobytes()


@needs_recordings
def test_rules_are_written_byte_for_byte() -> None:
    recorded = (FIXTURES / "small/namespace/_lakefs/retention/gc/rules/config.json").read_bytes()
    assert retention_rules(21, {"main": 28, "feature": 7}) == recorded
    assert retention_rules(0, {}) == b""
