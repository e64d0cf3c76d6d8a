import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.lakefs.api.models import Branch
from lakefs_gc_assets.lakefs.formats import ranges, refs
from lakefs_gc_assets_tests.lakefs.formats.table_bytes import TableBytes, framed, integer, text, varint

_IDS = st.text("0123456789abcdef", min_size=64, max_size=64)
_NAMES = st.text(min_size=1, max_size=12)


def _table(entity: str, messages: dict[str, bytes], **properties: bytes) -> bytes:
    records = sorted((id_.encode(), framed(id_.encode(), message)) for id_, message in messages.items())
    return TableBytes(records, {"entity": entity.encode(), **properties}).build()


_BRANCHES = st.builds(
    refs.BranchRecord,
    id=_NAMES,
    commit_id=_IDS,
)


@given(st.lists(_BRANCHES, max_size=20, unique_by=lambda branch: branch.id))
def test_reads_branches_and_passes_over_tokens_and_flags(branches: list[refs.BranchRecord]) -> None:
    messages = {
        branch.id: text(1, branch.id)
        + text(2, branch.commit_id)
        + text(3, "staging")
        + text(4, "sealed")
        + integer(5, 1)
        for branch in branches
    }
    found = refs.read_branches(_table("branch", messages), "branches")
    assert found == sorted(branches, key=lambda branch: branch.id.encode())


@given(st.dictionaries(_NAMES, _IDS, max_size=20))
def test_reads_tags(tags: dict[str, str]) -> None:
    messages = {name: text(1, name) + text(2, commit) for name, commit in tags.items()}
    found = refs.read_tags(_table("tag", messages), "tags")
    assert found == [Branch(name, tags[name]) for name in sorted(tags, key=str.encode)]


def test_absent_fields_are_zero_and_unknown_ones_passed_over() -> None:
    unknown = varint(20 << 3 | 1) + bytes(8) + varint(21 << 3 | 5) + bytes(4) + integer(22, 1) + text(23, b"\xff")
    found = refs.read_branches(_table("branch", {"main": text(1, "main") + unknown}), "branches")
    assert found == [refs.BranchRecord("main", "")]


def schema_of(*names: str) -> bytes:
    """A table's schema of its message fields, numbered from 1."""
    fields = [{"name": name, "number": number} for number, name in enumerate(names, 1)]
    return json.dumps({"name": "BranchData", "field": fields}).encode()


_KNOWN = ("id", "commit_id", "staging_token", "sealed_tokens")
_BASE = "compacted_base_meta_range_id"


@pytest.mark.parametrize("names", [(*_KNOWN, "hidden", _BASE), (*_KNOWN, _BASE, "hidden"), (*_KNOWN, "x", "y", _BASE)])
def test_the_compacted_base_is_found_by_what_the_table_says_of_its_fields(names: tuple[str, ...]) -> None:
    base, commit = "b" * 64, "c" * 64
    others = {name: text(number, commit) for number, name in enumerate(names, 1) if name in ("x", "y")}
    message = text(1, "main") + text(names.index(_BASE) + 1, base) + b"".join(others.values())
    if "hidden" in names:
        message += integer(names.index("hidden") + 1, 1)
    table = _table("branch", {"main": message}, schema_definition=schema_of(*names))
    (found,) = refs.read_branches(table, "branches")
    assert found.compacted_bases == (base,)


def test_a_table_that_does_not_state_its_fields_may_name_a_metarange_in_any_it_has_more() -> None:
    message = text(1, "main") + text(2, "c" * 64) + text(9, "b" * 64) + text(10, "b" * 63) + text(11, b"\xff" * 64)
    (found,) = refs.read_branches(_table("branch", {"main": message}), "branches")
    assert found.compacted_bases == ("b" * 64,)


@pytest.mark.parametrize("schema", [b"{", b"[]", b'{"field": [{"name": "id"}]}', b"\xff"])
def test_a_statement_of_fields_that_cannot_be_read_is_an_error(schema: bytes) -> None:
    with pytest.raises(CorruptFile, match="schema_definition"):
        refs.read_branches(_table("branch", {"main": text(1, "main")}, schema_definition=schema), "branches")


def test_a_compacted_base_that_is_no_metarange_is_an_error() -> None:
    table = _table("branch", {"main": text(1, "main") + text(5, "x")}, schema_definition=schema_of(*_KNOWN, _BASE))
    with pytest.raises(CorruptFile, match="no id of a metarange"):
        refs.read_branches(table, "branches")


_READERS: dict[str, Any] = {"branch": refs.read_branches, "tag": refs.read_tags}


@pytest.mark.parametrize("entity", _READERS)
@pytest.mark.parametrize(
    "message",
    [
        text(1, "other"),
        b"",
        text(1, "name") + integer(2, 1) + integer(7, 1),
        text(1, "name") + text(2, b"\xff") + text(7, b"\xff"),
        text(1, "name") + b"\x12\x20short",
        text(1, "name") + varint(9 << 3 | 3),
        text(1, "name") + b"\x80",
        text(1, "name") + b"\x00",
    ],
)
def test_a_malformed_record_is_an_error(entity: str, message: bytes) -> None:
    with pytest.raises(CorruptFile) as caught:
        _READERS[entity](_table(entity, {"name": message}), "table")
    assert (caught.value.file, caught.value.check) == ("table", entity)


@pytest.mark.parametrize("entity", _READERS)
def test_a_table_of_another_entity_is_refused(entity: str) -> None:
    for other in ("commit", "branch", "tag"):
        if other != entity:
            with pytest.raises(CorruptFile, match="type"):
                _READERS[entity](_table(other, {"name": text(1, "name")}), "table")


@pytest.mark.parametrize("entity", _READERS)
def test_a_table_must_be_as_its_metarange_states_it(entity: str) -> None:
    data = _table(entity, {"name": text(1, "name")})
    right = ranges.RangeRecord("0" * 64, b"name", b"name", 1, 0)
    assert len(_READERS[entity](data, "table", expected=right)) == 1
    wrong = ranges.RangeRecord("0" * 64, b"name", b"name", 2, 0)
    with pytest.raises(CorruptFile, match="metarange"):
        _READERS[entity](data, "table", expected=wrong)
