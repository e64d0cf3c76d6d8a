"""Ranges that lie beside those of the repository's commits and that none of its commits names.

They may belong to another repository on the same storage namespace: lakeFS allows a second one that is made `bare`, and
two servers know nothing of each other (a migration, a restored backup). No list of repositories is sure to name it, but
its ranges can always be seen. Failed commits, merges and imports leave such ranges as well, and a commit under way
writes them before it exists. Where a range comes from cannot be known, so the objects that it holds count as live.
"""

from collections.abc import Set
from dataclasses import dataclass
from datetime import datetime

from lakefs_gc_assets.collector.commits import list_ids
from lakefs_gc_assets.collector.engine.port import R
from lakefs_gc_assets.collector.live.range_records import RangeRecords
from lakefs_gc_assets.collector.live.references import References
from lakefs_gc_assets.collector.stored.ids import IdSet
from lakefs_gc_assets.storage.interface import ObjectStore


@dataclass(frozen=True, slots=True)
class Unnamed:
    """What lies in the metadata folder, is named by no commit, and was not read before.

    Attributes:
        ids: the files, of whatever kind: tables of earlier refs dumps are among them.
        records: ranges that are among the files, or that a metarange among them names.
    """

    ids: tuple[str, ...]
    records: RangeRecords


def find_unnamed(
    store: ObjectStore,
    references: References[R],
    read: Set[str],
    expired: Set[str],
    since: datetime | None = None,
) -> Unnamed:
    """Lists the metadata folder, and reads of it only what no commit names.

    It is asked last: whatever is committed until then is seen.

    Args:
        read: ids of everything that was read before, or is read by this question.
        expired: ids of metaranges and ranges that only expired commits name. They are no sign of another repository,
            but such a range stays where an unnamed metarange names it, too. So it is with a branch's compacted base.
        since: only files that were last modified at this moment, UTC, or later; None for all.
    Raises:
        CorruptFile: a file is of no known kind, or damaged.
    """
    ids = list_ids(store, IdSet.of(read) | expired, since)
    return Unnamed(ids, references.unnamed_records(ids).without(read))
