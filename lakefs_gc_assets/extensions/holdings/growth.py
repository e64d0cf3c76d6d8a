"""Changes between two holdings: states, holders, branches that came or went, and commits that brought objects."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from lakefs_gc_assets.collector.records.outcomes import size
from lakefs_gc_assets.errors import counted
from lakefs_gc_assets.extensions.holdings.holdings_files import Dimension, Holdings, HoldingState, Sharing
from lakefs_gc_assets.extensions.holdings.known_heads import BringingCommit


@dataclass(frozen=True, slots=True)
class HolderChange:
    """Change of the objects of a holder. Figures are differences.

    Attributes:
        bytes: None if one of the sizes is unknown.
        alone_bytes: part of `bytes` that no other branch holds; None in dimensions without such a part.
        came, went: True if the holder has objects in only the later, or only the earlier holdings.
    """

    dimension: str
    key: str
    objects: int
    bytes: int | None
    alone_bytes: int | None = None
    came: bool = False
    went: bool = False


@dataclass(frozen=True, slots=True)
class CommitGrowth:
    """Objects that a commit brought between two holdings, and that heads still have.

    Attributes:
        commit: None if nothing more than its id is known.
    """

    commit_id: str
    commit: BringingCommit | None
    objects: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Growth:
    """Changes from one holdings to another.

    Attributes:
        changes: holders whose figures differ, in all dimensions but commits; largest change of bytes first.
        commits: commits with the most bytes first.
    """

    before: Holdings
    after: Holdings
    changes: tuple[HolderChange, ...]
    commits: tuple[CommitGrowth, ...]

    def of(self, dimension: str) -> list[HolderChange]:
        """The changes in a dimension."""
        return [change for change in self.changes if change.dimension == dimension]


_Sums = dict[tuple[str, str], list[int | None]]
"""Objects, bytes and bytes held alone, by dimension and key."""


def compare(before: Holdings, after: Holdings, commits: Iterable[BringingCommit] = ()) -> Growth:
    """Compares two holdings of a repository.

    Args:
        commits: facts about commits.
    """
    earlier, later = _add_up(before), _add_up(after)
    by_id = {commit.id: commit for commit in commits}
    changes: list[HolderChange] = []
    of_commits: list[CommitGrowth] = []
    for dimension, key in earlier.keys() | later.keys():
        old, new = (sums.get((dimension, key)) for sums in (earlier, later))
        objects, bytes_, alone = (_subtract(b, a) for a, b in zip(old or [0, 0, 0], new or [0, 0, 0], strict=True))
        if dimension == Dimension.COMMIT:
            if objects and objects > 0:
                of_commits.append(CommitGrowth(key, by_id.get(key), objects, bytes_ or 0))
        elif objects or bytes_:
            has_alone = dimension in (Dimension.BRANCH, Dimension.PATH)
            changes.append(
                HolderChange(dimension, key, objects or 0, bytes_, alone if has_alone else None, not old, not new)
            )
    changes.sort(key=lambda each: (-abs(each.bytes or 0), each.dimension, each.key))
    of_commits.sort(key=lambda each: (-each.bytes, each.commit_id))
    return Growth(before, after, tuple(changes), tuple(of_commits))


def _add_up(holdings: Holdings) -> _Sums:
    sums: _Sums = {}
    for row in holdings.rows:
        total = sums.setdefault((row.dimension, row.key), [0, 0, 0])
        total[0] = (total[0] or 0) + row.objects
        total[1] = None if row.bytes is None or total[1] is None else total[1] + row.bytes
        if row.held is Sharing.ALONE:
            total[2] = (total[2] or 0) + (row.bytes or 0)
    return sums


def _subtract(new: int | None, old: int | None) -> int | None:
    return None if new is None or old is None else new - old


def describe(growth: Growth, dimensions: Sequence[str], most: int) -> Iterable[str]:
    """Changes as lines.

    Args:
        most: maximum lines for each dimension, and for commits.
    """
    yield f"since {growth.before.time:%F %T}Z (run {growth.before.run_id}):"
    gone = [change.key for change in growth.of(Dimension.BRANCH) if change.went]
    for dimension in (Dimension.STATE, *(each for each in dimensions if each != Dimension.STATE)):
        for change in growth.of(dimension)[:most]:
            note = " (new)" if change.came else " (gone)" if change.went else ""
            if change.key == HoldingState.GARBAGE and change.objects > 0 and gone:
                note = f"; deleted branches: {', '.join(gone[:most])}"
            shown = "unknown size" if change.bytes is None else _signed(change.bytes)
            objects = f"{'-' if change.objects < 0 else '+'}{counted(abs(change.objects), 'objects')}"
            yield f"  {dimension} {change.key or '(top level)'}: {shown}, {objects}{note}"
    for each in growth.commits[:most]:
        made = ""
        if each.commit is not None:
            date = datetime.fromtimestamp(each.commit.date, UTC)
            made = f" by {each.commit.committer} on {each.commit.branch}, {date:%F}"
        yield f"  commit {each.commit_id[:12]}{made} brought {size(each.bytes)}, {counted(each.objects, 'objects')}"


def _signed(amount: int) -> str:
    return f"{'-' if amount < 0 else '+'}{size(abs(amount))}"
