"""Records of any kind; plans, reports and manifests have their own tests."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from lakefs_gc_assets.collector.records import records_json
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.lakefs.layout import SIGNATURE


@dataclass(frozen=True)
class Inner:
    share: float


@dataclass(frozen=True)
class Record:
    name: str
    inner: Inner
    format_version: int = 1


RECORD = Record("name", Inner(0.5))
SIGNED = json.dumps({**json.loads(records_json.encode(RECORD)), SIGNATURE: "of a key"}).encode()


def read(data: bytes) -> Record:
    return records_json.decode(Record, data, "folder/file.json")


def test_is_read_as_it_was_written_and_people_can_read_it_too() -> None:
    data = records_json.encode(RECORD)
    assert read(data) == RECORD
    content = json.loads(data)
    assert data == json.dumps(content, indent=2, sort_keys=True).encode()
    assert content.keys() == {"format_version", "inner", "name", "sha256"}


@pytest.mark.parametrize(
    ("data", "check", "why"),
    [
        (b"[]", "record", "it is not a JSON object"),
        (b"{", "record", "cannot be read: Expecting property name"),
        (records_json.encode(Record("name", Inner(0.5), 2)), records_json.VERSION_CHECK, "2, this program reads 1"),
        (
            records_json.with_digest({"name": 7, "inner": {"share": 1.0}, "format_version": 1}),
            "record",
            "name: Input should",
        ),
        (records_json.with_digest({"name": "n", "format_version": 1}), "record", "missing or unknown: inner"),
        (records_json.encode(RECORD).replace(b'"name"', b'"eman"'), "record", "missing or unknown: eman, name"),
        (records_json.encode(RECORD).replace(b"0.5", b"0.6"), "record", "it was changed after it was written"),
        (SIGNED, "record", "it is signed, but no key is set: set store.signing_key"),
    ],
)
def test_what_is_wrong_is_reported_with_the_file(data: bytes, check: str, why: str) -> None:
    with pytest.raises(CorruptFile) as caught:
        read(data)
    assert (caught.value.file, caught.value.check) == ("folder/file.json", check)
    assert why in caught.value.detail


def test_a_signed_file_says_that_it_lacks_its_key_where_its_digest_is_read_alone() -> None:
    with pytest.raises(ValueError, match=r"set store\.signing_key"):
        records_json.require_digest(json.loads(SIGNED))


@pytest.mark.parametrize("share", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_not_written(share: float) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        records_json.encode(Record("name", Inner(share)))


@pytest.mark.parametrize(("value", "named"), [(b"bytes", "bytes"), (Inner, "type"), ({"a"}, "set")])
def test_other_values_are_not_written(value: Any, named: str) -> None:
    with pytest.raises(TypeError, match=f"cannot be written: {named}"):
        records_json.with_digest({"value": value})
