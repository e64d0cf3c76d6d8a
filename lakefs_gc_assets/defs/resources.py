"""Resources of the graph: the lakeFS server, the object store, the settings and the Spark session.

Every field is described once, in `settings.py`; the UI shows the same words.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pydantic import Field
from pyspark.sql import SparkSession

from lakefs_gc_assets.collector.clock import Clock
from lakefs_gc_assets.collector.repository import OpenRepository, require_writable
from lakefs_gc_assets.deferred import deferred
from lakefs_gc_assets.defs import launching
from lakefs_gc_assets.defs.launching import Permit
from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.lakefs.api.client import LakeFSClient
from lakefs_gc_assets.lakefs.api.models import Repository
from lakefs_gc_assets.settings import (
    CollectionSettings,
    Configuration,
    LakeFSSettings,
    LaunchSettings,
    Loaded,
    ReportSettings,
    Settings,
    SparkSettings,
    StoreSettings,
)
from lakefs_gc_assets.spark import session as spark_session
from lakefs_gc_assets.spark.engine import SparkEngine
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets.storage.opening import StoreOpener

if TYPE_CHECKING:
    from lakefs_gc_assets.defs import deployed
else:
    # Deferred: it imports libraries for every service of AWS, which only those need who name such a resource.
    deployed = deferred("lakefs_gc_assets.defs.deployed")

_opened: dict[tuple[str, str], StoreOpener] = {}
"""The stores that this process opened last, by name and repository: of use where the server is gone."""


def _plain(resource: Settings, kind: type[Settings]) -> dict[str, object]:
    return {name: getattr(resource, name) for name in kind.model_fields}


class LakeFSResource(dg.ConfigurableResource, LakeFSSettings):  # type: ignore[type-arg]
    """The lakeFS server."""

    def settings(self) -> LakeFSSettings:
        """These settings, without what Dagster adds to them."""
        return LakeFSSettings.model_validate(_plain(self, LakeFSSettings))


class StoreResource(dg.ConfigurableResource, StoreSettings):  # type: ignore[type-arg]
    """The object store that holds the repository.

    Attributes:
        from_deployment: what the deployment has under the key `resource`.
    """

    from_deployment: dg.ResourceDependency[object] = Field(default=None, repr=False)  # type: ignore[arg-type]

    def settings(self) -> StoreSettings:
        """These settings, with what the deployment's S3Resource says besides. Raises ConfigurationError."""
        own = StoreSettings.model_validate(_plain(self, StoreSettings))
        return deployed.with_s3(own, self.from_deployment) if self.resource else own


class CollectionResource(dg.ConfigurableResource, CollectionSettings):  # type: ignore[type-arg]
    """What may be collected, how carefully, and how wide."""

    def settings(self) -> CollectionSettings:
        """These settings, without what Dagster adds to them."""
        return CollectionSettings.model_validate(_plain(self, CollectionSettings))


class SparkResource(dg.ConfigurableResource, SparkSettings):  # type: ignore[type-arg]
    """The Spark session of a run, made when the first step needs it; it ends with the run's process.

    Attributes:
        from_deployment: what the deployment has under the key `resource`.
    """

    from_deployment: dg.ResourceDependency[object] = Field(default=None, repr=False)  # type: ignore[arg-type]

    def settings(self) -> SparkSettings:
        """These settings, with the properties of the deployment's Spark resource. Raises ConfigurationError."""
        own = SparkSettings.model_validate(_plain(self, SparkSettings))
        return deployed.with_spark(own, self.from_deployment) if self.resource else own

    def session(self) -> SparkSession:
        """The session; a JRE is found or brought along where the master is local."""
        spark_session.wait_for_start()
        with spark_session.handed_over(self.settings()) as remaining:
            session: SparkSession = LazyPySparkResource(spark_config=remaining).spark_session
        return session

    def properties(self) -> dict[str, str]:
        """Properties of the session: ours, then those of the settings."""
        return spark_session.properties(self.settings())


class LaunchResource(dg.ConfigurableResource, LaunchSettings):  # type: ignore[type-arg]
    """What a launch through Dagster may decide."""

    def settings(self) -> LaunchSettings:
        """These settings, without what Dagster adds to them."""
        return LaunchSettings.model_validate(_plain(self, LaunchSettings))


@dataclass(frozen=True)
class Target:
    """The repository that is collected. It is no configuration: what the launchpad shows, whoever launches sends.

    Attributes:
        name: what Dagster calls it.
        report: what the page of a run is told beside what the run left.
    """

    name: str
    repository: str
    report: ReportSettings = field(default_factory=ReportSettings)


class Collector(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The repository that is collected, with everything a step needs to reach it."""

    target: dg.ResourceDependency[Target]
    lakefs: dg.ResourceDependency[LakeFSResource]
    store: dg.ResourceDependency[StoreResource]
    collection: dg.ResourceDependency[CollectionResource]
    spark: dg.ResourceDependency[SparkResource]
    launch: dg.ResourceDependency[LaunchResource]
    clock: dg.ResourceDependency[Clock]

    @property
    def name(self) -> str:
        """What Dagster calls the repository."""
        return self.target.name

    @property
    def repository(self) -> str:
        """The repository's own name."""
        return self.target.repository

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Refuses a run whose launch sets anything of a resource. Raises ConfigurationError."""
        if context.run is not None:
            launching.require_closed(context.run.run_config, self.launch.settings())

    def open(self) -> OpenRepository:
        """Asks the server for the repository and opens its store, to collect it.

        Raises ConfigurationError, LakeFSError or ReadOnlyRepository.
        """
        return self._open(require_writable)

    def open_for(self, permit: Permit | None) -> OpenRepository:
        """Opens the repository as `open` does, with the settings that a run has by its permit.

        Args:
            permit: by which the run was opened; None where assets are materialized without opening a run.
        Raises:
            ConfigurationError: also where the launch asked for something that the file does not allow.
            LakeFSError, ReadOnlyRepository: see `open`.
        """
        policy = self.launch.settings()
        settings, loosened = launching.settle(self.collection.settings(), policy, permit)
        # Where a launch may delete at once, as the command line does, nobody needs an approval.
        opened = permit is not None or policy.sweep == "any"
        return replace(self.open(), settings=settings, loosened=loosened, opened=opened)

    def open_to_read(self) -> OpenRepository:
        """Opens the repository as `open` does, also one that is read-only. Raises ConfigurationError or LakeFSError."""
        return self._open(lambda _: None)

    def _open(self, require: Callable[[Repository], None]) -> OpenRepository:
        if not self.repository:
            raise ConfigurationError("no repository is named: set `repository` in the configuration file")
        settings = self.collection.settings()
        others = tuple(self._open_one(name, settings, require) for name in settings.also_live)
        return replace(self._open_one(self.repository, settings, require), others=others)

    def _open_one(
        self, repository: str, settings: CollectionSettings, require: Callable[[Repository], None]
    ) -> OpenRepository:
        api = LakeFSClient(self.lakefs.settings(), repository, self.clock)
        facts = api.repository()
        require(facts)  # Before the store is opened: its failures would say less of the repository.
        namespace = Namespace.parse(facts.storage_namespace)
        opener = StoreOpener(self.store.settings(), namespace.uri)
        _opened[self.name, repository] = opener
        return OpenRepository(facts, namespace, api, opener.open(), opener, settings, self.clock)

    def last_opened(self) -> ObjectStore | None:
        """The store as this process opened it last, without asking the server; None where it never did."""
        opener = _opened.get((self.name, self.repository))
        return opener.open() if opener else None

    def engine(self, settings: CollectionSettings | None = None) -> SparkEngine:
        """What runs work with: four tasks per core where no setting says otherwise.

        Args:
            settings: of the run; by default as configured.
        """
        spark = self.spark.session()
        partitions = (settings or self.collection.settings()).address_partitions
        if partitions:
            spark.conf.set("spark.sql.shuffle.partitions", partitions)
        return SparkEngine(spark, spark_session.TASKS_PER_CORE * spark_session.parallelism(spark))


def collector(configuration: Configuration, clock: Clock) -> Collector:
    """The resource outside of a Dagster run."""
    return Collector(
        target=Target(configuration.label, configuration.repository, configuration.report),
        lakefs=LakeFSResource(**configuration.lakefs.model_dump()),
        store=StoreResource(**configuration.store.model_dump()),
        collection=CollectionResource(**configuration.collection.model_dump()),
        spark=SparkResource(**configuration.spark.model_dump()),
        launch=LaunchResource(**configuration.launch.model_dump()),
        clock=clock,
    )


def resources(loaded: Loaded, clock: Clock) -> dict[str, Any]:
    """The resources of a configuration, by name; secrets stay in the environment.

    A launch sets nothing of them: see `launching.require_closed`.
    """
    configuration = loaded.configuration
    sections = {
        "lakefs": LakeFSResource(**_section(loaded, "lakefs")),
        "store": StoreResource(**_section(loaded, "store"), from_deployment=_handed_on(configuration.store.resource)),
        "collection": CollectionResource(**_section(loaded, "collection")),
        "spark": SparkResource(**_section(loaded, "spark"), from_deployment=_handed_on(configuration.spark.resource)),
        "launch": LaunchResource(**_section(loaded, "launch")),
    }
    target = Target(configuration.label, configuration.repository, configuration.report)
    given = Collector(target=target, clock=clock, **sections)
    return {**sections, "collector": given}


def _handed_on(key: str) -> dg.ResourceDefinition | None:
    return deployed.handed_on(key) if key else None


def _section(loaded: Loaded, name: str) -> dict[str, Any]:
    values: dict[str, Any] = getattr(loaded.configuration, name).model_dump()
    variables = {**loaded.text_variables, **loaded.secret_variables}
    named = {field: dg.EnvVar(variable) for (section, field), variable in variables.items() if section == name}
    return {**values, **named}
