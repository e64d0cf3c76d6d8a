"""A place to try the collector: an embedded server with a sample repository."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import yaml

from lakefs_gc_assets.embedded import bucket
from lakefs_gc_assets.embedded.core import RuleSet
from lakefs_gc_assets.embedded.demo import configuration
from lakefs_gc_assets.embedded.sample import make_sample_repository
from lakefs_gc_assets.embedded.server import EmbeddedServer
from lakefs_gc_assets.embedded.session import session
from lakefs_gc_assets.errors import LogLine
from lakefs_gc_assets.settings import CONFIGURATION_VARIABLE

REPOSITORY = "sample"
ACCESS_KEY_ID = "AKIAEMBEDDEDPLAYGROUND"
_SECRET_VARIABLE = "LAKEFS_GC_PLAYGROUND_SECRET"  # noqa: S105
# Everybody knows it: the server that takes it listens on this machine alone.
_SECRET = "embedded-playground-secret"  # noqa: S105
_CONFIGURATION_FILE = "lakefs-gc.yaml"
_SOON = {"optimized_every_hours": 0.05, "sensor_interval_seconds": 10}
"""Who turns the sensor on sees an optimized run minutes later."""


@contextmanager
def playground(
    folder: Path,
    *,
    rules: RuleSet,
    objects: int,
    port: int,
    store_url: str = "",
    say: LogLine = click.echo,
) -> Iterator[dict[str, str]]:
    """Serves a sample repository from a folder, made at the first time; yields the environment that points to it.

    The configuration file lies in the folder; it names the secret's environment variable, not the secret.
    With a `store_url` such as s3://bucket/prefix, objects lie there.

    Args:
        say: is told each line that a person should read.
    """
    store = bucket.settings_from_environment(store_url) if store_url else None
    server = bucket.server(folder / "lakefs", rules, store_url, store, port=port, credentials=(ACCESS_KEY_ID, _SECRET))
    with server:
        if not _exists(server, REPOSITORY):
            sample = make_sample_repository(server, objects=objects, repository=REPOSITORY)
            say(f"made repository {REPOSITORY}: {len(sample.live)} live objects, {len(sample.garbage)} of garbage")
        file = folder / _CONFIGURATION_FILE
        content = configuration(server, REPOSITORY, store).model_dump(exclude_defaults=True)
        content["lakefs"]["secret_access_key"] = {"env": _SECRET_VARIABLE}
        content["automation"] = _SOON
        file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
        say(f"embedded lakeFS (no production server) at {server.url}, S3 gateway at {server.s3_url}")
        say(f"access key {ACCESS_KEY_ID}, secret key {_SECRET}")
        say(f"collect it, in another shell: {_SECRET_VARIABLE}={_SECRET} lakefs-gc run --config {file}")
        yield {CONFIGURATION_VARIABLE: str(file.resolve()), _SECRET_VARIABLE: _SECRET}


def _exists(server: EmbeddedServer, repository: str) -> bool:
    with session(server, repository) as api:
        return api.call("GET", "")[0] == 200
