"""Stored holdings: their keys and the table after a run.

Files lie in one folder beside the folders of runs, so one listing shows the whole history. If the extension that makes
holdings is absent, its files still expire, and Python still reads them.
"""

import pyarrow as pa

from lakefs_gc_assets.collector.records import run_folder, tables
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.storage.interface import ObjectStore, fetch

NAME = "holdings"
_SUFFIX = ".parquet"

HOLDINGS = pa.schema(
    [
        pa.field("repository", pa.string(), nullable=False),
        pa.field("namespace", pa.string(), nullable=False),
        pa.field("run_id", pa.string(), nullable=False),
        pa.field("time", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("rules", pa.string(), nullable=False),
        pa.field("dimension", pa.string(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("held", pa.string()),
        pa.field("state", pa.string()),
        pa.field("objects", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64()),
    ]
)
"""Holdings after a run: a row for each state and holder. All rows have the same values up to `rules`.

`time` is the end of the run. `rules` is a digest of the rules by which commits expire, empty if all stay. `held` and
`state` are null if they do not apply, `bytes` if unknown.
"""


def key_of(run_id: str) -> str:
    """Key of the holdings after a run. Raises CollectionError for anything but a run id."""
    run_folder.folder(run_id)
    return f"{run_folder.HOLDINGS}{run_id}{_SUFFIX}"


def run_ids(store: ObjectStore) -> list[str]:
    """Ids of the runs that have holdings, newest first."""
    keys = (listed.key for listed in store.list_level(run_folder.HOLDINGS).objects)
    names = (key.removeprefix(run_folder.HOLDINGS).removesuffix(_SUFFIX) for key in keys)
    return sorted(name for name in names if layout.is_xid(name))


def read(store: ObjectStore, run_id: str) -> pa.Table:
    """The holdings after a run (HOLDINGS). Raises CorruptFile if the file is missing, damaged or of a newer version."""
    key = key_of(run_id)
    return tables.decode(HOLDINGS, fetch(store, key), key, NAME)
