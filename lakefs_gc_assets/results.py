"""Results of runs for Python and notebooks: tables of addresses as pyarrow, pandas, Spark or files.

`lakefs_gc_assets.open` is the entry point. This module only reads reports and frames. Frames are Parquet files in the
repository's own bucket. Rows are read through this package's own stores, so no connector is needed, and each file is
compared with the digest in its manifest. Times are UTC, sizes bytes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.engine.port import nullable
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import (
    CANDIDATES_DF,
    COMMITTED_DF,
    DELETED_REPORT,
    FRAMES,
    STORE_DF,
    UNCOMMITTED_DF,
    UNRECOGNISED_DF,
)
from lakefs_gc_assets.collector.incremental import earlier_runs
from lakefs_gc_assets.collector.records import report, run_folder, stored_holdings
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.configuration_file import CONFIGURATION_VARIABLE, DEFAULT_FILE, default_file, load_one
from lakefs_gc_assets.deferred import deferred
from lakefs_gc_assets.errors import CollectionError, ConfigurationError
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.lakefs.api.client import LakeFSClient
from lakefs_gc_assets.settings import Configuration
from lakefs_gc_assets.storage import opening
from lakefs_gc_assets.storage.opening import StoreOpener

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

    from lakefs_gc_assets.spark import engine as spark_engine
    from lakefs_gc_assets.spark import session as spark_session
    from lakefs_gc_assets.spark import tasks as spark_tasks
else:
    # Deferred, so that reading into pyarrow or pandas does not import Spark.
    spark_engine = deferred("lakefs_gc_assets.spark.engine")
    spark_session = deferred("lakefs_gc_assets.spark.session")
    spark_tasks = deferred("lakefs_gc_assets.spark.tasks")

LATEST = "latest"


@dataclass(frozen=True)
class Table:
    """A frame of a run: a table of addresses. Its rows are read on demand, and again each time.

    `pyarrow.table`, `polars.DataFrame` and any other consumer of an Arrow stream accept it.

    Attributes:
        name: name of the frame, such as `candidates`.
        run_id: the run that made it.
        paths: Parquet files, as other programs open them: `s3://…` or a file's path. Such programs need their own
            credentials, and do not check digests.
        rows: number of rows.
        object_bytes: total size of the objects in its rows, in bytes.
    """

    name: str
    run_id: str
    paths: tuple[str, ...]
    rows: int
    object_bytes: int
    _stored: StoredFrame[Any] = field(repr=False)

    @classmethod
    def from_stored(cls, stored: StoredFrame[Any]) -> "Table":
        """The table of a stored frame."""
        manifest = stored.manifest
        paths = tuple(opening.readable_path(stored.opener, file.key) for file in manifest.files)
        return cls(stored.name, manifest.span.run_id, paths, manifest.rows, manifest.object_bytes, stored)

    def __len__(self) -> int:
        return self.rows

    @property
    def schema(self) -> pa.Schema:
        """The columns, with pyarrow's types."""
        return nullable(self._stored.frame.schema)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, file by file, for tables that do not fit into memory.

        Raises CollectionError if a file is missing or was changed.
        """
        for table in self._stored.tables():
            yield from table.to_batches()

    def to_arrow(self) -> pa.Table:
        """All rows in memory. Raises CollectionError."""
        return pa.Table.from_batches(self.batches(), self.schema)

    def to_pandas(self) -> "pd.DataFrame":
        """All rows in memory. Raises CollectionError."""
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame

    def to_spark(self, session: "SparkSession") -> "DataFrame":
        """The rows as a DataFrame of this session; its workers read the files, and need this package.

        Workers read the store's credentials from their own environment if the configuration takes them from there.
        Other credentials are sent with Spark's tasks.
        """
        tasks = spark_session.TASKS_PER_CORE * spark_session.parallelism(session)
        return spark_tasks.dataframe_of(self._stored.rows(spark_engine.SparkEngine(session, tasks)))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rows as a stream of Arrow's C interface."""
        reader = pa.RecordBatchReader.from_batches(self.schema, self.batches())
        return reader.__arrow_c_stream__(requested_schema)


@dataclass(frozen=True)
class Run:
    """One run and its tables. A table raises CollectionError if the run ended before writing it, or is too old.

    Attributes:
        id: the run's id.
    """

    id: str
    _opener: StoreOpener = field(repr=False)

    @cached_property
    def report(self) -> Report | None:
        """Counts, bytes and ending of the run; None if it has not ended yet."""
        return report.read(self._opener.open(), self.id)

    @property
    def candidates(self) -> Table:
        """The garbage of the run: objects that a sweep deletes."""
        return self.table(CANDIDATES_DF.name)

    @property
    def deleted(self) -> Table:
        """Outcome of each candidate."""
        return self.table(DELETED_REPORT.name)

    @property
    def stored(self) -> Table:
        """Every object that the run examined."""
        return self.table(STORE_DF.name)

    @property
    def uncommitted(self) -> Table:
        """Every address that is staged or tracked as copied."""
        return self.table(UNCOMMITTED_DF.name)

    @property
    def committed(self) -> Table:
        """Every address in `stored` that a live commit references."""
        return self.table(COMMITTED_DF.name)

    @property
    def unrecognised(self) -> Table:
        """Unreferenced objects with names that lakeFS never creates: they are kept."""
        return self.table(UNRECOGNISED_DF.name)

    def table(self, name: str) -> Table:
        """Any frame of the run by its name. Raises CollectionError if there is none."""
        if name not in FRAMES:
            raise CollectionError(f"there is no frame {name!r}; the frames are {', '.join(FRAMES)}")
        store = self._opener.open()
        manifest = earlier_runs.read_manifest(store, name, self.id)
        return Table.from_stored(StoredFrame(FRAMES[name], manifest, self._opener))


@dataclass(frozen=True)
class Repository:
    """A repository and its runs.

    Attributes:
        name: name of the repository.
        storage_namespace: URI below which its objects and the frames of runs are stored.
    """

    name: str
    storage_namespace: str
    _opener: StoreOpener = field(repr=False)

    def runs(self) -> Iterator[Run]:
        """Yields the runs, newest first, with unfinished and failed ones; each is looked up on demand."""
        return (Run(run_id, self._opener) for run_id in run_folder.newest_runs(self._opener.open()))

    def run(self, run_id: str = LATEST) -> Run:
        """A run by its id, or the newest finished one. Raises CollectionError if there is none."""
        if run_id == LATEST:
            return Run(earlier_runs.newest_run(self._opener.open()), self._opener)
        if all(run.id != run_id for run in self.runs()):
            raise CollectionError(f"there is no run {run_id} in {self.storage_namespace}")
        return Run(run_id, self._opener)

    def holdings(self) -> pa.Table:
        """Objects and bytes by holder after each run that has holdings, newest run first, as one table in memory.

        Columns are `run_id`, `time` (UTC), `dimension`, `key`, `held`, `state`, `objects` and `bytes`.

        Raises CollectionError if there are none, or if a file is damaged.
        """
        store = self._opener.open()
        parts = [stored_holdings.read(store, run_id) for run_id in stored_holdings.run_ids(store)]
        rows = pa.concat_tables([stored_holdings.HOLDINGS.empty_table(), *parts])
        # Several repositories can share a storage namespace.
        rows = rows.filter(pc.equal(rows.column("repository"), self.name))
        if not rows.num_rows:
            raise CollectionError(f"no holdings of {self.name} are stored: `lakefs-gc holdings` makes them")
        return rows.drop_columns(["repository", "namespace", "rules"])


def open_repository(configuration: str | Path | Configuration | None, repository: str | None) -> Repository:
    """See `lakefs_gc_assets.open`."""
    if not isinstance(configuration, Configuration):
        file = default_file() if configuration is None else Path(configuration)
        if file is None:
            raise ConfigurationError(
                f"no configuration: give a file, set {CONFIGURATION_VARIABLE}, or put a {DEFAULT_FILE} here"
            )
        configuration = load_one(file, repository, "`repository`").with_secrets()
    elif repository is not None:
        configuration = configuration.model_copy(update={"repository": repository})
    if not configuration.repository:
        raise ConfigurationError("no repository is configured: give its name, or set `repository` in the configuration")
    facts = LakeFSClient(configuration.lakefs, configuration.repository, SystemClock()).repository()
    namespace = Namespace.parse(facts.storage_namespace)
    return Repository(facts.id, namespace.uri, StoreOpener(configuration.store, namespace.uri))
