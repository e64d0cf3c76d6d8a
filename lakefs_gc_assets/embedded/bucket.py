"""Objects of an embedded server in a bucket or container that exists, reached by the cloud's usual configuration."""

import os
from datetime import timedelta
from pathlib import Path

from lakefs_gc_assets.embedded.blockstores import RemoteBlockstore
from lakefs_gc_assets.embedded.core import RuleSet, Settings
from lakefs_gc_assets.embedded.server import EmbeddedServer
from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage.opening import open_store

GRACE = timedelta(seconds=5)
"""How long an issued address may be linked: objects in a bucket cannot be made to look old, so old comes soon."""
SKEW = timedelta(seconds=12)
"""What is allowed for clocks that differ, for the same reason; they must agree within half of it."""
AGING = GRACE + SKEW + timedelta(seconds=2)
"""After this time an object may be collected."""


def settings_from_environment(url: str) -> StoreSettings:
    """Credentials and region by the cloud's usual chain; an endpoint of S3 in the environment is used in path style."""
    if not url.startswith("s3"):
        return StoreSettings()
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
    return StoreSettings(endpoint_url=endpoint, path_style=bool(endpoint))


def in_bucket(url: str, settings: StoreSettings) -> RemoteBlockstore:
    """Objects below an address such as `s3://bucket/prefix`, where each repository gets a folder.

    Raises ConfigurationError where it cannot be opened.
    """
    root = Namespace.parse(url)
    if root.location.kind == "local":
        raise ConfigurationError(f"{url} is no bucket: objects lie in a local folder unless one is named")
    return RemoteBlockstore(root.location.kind, lambda uri: open_store(settings, Namespace.parse(uri)), root.uri)


def server(
    folder: Path,
    rules: RuleSet,
    url: str,
    store: StoreSettings | None,
    *,
    port: int = 0,
    credentials: tuple[str, str] = ("", ""),
) -> EmbeddedServer:
    """A server with its metadata in a folder and its objects there too or, with settings of a store, below the url."""
    access_key_id, secret_access_key = credentials
    return EmbeddedServer(
        folder,
        blockstore=None if store is None else in_bucket(url, store),
        settings=Settings(rules=rules) if store is None else Settings(rules=rules, link_seconds=GRACE.seconds),
        port=port,
        access_key_id=access_key_id,
        secret_access_key=secret_access_key,
    )
