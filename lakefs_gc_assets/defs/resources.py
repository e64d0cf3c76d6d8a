"""The resources of a repository: `lakefs`, `store`, `pyspark`, and the `collector` that assets and jobs use.

`store` and `pyspark` may be resources that the deployment has, such as dagster-aws's S3Resource. `store.resource` and
`spark.resource` are their keys. Settings beside these keys take precedence.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource, PySparkResource
from dagster_spark.utils import flatten_dict
from pydantic import PrivateAttr
from pyspark.sql import SparkSession

from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import F, Frame
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.repository.lock import Lock
from lakefs_gc_assets.collector.repository.opening import open_repository
from lakefs_gc_assets.collector.repository.repository import Clock, Launch, OpenRepository
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.deferred import deferred
from lakefs_gc_assets.defs import launching
from lakefs_gc_assets.defs.launching import Permit
from lakefs_gc_assets.defs.partitions import Names, run_id_in
from lakefs_gc_assets.errors import ConfigurationError, OrderViolation
from lakefs_gc_assets.settings import CollectionSettings, Configuration, SparkSettings, StoreSettings, lacks_deployment
from lakefs_gc_assets.spark import session as spark_session
from lakefs_gc_assets.spark.engine import SparkEngine
from lakefs_gc_assets.storage.interface import ObjectStore, OpensStore

if TYPE_CHECKING:
    from dagster_aws import s3
else:
    # Deferred: it imports libraries for every AWS service, which only an S3Resource of the deployment needs.
    s3 = deferred("dagster_aws.s3")

_opened: dict[tuple[str, str], OpensStore] = {}
"""Stores that this process opened last, by name and repository, for use if the server is gone."""


_DEFAULT = SparkSettings()
_SETTING_OF_PROPERTY = {"spark.master": "master", "spark.remote": "remote", "spark.driver.memory": "driver_memory"}
"""Spark properties that have a setting of their own, which does more than the property."""


def session(settings: SparkSettings) -> SparkSession:
    """The Spark session of this process. For a local master, it finds a JRE or uses the included one."""
    spark_session.wait_for_start()
    with spark_session.launching(settings) as remaining:
        spark: SparkSession = LazyPySparkResource(spark_config=remaining).spark_session
    if hasattr(spark, "_jsc"):
        _log_application(spark.sparkContext.applicationId, spark_session.ui_address(spark))
    return spark


@cache
def _log_application(application_id: str, address: str | None) -> None:
    """Logs once where Spark shows the work, so that it can be followed during the run and after a failure."""
    if address or not application_id.startswith("local-"):
        dg.get_dagster_logger().info(f"Spark application {application_id}: {address or 'its UI is off'}")


class CollectorSpark(LazyPySparkResource):
    """The Spark session of runs, by the section `spark`; it starts on first use."""

    _settings: SparkSettings = PrivateAttr()

    def __init__(self, settings: SparkSettings) -> None:
        super().__init__(spark_config=settings.config)
        self._settings = settings

    @property
    def settings(self) -> SparkSettings:
        """The settings of the session."""
        return self._settings

    @property
    def spark_session(self) -> SparkSession:
        """The session that steps of runs use too."""
        return session(self._settings)


@dataclass(frozen=True, eq=False)
class Collector:
    """The repository that is collected, with everything a step needs to reach it.

    It uses the configuration file alone: no configuration of a launch reaches it.

    Attributes:
        configuration: the configuration with secrets.
        deployed_store, deployed_spark: the resources that `store.resource` and `spark.resource` name, if any.
        launch: the Dagster run of this process.
    """

    configuration: Configuration = field(repr=False)
    clock: Clock
    deployed_store: object = field(default=None, repr=False)
    deployed_spark: object = field(default=None, repr=False)
    launch: Launch = field(default_factory=Launch, repr=False)
    apart: bool = False
    """As for `Names`."""
    locks: dict[str, Lock] = field(default_factory=dict, init=False, repr=False)
    """As for `StepHost`."""
    _frames: dict[tuple[str, str], StoredFrame[Any]] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def from_loaded(cls, loaded: Loaded, clock: Clock) -> "Collector":
        """The repository outside of a Dagster run; secrets are read from the environment."""
        return cls(loaded.with_secrets(), clock, apart=loaded.apart)

    @property
    def name(self) -> str:
        """Dagster's name of the repository."""
        return self.configuration.label

    @property
    def names(self) -> Names:
        """The names of its definitions in Dagster."""
        return Names(self.name, self.apart)

    @property
    def repository(self) -> str:
        """The repository's own name."""
        return self.configuration.repository

    @property
    def store(self) -> StoreSettings:
        """Settings of the store, completed by the deployment's S3Resource. Raises ConfigurationError."""
        own = self.configuration.store
        return with_s3(own, self.deployed_store) if own.resource else own

    @property
    def spark(self) -> SparkSettings:
        """Settings of Spark, completed by the deployment's Spark resource. Raises ConfigurationError."""
        own = self.configuration.spark
        return with_spark(own, self.deployed_spark) if own.resource else self.configuration.session

    def open(self, *, to_read: bool = False) -> OpenRepository:
        """Asks the server for the repository and opens its store, to collect it or only to read it.

        Raises ConfigurationError or LakeFSError, and ReadOnlyRepository unless it is only read.
        """
        opened = open_repository(self.configuration, self.clock, self.store, to_read)
        _opened[self.name, self.repository] = opened.opener
        return replace(opened, launch=self.launch)

    def open_for(self, permit: Permit | None, flow: Flow | None = None) -> OpenRepository:
        """Opens the repository as `open` does, with the settings that a run's permit allows.

        Args:
            permit: the run's permit; None if assets are materialized without opening a run.
            flow: the requested flow of a run that begins.
        Raises:
            ConfigurationError: also if the launch requested a change that the file does not allow.
            LakeFSError, ReadOnlyRepository: see `open`.
        """
        policy = self.configuration.launch
        settings, loosened = launching.settle(self.configuration.collection, policy, permit, flow)
        # If a launch may delete at once, as on the command line, no approval is needed.
        opened = permit is not None or policy.sweep == "any"
        return replace(self.open(), settings=settings, loosened=loosened, opened=opened)

    @cached_property
    def _to_read(self) -> OpenRepository:
        return self.open()

    def stored(self, run_id: str, frame: Frame[F]) -> StoredFrame[F]:
        """A frame of a run, for the next step or a check: the frame that this process made, or else read once.

        A later frame that another process stored is noticed: the next step requires frames of its attempt, and a sweep
        reads the manifests again.

        Raises OrderViolation if it does not exist, CorruptFile, or as `open`.
        """
        stored = self._frames.get((run_id, frame.name))
        if stored is None:
            stored = StoredFrame.from_run(self._to_read.store, self._to_read.opener, run_id, frame)
            self.keep(stored)
        return stored

    def keep(self, stored: StoredFrame[Any]) -> None:
        """Keeps a frame that this process stored, for `stored`."""
        self._frames[stored.manifest.span.run_id, stored.name] = stored

    def last_opened(self) -> ObjectStore | None:
        """The store that this process opened last, without asking the server; None if it opened none."""
        opener = _opened.get((self.name, self.repository))
        return opener.open() if opener else None

    def store_at_hand(self) -> ObjectStore:
        """The store that this process opened last; if none, opens it, which asks the server. Raises CollectionError."""
        return self.last_opened() or self.open().store

    def run_of(self, key: str, windows: Collection[str]) -> str | None:
        """The id of the run of a key of the dimension run_id over some windows; None for a name without one.

        Raises CollectionError: the repository cannot be opened, or a record cannot be read.
        """
        if (run_id := run_id_in(key)) is not None:
            return run_id
        return reports.find_named(self.store_at_hand(), key, windows)

    def require_run(self, key: str, windows: Collection[str]) -> str:
        """As `run_of`. Raises OrderViolation for a name without a run."""
        run_id = self.run_of(key, windows)
        if run_id is None:
            raise OrderViolation(
                f"no run named {key} has begun over the windows {', '.join(windows)}: a run begins with store_df, so "
                "materialize all five assets together"
            )
        return run_id

    def engine(self, settings: CollectionSettings | None = None) -> SparkEngine:
        """The engine of runs: four tasks per core unless settings say otherwise.

        A local session is started when the first task is needed.

        Args:
            settings: settings of the run; by default as configured.
        """
        spark_settings, partitions = self.spark, (settings or self.configuration.collection).address_partitions

        def make() -> SparkSession:
            spark = session(spark_settings)
            if partitions:
                spark.conf.set("spark.sql.shuffle.partitions", partitions)
            return spark

        if spark_session.starts_on_demand(spark_settings):
            parallelism = spark_session.local_parallelism(spark_settings)
            return SparkEngine(make, spark_session.TASKS_PER_CORE * parallelism)
        spark = make()
        return SparkEngine(spark, spark_session.TASKS_PER_CORE * spark_session.parallelism(spark))


def define(names: Names, loaded: Loaded, clock: Clock) -> dict[str, dg.ResourceDefinition]:
    """The resources of a repository by their keys, without those that the deployment has.

    A launch cannot configure them: it could replace every value of a ConfigurableResource, such as the server. Secrets
    are read when a run begins. Each resource reads those of its own section, since only sensors need the webhooks.
    """
    written = loaded.configuration
    lakefs_key = names.qualified("lakefs")
    store_key = written.store.resource or names.qualified("store")
    spark_key = written.spark.resource or names.qualified("pyspark")

    def read(*sections: str) -> Configuration:
        secrets = {place: variable for place, variable in loaded.secret_variables.items() if place[0] in sections}
        return replace(loaded, secret_variables=secrets).with_secrets()

    @dg.resource(
        config_schema={}, required_resource_keys={lakefs_key, store_key, spark_key}, description=Collector.__doc__
    )
    def collector(context: dg.InitResourceContext) -> Collector:
        if context.run is not None:
            launching.require_own_values(context.run.run_config)
        # As an attribute of `resources`, an S3Resource would be its boto3 client.
        given: Any = context.resources.original_resource_dict
        store, spark = given[store_key], given[spark_key]
        sections = {"lakefs": given[lakefs_key]}
        if not written.store.resource:
            sections["store"] = store
        if not written.spark.resource:
            sections["spark"] = spark.settings
        own = read("collection", *(section for section in written.resource_keys))
        return Collector(own.model_copy(update=sections), clock, store, spark, launch_of(context), names.apart)

    resources = {
        names.collector: collector,
        lakefs_key: _value(lambda: read("lakefs").lakefs, f"The lakeFS server of {names.repository}."),
    }
    if not written.store.resource:
        resources[store_key] = _value(lambda: read("store").store, f"The object store of {names.repository}.")
    if not written.spark.resource:
        resources[spark_key] = _value(lambda: CollectorSpark(read("spark").spark), CollectorSpark.__doc__)
    return resources


def _value(read: Callable[[], object], description: str | None) -> dg.ResourceDefinition:
    return dg.ResourceDefinition(lambda _: read(), config_schema={}, description=description)


def launch_of(context: dg.InitResourceContext) -> Launch:
    """The Dagster run of a resource, which can ask the instance for the end times of other runs."""
    instance = context.instance
    if instance is None or instance.is_ephemeral:
        # A command without DAGSTER_HOME: its instance and all records end with its process.
        return Launch()

    def ended_at(run_id: str) -> datetime | None:
        try:
            return end_of(instance, run_id)
        except Exception:
            return None  # If Dagster's database cannot be reached, the lock still expires.

    return Launch(context.run.run_id if context.run else "", ended_at)


def end_of(instance: dg.DagsterInstance, dagster_run_id: str) -> datetime | None:
    """The time when a Dagster run ended, UTC; None if it did not, or there is no such run."""
    record = instance.get_run_record_by_id(dagster_run_id)
    if record is None or not record.dagster_run.is_finished or record.end_time is None:
        return None
    return datetime.fromtimestamp(record.end_time, UTC)


def with_s3(settings: StoreSettings, resource: object) -> StoreSettings:
    """The settings, completed by an S3Resource; credentials are taken as a whole.

    Raises ConfigurationError for another resource, and for options that a collector does not support.
    """
    if not isinstance(resource, s3.S3Resource):
        raise _other("store", settings.resource, resource, "an S3Resource of dagster-aws")
    endpoint = settings.endpoint_url or resource.endpoint_url or ""
    if resource.use_unsigned_session:
        raise ConfigurationError(_refused(settings, "use_unsigned_session", "deleting needs credentials"))
    if resource.verify is False and not settings.ca_bundle:
        raise ConfigurationError(
            _refused(settings, "verify: false", "set store.ca_bundle to the authority's certificates")
        )
    if not resource.use_ssl and not endpoint:
        raise ConfigurationError(_refused(settings, "use_ssl: false", "set an endpoint_url that begins with http://"))
    changes: dict[str, object] = {"endpoint_url": endpoint, "region": settings.region or resource.region_name or ""}
    if not settings.endpoint_url and resource.endpoint_url:
        changes["path_style"] = True  # As the resource's own client does.
    own_credentials = (settings.profile, settings.access_key_id, settings.secret_access_key, settings.session_token)
    if not any((*own_credentials, settings.from_environment.keys() - {"signing_key"})):
        changes |= {
            "profile": resource.profile_name or "",
            "access_key_id": resource.aws_access_key_id or "",
            "secret_access_key": resource.aws_secret_access_key or "",
            "session_token": resource.aws_session_token or "",
        }
    return settings.model_copy(update=changes)


def with_spark(settings: SparkSettings, resource: object) -> SparkSettings:
    """The settings, completed by the properties of a resource of dagster-pyspark.

    A LazyPySparkResource does not start its session: ours uses its properties and our own. A PySparkResource has
    already started its session, which is used unchanged.

    Raises ConfigurationError for another resource.
    """
    if not isinstance(resource, LazyPySparkResource | PySparkResource):
        expected = "a LazyPySparkResource or PySparkResource of dagster-pyspark"
        raise _other("spark", settings.resource, resource, expected)
    config: dict[str, str] = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in flatten_dict(resource.spark_config)  # type: ignore[no-untyped-call]
    }
    changes: dict[str, object] = {}
    for name, setting in _SETTING_OF_PROPERTY.items():
        value = config.pop(name, None)
        if value is not None and getattr(settings, setting) == getattr(_DEFAULT, setting):
            changes[setting] = value
    return settings.model_copy(update={**changes, "config": {**config, **settings.config}})


def _other(section: str, key: str, resource: object, expected: str) -> ConfigurationError:
    if resource is None:
        return lacks_deployment(section, key)
    kind = type(resource).__name__
    return ConfigurationError(f"{section}.resource is {key}, a {kind}, but must be {expected}")


def _refused(settings: StoreSettings, what: str, instead: str) -> str:
    return f"store.resource is {settings.resource}, an S3Resource with {what}: {instead}"
