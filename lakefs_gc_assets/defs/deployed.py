"""Settings of the store and of Spark from existing resources of a Dagster deployment.

`store.resource` and `spark.resource` name these resources by their keys. Settings beside these names take precedence.
"""

from dagster_aws.s3 import S3Resource
from dagster_pyspark import LazyPySparkResource, PySparkResource
from dagster_spark.utils import flatten_dict

from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.settings import SparkSettings, StoreSettings, lacks_deployment

_DEFAULT = SparkSettings()
_SETTING_OF_PROPERTY = {"spark.master": "master", "spark.remote": "remote", "spark.driver.memory": "driver_memory"}
"""Spark properties that have a setting of their own, which does more than the property."""


def with_s3(settings: StoreSettings, resource: object) -> StoreSettings:
    """The settings, completed by an S3Resource; credentials are taken as a whole.

    Raises ConfigurationError for another resource, and for options that a collector does not support.
    """
    if not isinstance(resource, S3Resource):
        raise _other("store", settings.resource, resource, "an S3Resource of dagster-aws")
    endpoint = settings.endpoint_url or resource.endpoint_url or ""
    if resource.use_unsigned_session:
        raise ConfigurationError(_refused(settings, "use_unsigned_session", "without credentials nothing is deleted"))
    if resource.verify is False and not settings.ca_bundle:
        raise ConfigurationError(
            _refused(settings, "verify: false", "name the authority's certificates by store.ca_bundle")
        )
    if not resource.use_ssl and not endpoint:
        raise ConfigurationError(_refused(settings, "use_ssl: false", "give an endpoint_url that begins with http://"))
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
    already started its session, which is used as it is.

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
    return ConfigurationError(f"{section}.resource is {key}, which is to be {expected} and is a {kind}")


def _refused(settings: StoreSettings, what: str, instead: str) -> str:
    return f"store.resource is {settings.resource}, an S3Resource with {what}: {instead}"
