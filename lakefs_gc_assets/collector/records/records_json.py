"""Plans and reports as JSON in the store, read only if unchanged.

A file that was changed by accident must end a run and not steer it. Every value has the type that the record declares
(the text "false" would count as true), and the entry `sha256` is the digest of all others. Times are ISO 8601 in UTC
with microseconds.
"""

import hashlib
import json
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.lakefs.layout import SIGNATURE
from lakefs_gc_assets.storage.interface import ObjectStore, get_if_there

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


Kind = TypeVar("Kind", bound="DataclassInstance")
_DIGEST = "sha256"
VERSION_CHECK = "format version"
"""Name of the check in CorruptFile if another version of the program wrote the record."""


def encode(record: "DataclassInstance") -> bytes:
    """A dataclass of plain values, including `format_version`, as JSON.

    Raises ValueError for times without a zone and for numbers that are not finite.
    """
    return with_digest(entries(record))


def entries(record: "DataclassInstance") -> dict[str, Any]:
    """The fields of a dataclass by name. Unlike `asdict`, it copies no nested values."""
    return {name: getattr(record, name) for name in _names(type(record))}


@cache
def _names(kind: "type[DataclassInstance]") -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def with_digest(content: dict[str, Any]) -> bytes:
    """JSON of plain values, times and dataclasses, with the entry `sha256` for all others."""
    plain = json.loads(json.dumps(content, default=_plain))
    return json.dumps(plain | {_DIGEST: _digest(plain)}, indent=2, sort_keys=True).encode()


def require_digest(content: dict[str, Any]) -> None:
    """Raises ValueError if the digest in a JSON object does not match its other entries, or if it is still signed."""
    _require_no_signature(content)
    if content.get(_DIGEST) != _digest(content):
        raise ValueError(f"it was changed after it was written: {_DIGEST} is not the digest of its other entries")


def _require_no_signature(content: dict[str, Any]) -> None:
    if SIGNATURE in content:
        raise ValueError("it is signed, but no key is set: set store.signing_key to the key with which it was written")


def _digest(content: dict[str, Any]) -> str:
    others = {name: value for name, value in content.items() if name != _DIGEST}
    return hashlib.sha256(json.dumps(others, sort_keys=True, allow_nan=False).encode()).hexdigest()


def read(store: ObjectStore, kind: type[Kind], key: str, run_id: str | None = None) -> Kind | None:
    """The record of a file; None if there is none.

    Args:
        run_id: the run that the record must belong to; None for a record without a run.
    Raises:
        CorruptFile: as in `decode`, or the record belongs to another run.
    """
    data = get_if_there(store, key)
    if data is None:
        return None
    record = decode(kind, data, key)
    if run_id is not None and (stated := entries(record)["run_id"]) != run_id:
        what = kind.__name__.lower()
        raise CorruptFile(key, what, f"it is the {what} of run {stated}")
    return record


def decode(kind: type[Kind], data: bytes, file: str) -> Kind:
    """Decodes the output of `encode`. Raises CorruptFile if an entry is missing, unknown, of another type, or changed.

    Args:
        kind: the default of its field `format_version` is the version that is read. `ADDED`, if set, names entries with
            a default, which files of earlier versions lack.
    """
    what, format_version = kind.__name__.lower(), kind.__dataclass_fields__["format_version"].default
    try:
        content = json.loads(data)
        if not isinstance(content, dict):
            raise ValueError("it is not a JSON object")
        stated = content.get("format_version")
        if stated != format_version:
            raise CorruptFile(file, VERSION_CHECK, f"{stated}, this program reads {format_version}")
        _require_no_signature(content)
        lacking = {name for name in getattr(kind, "ADDED", ()) if name not in content}
        if differing := content.keys() ^ ({_DIGEST, *_names(kind)} - lacking):
            raise ValueError(f"entries are missing or unknown: {', '.join(sorted(differing))}")
        record = _reader(kind).validate_json(data, strict=True)
        require_digest(content)
        times = {name: value for name in content if isinstance(value := getattr(record, name, None), datetime)}
        in_utc: Kind = replace(record, **{name: _in_utc(moment) for name, moment in times.items()})
        return in_utc
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise CorruptFile(file, what, f"cannot be read: {'; '.join(problems)}") from None
    except (ValueError, RecursionError, OverflowError) as error:
        raise CorruptFile(file, what, f"cannot be read: {error}") from None


@cache
def _reader(kind: type[Kind]) -> TypeAdapter[Kind]:
    return TypeAdapter(kind)


def _plain(value: object) -> str | dict[str, Any]:
    if isinstance(value, datetime):
        return write_time(value)
    if is_dataclass(value) and not isinstance(value, type):
        return entries(value)
    raise TypeError(f"cannot be written: {type(value).__name__}")


def _in_utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError(f"time without a zone: {moment}")
    return moment.astimezone(UTC)


def write_time(moment: datetime) -> str:
    """ISO 8601 in UTC with microseconds. Raises ValueError for a time without a zone."""
    return _in_utc(moment).isoformat(timespec="microseconds")


def read_time(text: str) -> datetime:
    """Reads a time in ISO 8601, as UTC. Raises ValueError for a time without a zone."""
    return _in_utc(datetime.fromisoformat(text))
