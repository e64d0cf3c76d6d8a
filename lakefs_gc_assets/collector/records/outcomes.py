"""Reasons why an object is garbage or kept, and outcomes of a sweep.

What is live decides why an object is garbage, and so the flow does: a run that keeps whatever any commit holds finds
what no commit holds. Whether some commit held it that lakeFS has forgotten since, nobody knows. A run of the flow
`unified` does not read what only expired commits hold, so it cannot tell that from what was never committed.

Listing and references only say that an object is not referenced. Whether it may go depends on its age by two measures,
on its name and, for objects uploaded in parts, on having been seen before.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc


class Amount(NamedTuple):
    """Objects, and their bytes together."""

    objects: int = 0
    bytes: int = 0

    @classmethod
    def total(cls, amounts: Iterable["Amount"]) -> "Amount":
        """All of some amounts together."""
        return cls(*(sum(values) for values in zip(*amounts, strict=True)))

    def plus(self, objects: int, bytes_: int) -> "Amount":
        """This amount and more objects, with their bytes."""
        return Amount(self.objects + objects, self.bytes + bytes_)

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(self.objects - other.objects, self.bytes - other.bytes)


_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(count: int) -> str:
    """Bytes as a person reads them."""
    amount = float(count)
    for unit in _UNITS:
        if amount < 1024 or unit == _UNITS[-1]:
            return f"{amount:,.0f} {unit}" if unit == "B" else f"{amount:,.1f} {unit}"
        amount /= 1024
    raise AssertionError


MULTIPART_ETAG = r"^[0-9a-f]{32}-[0-9]+$"
"""ETag of an S3 object uploaded in parts: its LastModified may be the moment the upload began."""

PLAIN_ETAG = r"^[0-9a-f]{32}$"
"""ETag that is the MD5 of the content."""

EMPTY_MD5 = "d41d8cd98f00b204e9800998ecf8427e"
"""MD5 of the content of an object of size 0, whatever its ETag says."""

MULTIPART_SIGHTING_SECONDS = 3600
"""An object uploaded in parts must have been listed this long ago by an earlier run."""


class Why(StrEnum):
    """Reasons for which candidates are garbage. Frames hold these texts: one may be added, none changed."""

    NO_COMMIT = "no commit holds it"
    EXPIRED = "only expired commits hold it"
    NO_ACTIVE_COMMIT = "no active commit holds it"
    RESTORED = "brought back, and garbage again"


def add_why(batch: pa.RecordBatch, why: Why, restored: pa.Array) -> pa.RecordBatch:
    """Rows with the column `why`.

    Args:
        why: of all but those that were brought back.
        restored: addresses that were brought back.
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
    """Outcome of a candidate. `ACCEPTED` is not yet proof that the object is gone: the next listing is.

    `COPIED` says that there is a copy in quarantine, `QUARANTINED` that the object was deleted after that. `RESTORED`
    is a later receipt of the same address and attempt, after one of GONE or `COPIED`. `PURGED` is a later receipt too:
    the copy was deleted, for good. `DELETED_BY_ANOTHER_RUN` says that another run deleted or moved the object since
    this one listed it. It stands in `deleted_report` alone: the receipt is the other run's. `KEPT_ARCHIVED` says that
    the object is in an archive tier, and quarantine cannot copy it before it is brought back.
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
        """True if nothing is left to be done."""
        return self.name not in ("KEPT", "FAILED", "INCOMPLETE")


class Result(Protocol):
    """The result for one object, file or branch; `why` says what is not as asked for, if anything is."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def fate(self) -> BaseFate:
        """The kind of result."""
        ...

    @property
    def why(self) -> str | None:
        """The reason, if there is anything to say."""
        ...


SomeResult = TypeVar("SomeResult", bound=Result)


def describe_result(name: str, result: Result) -> str:
    """A line about one result."""
    return f"{name}: {result.fate}{f': {result.why}' if result.why else ''}"


class Tally:
    """Counts results while the work goes on.

    Attributes:
        counts: number of results by fate.
        freed: bytes of all results with the usual fate.
        failed: number of results that are not well.
    """

    def __init__(self, usual: BaseFate) -> None:
        """For work that asks for this fate."""
        self.usual = usual
        self.counts: Counter[BaseFate] = Counter({usual: 0})
        self.freed = self.failed = 0

    def counted(self, results: Iterable[SomeResult]) -> Iterator[SomeResult]:
        """Yields results, and counts each before."""
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
    """Objects that a run knows which lists nothing, each once: held by live commits, or unreferenced and looked at.

    What it reads of expired commits is no number to add: live commits hold most of that, too.
    """
    return committed + candidates + sum(kept.values())


def share(count: int, whole: int) -> float:
    """The part that a number is of a whole; nothing as a whole counts as one."""
    return count / max(whole, 1)
