"""Resources of the graph: the lakeFS server, the object store, the settings and the Spark session.

Every field is described once, in `configuration.py`; the UI shows the same words.
"""

from dataclasses import dataclass, fields
from typing import Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pyspark.sql import SparkSession

from lakefs_gc_assets.collection.clock import Clock
from lakefs_gc_assets.collection.repository import OpenRepository, require_writable
from lakefs_gc_assets.configuration import (
    CollectionSettings,
    LakeFSSettings,
    Loaded,
    Settings,
    SparkSettings,
    StoreSettings,
)
from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.java import ensure_java, use_this_python
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.storage.opening import StoreOpener

_TASKS_PER_CORE = 4
_REMOTE_CORES = 8


def parallelism(spark: SparkSession) -> int:
    """Tasks that run at the same time, on classic and remote sessions."""
    found = spark.conf.get("spark.default.parallelism", None)
    if found is None and hasattr(spark, "_jsc"):
        found = str(spark.sparkContext.defaultParallelism)
    return int(found or _REMOTE_CORES)


def _plain(resource: Settings, kind: type[Settings]) -> dict[str, object]:
    return {name: getattr(resource, name) for name in kind.model_fields}


class LakeFSResource(dg.ConfigurableResource, LakeFSSettings):  # type: ignore[type-arg]
    """The lakeFS server."""

    def settings(self) -> LakeFSSettings:
        """The same, free of Dagster."""
        return LakeFSSettings.model_validate(_plain(self, LakeFSSettings))


class StoreResource(dg.ConfigurableResource, StoreSettings):  # type: ignore[type-arg]
    """The object store that holds the repository."""

    def settings(self) -> StoreSettings:
        """The same, free of Dagster."""
        return StoreSettings.model_validate(_plain(self, StoreSettings))


class CollectionResource(dg.ConfigurableResource, CollectionSettings):  # type: ignore[type-arg]
    """What may be collected, how carefully, and how wide."""

    def settings(self) -> CollectionSettings:
        """The same, free of Dagster."""
        return CollectionSettings.model_validate(_plain(self, CollectionSettings))


class SparkResource(dg.ConfigurableResource, SparkSettings):  # type: ignore[type-arg]
    """The Spark session of a run, made when the first step needs it; it ends with the run's process."""

    def session(self) -> SparkSession:
        """The session; a JRE is found or brought along where the master is local."""
        session: SparkSession = LazyPySparkResource(spark_config=self.properties()).spark_session
        return session

    def properties(self) -> dict[str, str]:
        """Properties of the session: ours, then those of the settings."""
        if self.remote:
            return {"spark.remote": self.remote, "spark.sql.session.timeZone": "UTC", **self.config}
        ensure_java()
        use_this_python()
        return {
            "spark.master": self.master,
            "spark.app.name": "lakefs-gc",
            "spark.driver.memory": self.driver_memory,
            "spark.sql.session.timeZone": "UTC",
            "spark.speculation": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
            **self.config,
        }


class Collector(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The repository that is collected, with everything a step needs to reach it."""

    repository: str
    lakefs: dg.ResourceDependency[LakeFSResource]
    store: dg.ResourceDependency[StoreResource]
    collection: dg.ResourceDependency[CollectionResource]
    spark: dg.ResourceDependency[SparkResource]
    clock: dg.ResourceDependency[Clock]

    def open(self) -> OpenRepository:
        """Asks the server for the repository and opens its store.

        Raises ConfigurationError, LakeFSError or ReadOnlyRepository.
        """
        from lakefs_gc_assets.lakefs.api import LakeFSClient

        if not self.repository:
            raise ConfigurationError("no repository is named: set `repository` in the configuration file")
        api = LakeFSClient(self.lakefs.settings(), self.repository, self.clock)
        facts = api.repository()
        require_writable(facts)
        namespace = Namespace.parse(facts.storage_namespace)
        opener = StoreOpener(self.store.settings(), namespace.uri)
        return OpenRepository(facts, namespace, api, opener.open(), opener, self.collection.settings(), self.clock)

    def tasks(self) -> int:
        """How many tasks read or write frames where no setting says otherwise: four per core."""
        return _TASKS_PER_CORE * parallelism(self.spark.session())


@dataclass(frozen=True)
class Resources:
    """The resources of one repository, under the names that assets ask for."""

    lakefs: LakeFSResource
    store: StoreResource
    collection: CollectionResource
    spark: SparkResource
    collector: Collector

    def by_name(self) -> dict[str, object]:
        """As Dagster takes them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def resources(loaded: Loaded, clock: Clock) -> Resources:
    """The resources of a configuration; secrets stay in the environment."""
    configuration = loaded.configuration
    lakefs = LakeFSResource(**_section(loaded, "lakefs"))
    store = StoreResource(**_section(loaded, "store"))
    collection = CollectionResource(**configuration.collection.model_dump())
    spark = SparkResource(**configuration.spark.model_dump())
    collector = Collector(
        repository=configuration.repository, lakefs=lakefs, store=store, collection=collection, spark=spark, clock=clock
    )
    return Resources(lakefs, store, collection, spark, collector)


def _section(loaded: Loaded, name: str) -> dict[str, Any]:
    values: dict[str, Any] = getattr(loaded.configuration, name).model_dump()
    secrets = {
        field: dg.EnvVar(variable) for (section, field), variable in loaded.secret_variables.items() if section == name
    }
    return {**values, **secrets}
