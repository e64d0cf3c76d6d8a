"""Reasons why an object is garbage or kept, and outcomes of a sweep.

The reason for garbage follows from the flow, since the flow defines the live commits. No run knows of commits that
lakeFS has forgotten. A run of the flow `unified` does not read the objects of expired commits, so it cannot distinguish
them from objects that were never committed.

Listing and references only show that an object is not referenced. Two measures of its age, its name and, for objects
uploaded in parts, an earlier sighting decide if it may be deleted.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.errors import CollectionError, LakeFSError, ServerUnavailable, StorageError, counted


class Amount(NamedTuple):
    """Number of objects, and the sum of their bytes."""

    objects: int = 0
    bytes: int = 0

    @classmethod
    def total(cls, amounts: Iterable["Amount"]) -> "Amount":
        """Sum of some amounts."""
        return cls(*(sum(values) for values in zip(*amounts, strict=True)))

    def plus(self, objects: int, bytes_: int) -> "Amount":
        """This amount plus some objects and their bytes."""
        return Amount(self.objects + objects, self.bytes + bytes_)

    @property
    def shown(self) -> str:
        """For a person to read."""
        return f"{counted(self.objects, 'objects')}, {size(self.bytes)}"

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(self.objects - other.objects, self.bytes - other.bytes)


_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(count: int) -> str:
    """Bytes for a person to read."""
    amount = float(count)
    for unit in _UNITS:
        if amount < 1024 or unit == _UNITS[-1]:
            return f"{amount:,.0f} {unit}" if unit == "B" else f"{amount:,.1f} {unit}"
        amount /= 1024
    raise AssertionError


MULTIPART_ETAG = r"^[0-9a-f]{32}-[0-9]+$"
"""ETag of an S3 object uploaded in parts. Its LastModified may be the time when the upload began."""

PLAIN_ETAG = r"^[0-9a-f]{32}$"
"""ETag that is the MD5 of the content."""

EMPTY_MD5 = "d41d8cd98f00b204e9800998ecf8427e"
"""MD5 of the content of an object of size 0, regardless of its ETag."""

MULTIPART_SIGHTING_SECONDS = 3600
"""Minimum seconds since an earlier run's sighting of an object uploaded in parts, before it can be a candidate."""


class Why(StrEnum):
    """Reasons why candidates are garbage. Frames hold these texts: one may be added, none changed."""

    NO_COMMIT = "no commit holds it"
    EXPIRED = "only expired commits hold it"
    NO_ACTIVE_COMMIT = "no active commit holds it"
    RESTORED = "brought back, and garbage again"


def add_why(batch: pa.RecordBatch, why: Why, restored: pa.Array) -> pa.RecordBatch:
    """Rows with the column `why`.

    Args:
        why: reason for all rows except restored objects.
        restored: addresses of restored objects.
    """
    back = pc.is_in(batch.column("address"), value_set=restored)
    return batch.append_column("why", pc.if_else(back, Why.RESTORED.value, why.value))


class Kept(StrEnum):
    """Reasons to keep an unreferenced object; the report counts each."""

    YOUNG = "too young by LastModified or by its name"
    UNRECOGNISED = "a name that lakeFS never makes"
    MULTIPART = "uploaded in parts and not yet seen by an earlier run"
    OTHER_WINDOW = "outside of the run's windows"
    NOT_ASKED = "none of the objects that the run is limited to"
    HIDDEN_STAGED = "staged with the content of a committed object"
    UNCERTAIN = "may be staged with the content of a committed object: more to ask than collection.hidden_suspect_limit"
    UNREADABLE = (
        "may be staged with the content of a committed object: its own cannot be read, since it is in an archive tier"
    )
    UNASKABLE = "may be staged with the content of a committed object, at a path that is no text"


class Outcome(StrEnum):
    """Outcome of a candidate. `ACCEPTED` does not yet prove that the object is gone: the next listing does.

    `COPIED`: there is a copy in quarantine. `QUARANTINED`: the object was deleted after that. `RESTORED`: a later
    receipt of the same address and attempt, after one of GONE or `COPIED`. `PURGED`: a later receipt too, after the
    copy was deleted for good.

    `DELETED_BY_ANOTHER_RUN`: another run deleted or moved the object after this one listed it. Only `deleted_report`
    holds it, because the receipt belongs to the other run. `KEPT_ARCHIVED`: the object is in an archive tier, and
    quarantine cannot copy it before it is restored from there.
    """

    DRY_RUN = "dry_run"
    ACCEPTED = "accepted"
    FAILED = "failed"
    KEPT_LIVE = "kept_live"
    KEPT_ARCHIVED = "kept_archived"
    COPIED = "copied"
    QUARANTINED = "quarantined"
    RESTORED = "restored"
    PURGED = "purged"
    DELETED_BY_ANOTHER_RUN = "deleted_by_another_run"


class BaseFate(StrEnum):
    """Result for an object, a file or a branch that was to be restored, moved or deleted."""

    @property
    def is_well(self) -> bool:
        """True if nothing is left to do."""
        return self.name not in ("KEPT", "FAILED", "INCOMPLETE")


class Result(Protocol):
    """The result for one object, file or branch; `why` explains a result other than requested."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def fate(self) -> BaseFate:
        """The kind of result."""
        ...

    @property
    def why(self) -> str | None:
        """The reason, if there is one."""
        ...


SomeResult = TypeVar("SomeResult", bound=Result)
Item = TypeVar("Item")
ItemResult = TypeVar("ItemResult")


def one_by_one(
    items: Iterable[Item], act: Callable[[Item], ItemResult], failed: Callable[[Item, CollectionError], ItemResult]
) -> Iterator[ItemResult]:
    """Yields the result for each item. An error at one item is its result, and the others continue.

    Raises:
        LockLost: nothing more may be changed.
        ServerUnavailable: the server failed at two items in a row: each further item would wait as long.
    """
    was_away = False
    for item in items:
        try:
            result, is_away = act(item), False
        except ServerUnavailable as error:
            if was_away:
                raise
            result, is_away = failed(item, error), True
        except (LakeFSError, StorageError) as error:
            result, is_away = failed(item, error), False
        was_away = is_away
        yield result


def describe_result(name: str, result: Result) -> str:
    """One line about one result."""
    return f"{name}: {result.fate}{f': {result.why}' if result.why else ''}"


class Tally:
    """Counts results while the work goes on.

    Attributes:
        counts: number of results by fate.
        freed: bytes of all results with the usual fate.
        failed: number of results that are not well.
    """

    def __init__(self, usual: BaseFate) -> None:
        """Starts a tally; `usual` is the requested fate."""
        self.usual = usual
        self.counts: Counter[BaseFate] = Counter({usual: 0})
        self.freed = self.failed = 0

    def counted(self, results: Iterable[SomeResult]) -> Iterator[SomeResult]:
        """Counts each result, then yields it."""
        for result in results:
            self.counts[result.fate] += 1
            self.failed += not result.fate.is_well
            if result.fate is self.usual:
                self.freed += getattr(result, "size", 0)
            yield result

    def describe(self, frees: bool) -> str:
        """All counts in a line.

        Args:
            frees: true if the usual fate frees bytes.
        """
        others = (f"{count:,} {fate}" for fate, count in sorted(self.counts.items()) if fate is not self.usual)
        freed = [f"{size(self.freed)} freed"] if frees else []
        return ", ".join((f"{self.counts[self.usual]:,} {self.usual}", *freed, *others))


def count_known(committed: int, candidates: int, kept: Mapping[str, int]) -> int:
    """Number of objects known to a run that lists nothing, each counted once.

    These are held by live commits, or unreferenced and examined. Objects of expired commits cannot be added: live
    commits hold most such objects too.
    """
    return committed + candidates + sum(kept.values())


def share(count: int, whole: int) -> float:
    """Share of a number in a whole; a whole of 0 counts as 1."""
    return count / max(whole, 1)
