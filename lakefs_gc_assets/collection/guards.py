"""Guards: figures that look like a mistake rather than like garbage.

A guard of amount stops the sweep and leaves the mark: a dry run ends well and shows it as a warning. A guard on the
live set stops the run.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from lakefs_gc_assets.configuration import CollectionSettings
from lakefs_gc_assets.errors import GuardTripped


@dataclass(frozen=True, slots=True)
class Mark:
    """What marking found. Sizes in bytes.

    Attributes:
        listed: objects that the run looked at.
        stored: objects of the repository, those that an optimized run knows of without looking included.
        committed, uncommitted: distinct live addresses.
        entries_promised: entries that the metaranges of live commits say there are; None where none was read.
        kept: unreferenced objects that are kept, by reason.
    """

    listed: int
    stored: int
    listed_bytes: int
    uncommitted: int
    committed: int
    entries_promised: int | None
    candidates: int
    candidate_bytes: int
    kept: dict[str, int]
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)


def require_live_set(mark: Mark) -> None:
    """Raises GuardTripped where commits promise entries, there are candidates, and nothing was found to be live."""
    if mark.candidates and mark.entries_promised and not mark.committed:
        raise GuardTripped(
            "empty live set",
            f"no committed address was found although live commits count {mark.entries_promised:,} entries, and "
            f"{mark.candidates:,} objects would go",
            "No setting lifts it: check that lakeFS server and object store belong together",
        )


def tripped(mark: Mark, settings: CollectionSettings) -> tuple[GuardTripped, ...]:
    """The guards of amount that the figures trip, for a sweep to refuse and a dry run to warn of."""
    return tuple(_tripped(mark, settings))


def _tripped(mark: Mark, settings: CollectionSettings) -> Iterable[GuardTripped]:
    share = mark.candidates / max(mark.stored, 1)
    if share > settings.max_candidate_share:
        yield GuardTripped(
            "share of candidates",
            f"{mark.candidates:,} of {mark.stored:,} stored objects would go, {share:.1%}, more than "
            f"{settings.max_candidate_share:.1%}",
            "Look at the candidates; if they are right, raise collection.max_candidate_share",
        )
    if mark.candidates > settings.max_candidates:
        yield GuardTripped(
            "number of candidates",
            f"{mark.candidates:,} objects would go, more than {settings.max_candidates:,}",
            "Look at the candidates; if they are right, raise collection.max_candidates",
        )
