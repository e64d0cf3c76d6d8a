"""Serving a folder until somebody stops it."""

import threading
from collections.abc import Callable
from pathlib import Path

from lakefs_gc_assets.embedded import repositories
from lakefs_gc_assets.embedded.core import RuleSet
from lakefs_gc_assets.embedded.sample import make_sample_repository
from lakefs_gc_assets.embedded.server import EmbeddedServer

SAMPLE_REPOSITORY = "sample"


def serve(
    folder: Path,
    *,
    rules: RuleSet = "oss",
    host: str = "127.0.0.1",
    port: int = 8000,
    s3_port: int = 8001,
    objects: int = 500,
    say: Callable[[str], None] = print,
    stop: threading.Event | None = None,
) -> None:
    """Serves a folder until `stop` is set or the process is interrupted; says where, and with which credentials.

    A folder without the repository `sample` is given one of about `objects` objects; 0 for none.
    """
    with EmbeddedServer(folder, rules=rules, host=host, port=port, s3_port=s3_port) as server:
        say(f"embedded lakeFS, rule set {rules}; no production server")
        say(f"API {server.url}, S3 gateway {server.s3_url}, objects in {server.objects_folder}")
        say(f"access key {server.access_key_id}, secret key {server.secret_access_key}")
        known = {repository.id for repository in repositories.every(server.core)}
        if objects and SAMPLE_REPOSITORY not in known:
            sample = make_sample_repository(server, objects=objects, repository=SAMPLE_REPOSITORY)
            say(f"repository {SAMPLE_REPOSITORY}: {len(sample.live)} live objects, {len(sample.garbage)} garbage")
        try:
            (stop or threading.Event()).wait()
        except KeyboardInterrupt:
            say("stopped")
