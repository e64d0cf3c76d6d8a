"""Plans and reports as JSON in the store, read back only where every value has the type that the record declares.

What was changed by accident must end a run and not steer it: the text "false" would count as true. Times are ISO 8601
in UTC with microseconds.
"""

import json
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from pydantic import TypeAdapter, ValidationError

from lakefs_gc_assets.errors import CorruptFile

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Kind = TypeVar("Kind", bound="DataclassInstance")


def encode(record: "DataclassInstance") -> bytes:
    """A dataclass of plain values, `format_version` among them, as JSON. Raises ValueError for times without a zone."""
    return json.dumps(asdict(record), default=_plain, indent=2, sort_keys=True).encode()


def decode(kind: type[Kind], format_version: int, data: bytes, file: str) -> Kind:
    """The reverse. Raises CorruptFile where an entry is missing, unknown or of another type."""
    what = kind.__name__.lower()
    try:
        content = json.loads(data)
        if not isinstance(content, dict):
            raise ValueError("it is no JSON object")
        stated = content.get("format_version")
        if stated != format_version:
            raise CorruptFile(file, "format version", f"{stated}, this program reads {format_version}")
        if differing := content.keys() ^ {field.name for field in fields(kind)}:
            raise ValueError(f"entries are missing or unknown: {', '.join(sorted(differing))}")
        record = _reader(kind).validate_json(data, strict=True)
        times = {name: value for name in content if isinstance(value := getattr(record, name), datetime)}
        in_utc: Kind = replace(record, **{name: _in_utc(moment) for name, moment in times.items()})
        return in_utc
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise CorruptFile(file, what, f"cannot be read: {'; '.join(problems)}") from None
    except ValueError as error:
        raise CorruptFile(file, what, f"cannot be read: {error}") from None


@cache
def _reader(kind: type[Kind]) -> TypeAdapter[Kind]:
    return TypeAdapter(kind)


def _plain(value: object) -> str:
    if isinstance(value, datetime):
        return write_time(value)
    raise TypeError(f"cannot be written: {type(value).__name__}")


def _in_utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError(f"time without a zone: {moment}")
    return moment.astimezone(UTC)


def write_time(moment: datetime) -> str:
    """ISO 8601 in UTC with microseconds. Raises ValueError for a time without a zone."""
    return _in_utc(moment).isoformat(timespec="microseconds")


def read_time(text: str) -> datetime:
    """The reverse; raises ValueError for a time without a zone."""
    return _in_utc(datetime.fromisoformat(text))
