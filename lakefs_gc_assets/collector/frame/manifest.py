"""The manifest of a stored frame: which files it consists of, when it was made, and what it must look like.

A frame exists once its manifest does. Files that no manifest names (of failed or repeated tasks) are never read.

The times and attempts of manifests also prove the safe order of the steps. An object that is uploaded, staged or
committed while a collection runs must be seen by a later step at the latest. That holds when the listing ended before
the preparation of uncommitted data began, and that ended before commits were read.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any, Generic

from pydantic import TypeAdapter

from lakefs_gc_assets.collector.frame.frames import FRAMES, STEPS, F, Frame
from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.collector.stored import run_folder
from lakefs_gc_assets.collector.stored.records_json import read_time, require_digest, with_digest
from lakefs_gc_assets.errors import CorruptFile, OrderViolation
from lakefs_gc_assets.storage.interface import ObjectStore, get_if_there


@dataclass(frozen=True, slots=True)
class Span:
    """Time span in which a frame was made, UTC, with its run and attempt.

    Attributes:
        waited_seconds: for how long of that time its step waited because that protects; 0 in manifests from before.
    """

    frame: str
    run_id: str
    attempt: str
    started_at: datetime
    ended_at: datetime
    waited_seconds: float = 0.0

    @property
    def worked_seconds(self) -> float:
        """Seconds that it took, without waits."""
        return max((self.ended_at - self.started_at).total_seconds() - self.waited_seconds, 0.0)


def require_same_attempt(*spans: Span) -> None:
    """Raises OrderViolation where frames belong to different runs or attempts."""
    first = spans[0]
    for other in spans[1:]:
        if (other.run_id, other.attempt) != (first.run_id, first.attempt):
            raise OrderViolation(
                f"{first.frame} is of run {first.run_id}, attempt {first.attempt}, but {other.frame} of run "
                f"{other.run_id}, attempt {other.attempt}. Materialize {other.frame} and what follows it again"
            )


def require_same_source(source: str, marked: str) -> None:
    """Raises OrderViolation where the commits of a recheck come from another source than those of the mark.

    A recheck skips the ranges and metaranges whose ids the mark has read. A listing of metadata files may show a
    metarange and lack a range that was written before it; only another listing is sure to find that range.

    Args:
        source, marked: where commits come from, at the recheck and at the mark.
    """
    if source != marked:
        raise OrderViolation(f"commits come from the {source}, at the mark from the {marked}: open a new run")


def require_safe_order(listing: Span, uncommitted: Span, committed: Span) -> None:
    """Raises OrderViolation unless listing, preparation and reading of commits followed each other in one attempt."""
    require_same_attempt(listing, uncommitted, committed)
    for earlier, later in ((listing, uncommitted), (uncommitted, committed)):
        if not earlier.started_at <= earlier.ended_at <= later.started_at <= later.ended_at:
            raise OrderViolation(
                f"{later.frame} began at {later.started_at:%F %T.%f}Z, before {earlier.frame} was complete at "
                f"{earlier.ended_at:%F %T.%f}Z: something live may have been missed. Materialize {later.frame} and "
                "what follows it again"
            )


FORMAT_VERSION = 2


@dataclass(frozen=True, slots=True)
class FrameFile:
    """One parquet file.

    Attributes:
        object_bytes: sum of the column `size` where the frame has one.
        classes: objects and bytes by storage class, as far as its rows name one.
    """

    key: str
    slice_window: str
    rows: int
    bytes: int
    sha256: str
    object_bytes: int = 0
    classes: Mapping[str, Sequence[int]] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Manifest(Generic[F]):
    """One stored frame.

    Attributes:
        span: when it was made, in which attempt of which run.
        inputs: digest of the manifest of each frame it was made from, by name.
        figures: what the step that made it counted.
        stored_as: the very bytes it was read from; None for one that was not stored yet, or was changed since.
    """

    span: Span
    files: tuple[FrameFile, ...]
    figures: F
    inputs: Mapping[str, str] = field(default_factory=dict)
    stored_as: bytes | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return sum(file.rows for file in self.files)

    @property
    def file_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.bytes for file in self.files)

    @property
    def object_bytes(self) -> int:
        """Bytes of all objects that the rows stand for."""
        return sum(file.object_bytes for file in self.files)

    @property
    def classes(self) -> dict[str, Amount]:
        """Objects and bytes by storage class, as far as the rows name one."""
        sums: dict[str, Amount] = {}
        for file in self.files:
            for name, amount in file.classes.items():
                sums[name] = sums.get(name, Amount()).plus(*amount)
        return sums

    def rows_by_window(self) -> dict[str, int]:
        """Rows of each window that has any."""
        rows: dict[str, int] = {}
        for file in self.files:
            rows[file.slice_window] = rows.get(file.slice_window, 0) + file.rows
        return rows

    @property
    def digest(self) -> str:
        """SHA-256 of the manifest as stored: names this very content of the frame."""
        return hashlib.sha256(self.to_json()).hexdigest()

    def to_json(self) -> bytes:
        """The manifest as it is stored."""
        if self.stored_as is not None:
            return self.stored_as
        content = {
            "format_version": FORMAT_VERSION,
            "span": self.span,
            "files": self.files,
            "inputs": dict(self.inputs),
            "figures": self.figures,
        }
        return with_digest(content)

    @classmethod
    def from_json(cls, data: bytes, key: str, frame: Frame[F]) -> "Manifest[F]":
        """Reads a stored manifest. Raises CorruptFile where it cannot be read, or is that of another frame."""
        try:
            content = json.loads(data)
            if content["format_version"] != FORMAT_VERSION:
                raise CorruptFile(
                    key, "format version", f"{content['format_version']}, this program reads {FORMAT_VERSION}"
                )
            span: dict[str, Any] = content["span"]
            times: dict[str, datetime] = {name: read_time(span[name]) for name in ("started_at", "ended_at")}
            files = tuple(FrameFile(**file) for file in content["files"])
            require_digest(content)
            if span["frame"] != frame.name:
                raise ValueError(f"it is the manifest of {span['frame']}")
            figures = _reader(frame.name).validate_json(json.dumps(content["figures"]), strict=True)
            manifest = cls(Span(**{**span, **times}), files, figures, content["inputs"])
            # No argument of the constructor, so that `dataclasses.replace` does not keep the bytes of what it changes.
            object.__setattr__(manifest, "stored_as", data)
            return manifest
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
            raise CorruptFile(key, "manifest", f"cannot be read: {error}") from None


@cache
def _reader(name: str) -> TypeAdapter[Any]:
    return TypeAdapter(FRAMES[name].figures)


def read_spans(store: ObjectStore, run_id: str, attempt: str) -> tuple[Span, ...]:
    """Time spans of the steps of an attempt that ended, in order; manifests that cannot be read are left out."""
    spans = []
    for step in STEPS:
        with suppress(OrderViolation, CorruptFile):
            spans.append(read(store, run_id, FRAMES[step]).span)
    return tuple(span for span in spans if span.attempt == attempt)


def write(store: ObjectStore, manifest: Manifest[Any]) -> None:
    """Makes a frame exist, in place of one of an earlier attempt."""
    store.put(run_folder.manifest(manifest.span.run_id, manifest.span.frame), manifest.to_json())


def read(store: ObjectStore, run_id: str, frame: Frame[F]) -> Manifest[F]:
    """The stored manifest. Raises OrderViolation where the frame was not made yet, CorruptFile."""
    key = run_folder.manifest(run_id, frame.name)
    data = get_if_there(store, key)
    if data is None:
        raise OrderViolation(f"{frame.name} of run {run_id} does not exist: materialize it first")
    return Manifest.from_json(data, key, frame)
