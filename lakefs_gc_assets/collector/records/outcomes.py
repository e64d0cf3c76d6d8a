"""Reasons why an object is garbage or kept, outcomes of a sweep, and the figures of a run, which count them.

What is live decides why an object is garbage, and so the flow does: a run that keeps whatever any commit holds finds
what no commit holds. Whether some commit held it that lakeFS has forgotten since, nobody knows. A run of the flow
`unified` does not read what only expired commits hold, so it cannot tell that from what was never committed.

Listing and references only say that an object is not referenced. Whether it may go depends on its age by two measures,
on its name and, for objects uploaded in parts, on having been seen before.

Each figure is declared once: its unit by its type, its definition under Attributes of its class. A figure that a run
does not know is None and shown nowhere; 0 says that there is none. The reference page of figures is made from these
declarations.
"""

import ast
import inspect
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol, TypeVar, cast, get_type_hints

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


ADDRESSES, BYTES, OBJECTS, SECONDS = "addresses", "bytes", "objects", "seconds"
Addresses = Annotated[int | None, ADDRESSES]
Branches = Annotated[int | None, "branches"]
Bytes = Annotated[int | None, BYTES]
Commits = Annotated[int | None, "commits"]
Objects = Annotated[int | None, OBJECTS]
Ranges = Annotated[int | None, "ranges"]
Seconds = Annotated[float | None, SECONDS]
Slices = Annotated[int | None, "slices"]

_ATTRIBUTE = re.compile(r"^    (\w+(?:, \w+)*): (.+(?:\n     +.+)*)", re.MULTILINE)
_BYTES = "_bytes"
_DERIVED = ("live", "kept", "seconds", "seconds_waited")


class Figure(NamedTuple):
    """A figure of a class: its unit and its definition."""

    unit: str
    meaning: str


def meanings(kind: type[Any]) -> Mapping[str, str]:
    """Definitions of the fields of a class, as its docstring gives them under Attributes.

    A Python that strips docstrings (-OO, PYTHONOPTIMIZE=2) leaves them in the source.
    """
    text = inspect.getdoc(kind)
    if sys.flags.optimize >= 2:
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        text = ast.get_docstring(cast("ast.ClassDef", definition))
    stated = _ATTRIBUTE.findall((text or "").partition("Attributes:")[2])
    return {name: " ".join(words.split()) for names, words in stated for name in names.split(", ")}


def declarations(kind: type[Any]) -> Mapping[str, Figure]:
    """The figures among the fields of a class: those whose type has a unit."""
    meaning, hints = meanings(kind), get_type_hints(kind, include_extras=True)
    units = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    return {name: Figure(unit[0], meaning[name]) for name, unit in units.items() if unit}


@dataclass(frozen=True, slots=True)
class RunStatistics:
    """Figures of one run. Those that it does not know are None, in a failed run all but its duration.

    Attributes:
        stored: objects in the store, listed by this run or known from the run that it builds on; unknown to runs of the
            flow `committed`, which list nothing, and to runs that were limited to some windows.
        listed, listed_bytes: what the run looked at: listed by it, waiting since the run that it builds on, or expired
            since.
        slices_listed: slices that were listed.
        slices_skipped: slices that were too young to be listed.
        slices_elsewhere: slices that were not listed because they are of other windows than the run was about.
        uncommitted: distinct addresses that are staged or tracked as copied.
        committed: distinct addresses that live commits hold; unknown to a run that builds on another one, which reads
            only what that one did not.
        commits: live commits.
        branches: branches whose head holds an object.
        missing: addresses that branch heads or staging hold in the listed slices, and that the listing lacks.
        lost: addresses that a branch head or staging holds although an earlier run deleted the object.
        named_again: addresses that had expired by rule when an earlier run deleted them, and are referenced again.
        ranges_read: ranges of live commits that the run read.
        ranges_noted: live ranges that it did not read, since an earlier run recorded facts about them.
        unnamed_ranges: ranges that were read although no commit names them: what they hold is kept.
        compacted_bases: compacted bases of staging on which branches rest.
        provisional_ranges: ranges of compacted staging, or young and named by nothing: what they hold is kept for now.
        expired_objects: objects that the run looked at since they expired after the run that it builds on.
        live: objects that the run looked at and that something references: neither kept nor garbage.
        kept: unreferenced objects that stay; `kept` of the report counts them by reason.
        unreadable: unreferenced objects in an archive tier whose content could not be compared with that of committed
            ones; `kept` of the report counts those that stay for it.
        candidates, candidates_bytes: garbage, which nothing references and which is old enough to go.
        late_arrivals: garbage that came into a slice after an earlier run had sealed it.
        deleted, deleted_bytes: garbage that the run deleted, so that its bytes are free; none of it is in quarantine.
        quarantined, quarantined_bytes: garbage that the run moved to quarantine: a purge frees its bytes.
        failed: garbage that the run could not delete.
        undeletable: garbage that neither this run nor earlier ones could delete.
        kept_live: candidates that were live at the recheck right before the deletion, and stay.
        kept_archived, kept_archived_bytes: candidates in an archive tier, which quarantine cannot copy, and which stay.
        deleted_by_another_run: candidates that another run deleted after this one had listed them.
        seconds: time in the steps of the run, waits included. Time between steps does not count, such as that until a
            person approves a sweep.
        seconds_waited: time in the steps that was spent on waits that protect.
    """

    stored: Objects = None
    listed: Objects = None
    listed_bytes: Bytes = None
    slices_listed: Slices = None
    slices_skipped: Slices = None
    slices_elsewhere: Slices = None
    uncommitted: Addresses = None
    committed: Addresses = None
    commits: Commits = None
    branches: Branches = None
    missing: Addresses = None
    lost: Addresses = None
    named_again: Addresses = None
    ranges_read: Ranges = None
    ranges_noted: Ranges = None
    unnamed_ranges: Ranges = None
    compacted_bases: Annotated[int | None, "bases"] = None
    provisional_ranges: Ranges = None
    expired_objects: Objects = None
    live: Objects = None
    kept: Objects = None
    unreadable: Objects = None
    candidates: Objects = None
    candidates_bytes: Bytes = None
    late_arrivals: Objects = None
    deleted: Objects = None
    deleted_bytes: Bytes = None
    quarantined: Objects = None
    quarantined_bytes: Bytes = None
    failed: Objects = None
    undeletable: Objects = None
    kept_live: Objects = None
    kept_archived: Objects = None
    kept_archived_bytes: Bytes = None
    deleted_by_another_run: Objects = None
    seconds: Seconds = None
    seconds_waited: Seconds = None

    @classmethod
    def from_stored(cls, counts: Mapping[str, int], object_bytes: Mapping[str, int], **derived: Any) -> "RunStatistics":
        """The figures of a report, which may lack some, and those that are derived from it."""
        stored = {**counts, **{f"{name}{_BYTES}": amount for name, amount in object_bytes.items()}}
        return cls(**{name: stored.get(name) for name in _FIGURES} | derived)

    def known(self) -> Iterator[tuple[str, str, float]]:
        """Yields the figures that the run knows: name, unit and value."""
        for name, figure in _FIGURES.items():
            if (value := getattr(self, name)) is not None:
                yield name, figure.unit, value

    @property
    def counts(self) -> dict[str, int]:
        """Figures that a report stores as `counts`."""
        return {name: int(value) for name, unit, value in self.known() if name not in _DERIVED and unit != BYTES}

    @property
    def object_bytes(self) -> dict[str, int]:
        """Figures that a report stores as `object_bytes`."""
        return {name.removesuffix(_BYTES): int(value) for name, unit, value in self.known() if unit == BYTES}


_FIGURES = declarations(RunStatistics)
