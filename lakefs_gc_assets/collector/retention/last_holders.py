"""Last holders of expired objects: for each metarange that only expired commits have, the newest of these commits.

A run by retention rules records this beside the committed addresses, in one small file. With it, a reader explains
garbage from those metaranges and their ranges, without asking the server.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.retention.active_commits import Active, Flags
from lakefs_gc_assets.collector.retention.rules import Rule
from lakefs_gc_assets.collector.stored import run_folder, tables
from lakefs_gc_assets.storage.interface import ObjectStore, get_if_there

LAST_HOLDERS = pa.schema(
    [
        pa.field("metarange_id", pa.string(), nullable=False),
        pa.field("commit_id", pa.string(), nullable=False),
        pa.field("branch", pa.string()),
        pa.field("rule", pa.string(), nullable=False),
    ]
)
"""Metaranges that only expired commits have, those of the newest commits first; each with the newest of its commits,
the branch whose rule would have kept that commit longest (null where no branch leads to it), and the rule."""


def last_holders(active: Active, stays: Flags, metarange_ids: pa.StringArray) -> pa.Table:
    """The newest expired commit of each of these metaranges (LAST_HOLDERS); of one moment, that of the highest id.

    Args:
        stays: for each commit whether it stays for any reason.
    """
    commits = active.graph.commits
    expired = np.flatnonzero(~stays)
    asked = pc.is_in(commits.metarange_ids.take(pa.array(expired)), value_set=metarange_ids)
    at = expired[asked.to_numpy(zero_copy_only=False)]
    columns = {
        "at": at,
        "seconds": commits.seconds[at],
        "nanos": commits.nanos[at],
        "id": commits.ids.take(pa.array(at)),
        "metarange_id": commits.metarange_ids.take(pa.array(at)),
    }
    newest_first = pa.table(columns).sort_by([(name, "descending") for name in ("seconds", "nanos", "id")])
    # In one thread, so that the first row of each group is that of its newest commit, and groups keep their order.
    first = newest_first.group_by("metarange_id", use_threads=False).aggregate([("at", "first")])
    chosen = first.column("at_first").to_numpy()
    walks = pa.array(active.walks[chosen])
    rules = [_rule_of(branch, active.rules.branches, active.rules.default) for branch in active.walk_names]
    return pa.table(
        [
            first.column("metarange_id"),
            commits.ids.take(pa.array(chosen)),
            pa.array(active.walk_names, pa.string()).take(walks),
            pa.array(rules, pa.string()).take(walks),
        ],
        schema=LAST_HOLDERS,
    )


def _rule_of(branch: str | None, rules: Mapping[str, Rule], default: Rule) -> str:
    return str(default if branch is None else rules[branch])


def write(store: ObjectStore, run_id: str, attempt: str, holders: pa.Table) -> None:
    """Stores what an attempt's commits step learnt of expired commits (LAST_HOLDERS)."""
    store.put(_key(run_id, attempt), tables.encode(holders))


def read(store: ObjectStore, run_id: str, attempt: str) -> pa.Table | None:
    """Reads what an attempt recorded about expired commits (LAST_HOLDERS); None if nothing is stored.

    Raises CorruptFile.
    """
    key = _key(run_id, attempt)
    data = get_if_there(store, key)
    return None if data is None else tables.decode(LAST_HOLDERS, data, key, "expired commits")


def _key(run_id: str, attempt: str) -> str:
    return f"{run_folder.frame(run_id, 'committed_df')}expired-{attempt}.parquet"
