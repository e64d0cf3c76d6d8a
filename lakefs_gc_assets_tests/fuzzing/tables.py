"""Ranges, metaranges and the tables of a refs dump: damaged, or rebuilt with false content and correct checksums."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cramjam import snappy

from lakefs_gc_assets.lakefs.api.models import Branch
from lakefs_gc_assets.lakefs.formats import ranges, refs
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets_tests.fuzzing.fuzzer import Case, Target, hostile_text, mutated, outcome
from lakefs_gc_assets_tests.lakefs.formats import commit_rows
from lakefs_gc_assets_tests.lakefs.formats.table_bytes import (
    Entry,
    Record,
    TableBytes,
    framed,
    integer,
    read_records,
    read_varint,
    text,
    varint,
)

_BLOCKS = ("data", "data", "data", "data", "index", "top", "properties", "metaindex")
_PROPERTIES = (
    "count",
    "entity",
    "max_key",
    "min_key",
    "rocksdb.block.based.table.index.type",
    "rocksdb.comparator",
    "rocksdb.deleted.keys",
    "rocksdb.num.data.blocks",
    "rocksdb.num.entries",
    "rocksdb.raw.key.size",
    "rocksdb.raw.value.size",
    "type",
)
_PER_BLOCK = 5


@dataclass(frozen=True)
class Kind:
    """One kind of table.

    Attributes:
        record: makes a random record of this kind; keys increase with the number.
        properties: properties in the table.
        read: the reader under test; returns rows that can be compared.
        slowly: returns the same rows from the records' (key, identity, data), by other means.
    """

    record: Callable[[random.Random, int], Record]
    properties: Mapping[str, bytes]
    read: Callable[[bytes], Any]
    slowly: Callable[[Sequence[tuple[bytes, bytes, bytes]]], Any]

    def case(self, rng: random.Random) -> Case:
        """A table with a change in it."""
        if rng.random() < 0.4:
            return self._damaged(rng)
        data = _lying(rng, self._plain(rng))
        return Case(len(data), lambda: outcome(lambda: self.read(data), lambda found: self._require(data, found)))

    def _plain(self, rng: random.Random) -> TableBytes:
        records = [rng.choice(variants) for variants in self._records[: rng.choice((0, 1, 4, 12))]]
        table = TableBytes(records, self.properties, _PER_BLOCK, rng.choice((1, 4, 16)))
        table.blocks_per_index = rng.choice((None, 2))
        return table

    @cached_property
    def _records(self) -> list[list[Record]]:
        """Some records for each place in a table; made once, since making one takes longer than reading it."""
        rng = random.Random(self.properties.get("entity", b""))
        records = []
        for number in range(12):
            variants = [self.record(rng, number) for _ in range(8)]
            records.append(variants)
        return records

    @cached_property
    def _built(self) -> list[tuple[bytes, Any]]:
        """Some tables with their rows."""
        rng = random.Random(1)
        built = [self._plain(rng).build() for _ in range(50)]
        return [(data, self.read(data)) for data in built]

    def _damaged(self, rng: random.Random) -> Case:
        """Changed bytes of a finished table: checksums cover every byte, so only the original can be read."""
        built, original = rng.choice(self._built)
        data = mutated(rng, built, built) if rng.random() < 0.9 else built

        def same(found: Any) -> None:
            assert data == built, "a changed table was read"
            assert found == original

        return Case(len(data), lambda: outcome(lambda: self.read(data), same))

    def _require(self, data: bytes, found: Any) -> None:
        assert found == self.slowly(read_records(data))


def _lying(rng: random.Random, table: TableBytes) -> bytes:
    """A table with a block changed before it is sealed, or after it was compressed, or with other properties."""
    name, which = rng.choice(_BLOCKS), rng.randrange(3)
    seen = 0

    def change(block: str, content: bytes) -> bytes:
        nonlocal seen
        if block != name:
            return content
        seen += 1
        single = block in ("top", "properties", "metaindex")
        return mutated(rng, content, content) if seen == which + 1 or (single and seen == 1) else content

    match rng.randrange(5):
        case 0:
            stated = rng.choice(_PROPERTIES)
            number = varint(rng.getrandbits(rng.choice((3, 16, 40, 64))))
            value = rng.choice((None, number, b"", hostile_text(rng).encode()))
            table.properties = {**table.properties, stated: value}
        case 1:
            table.stored = change
        case 2:
            table.stored = lambda block, content: _bomb(rng) if block == name else content
        case _:
            table.change = change
    return table.build()


def _bomb(rng: random.Random) -> bytes:
    """Snappy data that claims to be long, or is."""
    if rng.random() < 0.5:
        claim = rng.choice((1 << 20, 1 << 26, 1 << 31, (1 << 32) - 1, 1 << 40))
        return varint(claim) + rng.randbytes(rng.randrange(64))
    return bytes(snappy.compress_raw(bytes(rng.choice((1 << 12, 1 << 16, 1 << 20)))))


def _entry(rng: random.Random, number: int) -> Record:
    data = text(1, hostile_text(rng, "data/slice/object")) + text(2, integer(1, rng.randrange(1 << 33)))
    data += integer(3, rng.randrange(1 << 40)) + text(4, "etag") + text(5, text(1, "a") + text(2, "b"))
    return f"tables/{number:03}".encode(), framed(rng.randbytes(32), data + integer(6, rng.randrange(3)))


def _range_rows(data: bytes) -> Any:
    found = ranges.read_range(data, "table", columns=("keys", "etags", "identities"))
    assert found.keys is not None and found.etags is not None and found.identities is not None
    columns = (
        found.keys,
        found.identities,
        found.addresses,
        found.address_types,
        found.sizes,
        found.last_modified,
        found.etags,
    )
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def _range_rows_slowly(records: Sequence[tuple[bytes, bytes, bytes]]) -> Any:
    rows = []
    for key, identity, data in records:
        entry: Any = Entry.FromString(data)
        rows.append(
            (
                key,
                identity,
                entry.address.decode(),
                entry.address_type,
                entry.size,
                entry.last_modified.seconds,
                entry.e_tag.decode(),
            )
        )
    return rows


def _metarange_record(rng: random.Random, number: int) -> Record:
    greatest = f"tables/{number:03}/z".encode()
    data = text(1, f"tables/{number:03}/a") + text(2, greatest) + integer(3, rng.randrange(1 << 30)) + integer(4, 7)
    return greatest, framed(rng.randbytes(32).hex().encode(), data)


def _metarange_rows_slowly(records: Sequence[tuple[bytes, bytes, bytes]]) -> Any:
    rows = []
    for key, identity, data in records:
        fields = _fields(data)
        least, greatest = _last(fields, 1, b""), _last(fields, 2, b"")
        assert greatest == key and least <= greatest
        rows.append(RangeRecord(identity.decode(), least, key, _last(fields, 4, 0), _last(fields, 3, 0)))
    return rows


def _fields(data: bytes) -> list[tuple[int, Any]]:
    """Numbers and values of a message's fields, by a separate reader without checks."""
    fields: list[tuple[int, Any]] = []
    position = 0
    while position < len(data):
        tag, position = read_varint(data, position)
        match tag & 7:
            case 0:
                value, position = read_varint(data, position)
                fields.append((tag >> 3, value))
            case 2:
                length, position = read_varint(data, position)
                fields.append((tag >> 3, data[position : position + length]))
                position += length
            case wire:
                position += {1: 8, 5: 4}[wire]
    return fields


def _last(fields: list[tuple[int, Any]], number: int, absent: Any) -> Any:
    return next((value for found, value in reversed(fields) if found == number), absent)


def _all(fields: list[tuple[int, Any]], number: int) -> tuple[str, ...]:
    return tuple(value.decode() for found, value in fields if found == number)


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> bits - 1 else value


def _commit(rng: random.Random, number: int) -> Record:
    id_ = f"{number:064x}"
    data = text(1, id_) + text(3, hostile_text(rng)) + text(4, integer(1, rng.randrange(1 << 33)))
    data += text(5, rng.choice(("", rng.randbytes(32).hex())))
    data += b"".join(text(7, rng.randbytes(32).hex()) for _ in range(rng.randrange(4)))
    return id_.encode(), framed(id_.encode(), data + integer(8, 1) + integer(9, rng.randrange(1 << 20)))


def _commits_slowly(records: Sequence[tuple[bytes, bytes, bytes]]) -> Any:
    rows = []
    for key, _, data in records:
        fields = _fields(data)
        moment = _fields(b"".join(value for number, value in fields if number == 4))
        assert _last(fields, 1, b"") == key
        rows.append(
            (
                key.decode(),
                _last(fields, 5, b"").decode(),
                _all(fields, 7),
                _signed(_last(moment, 1, 0), 64),
                _signed(_last(fields, 8, 0), 32),
            )
        )
    return rows


def _commit_rows(data: bytes) -> Any:
    found = commit_rows.read_commits(data, "table")
    return [(each.id, each.metarange_id, each.parents, each.creation_date, _signed(each.version, 32)) for each in found]


def _branch(rng: random.Random, number: int) -> Record:
    name = f"{number:03}{hostile_text(rng, 'branch')}"
    data = text(1, name) + text(2, rng.randbytes(32).hex())
    data += b"".join(text(4, f"sealed {each}") for each in range(rng.randrange(3)))
    return name.encode(), framed(name.encode(), data + integer(5, rng.randrange(2)))


def _branches_slowly(records: Sequence[tuple[bytes, bytes, bytes]]) -> Any:
    rows = []
    for key, _, data in records:
        fields = _fields(data)
        assert _last(fields, 1, b"") == key
        rows.append(refs.BranchRecord(key.decode(), _last(fields, 2, b"").decode()))
    return rows


def _tag(rng: random.Random, number: int) -> Record:
    name = f"{number:03}{hostile_text(rng, 'tag')}"
    return name.encode(), framed(name.encode(), text(1, name) + text(2, rng.randbytes(32).hex()))


def _tags_slowly(records: Sequence[tuple[bytes, bytes, bytes]]) -> Any:
    fields = [(key, _fields(data)) for key, _, data in records]
    assert all(_last(each, 1, b"") == key for key, each in fields)
    return [Branch(key.decode(), _last(each, 2, b"").decode()) for key, each in fields]


RANGE = Kind(_entry, {}, _range_rows, _range_rows_slowly)
METARANGE = Kind(
    _metarange_record,
    {"type": b"metaranges"},
    lambda data: ranges.read_metarange(data, "table"),
    _metarange_rows_slowly,
)
REFS = (
    Kind(_commit, {"entity": b"commit"}, _commit_rows, _commits_slowly),
    Kind(_branch, {"entity": b"branch"}, lambda data: refs.read_branches(data, "table"), _branches_slowly),
    Kind(_tag, {"entity": b"tag"}, lambda data: refs.read_tags(data, "table"), _tags_slowly),
)

TARGETS = (
    Target("range", RANGE.case),
    Target("metarange", METARANGE.case),
    Target("refs", lambda rng: rng.choice(REFS).case(rng)),
)
