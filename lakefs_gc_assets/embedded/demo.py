"""The demonstration on an embedded lakeFS server: garbage and live objects of every kind, collected before your eyes.

Afterwards every live object is read back through the API, byte for byte.
"""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

from rich.console import Console

from lakefs_gc_assets.collector.clock import SystemClock
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.embedded import bucket
from lakefs_gc_assets.embedded.core import RuleSet
from lakefs_gc_assets.embedded.demonstration import demonstrate
from lakefs_gc_assets.embedded.months import make_repository_of_months
from lakefs_gc_assets.embedded.sample import (
    GarbageObject,
    Sample,
    copy,
    link_pending,
    make_sample_repository,
    rename,
    unreadable,
)
from lakefs_gc_assets.embedded.server import EmbeddedServer
from lakefs_gc_assets.settings import CollectionSettings, Configuration, LakeFSSettings, Loaded, StoreSettings

_STAGED_IS_KNOWN = re.compile(r" uncommitted_df: [\d,]+ rows in ")


@contextmanager
def months(folder: Path) -> Iterator[Loaded]:
    """Serves the sample repository with commits of a year from a folder; yields settings of the collector for it."""
    with EmbeddedServer(folder / "lakefs") as server:
        make_repository_of_months(server)
        policy = folder / "policy.yaml"
        policy.write_text("stale_after: 90d\n", encoding="utf-8")
        made = configuration(server, "months")
        collection = made.collection.model_copy(update={"retention_policy": str(policy)})
        yield Loaded(made.model_copy(update={"collection": collection}), {})


def configuration(server: EmbeddedServer, repository: str, store: StoreSettings | None = None) -> Configuration:
    """Settings that collect a repository of an embedded server, without waits.

    Args:
        store: of the bucket that the server's objects lie in; there they count as old soon.
    """
    waits = {"wait_before_dump_seconds": 0, "wait_before_recheck_seconds": 0}
    ages = {"min_age_hours": 0, "clock_skew_minutes": bucket.SKEW / timedelta(minutes=1)} if store else {}
    return Configuration(
        repository=repository,
        lakefs=LakeFSSettings(
            endpoint=server.url, access_key_id=server.access_key_id, secret_access_key=server.secret_access_key
        ),
        store=store or StoreSettings(local_root=str(server.objects_folder.resolve())),
        collection=CollectionSettings.model_validate(waits | ages),
    )


def show(folder: Path, rules: RuleSet, objects: int, console: Console, store_url: str = "") -> bool:
    """Makes the repository in a folder, collects it, and says what is left; returns whether all is as it must be.

    With a `store_url` such as s3://bucket/prefix, objects lie there.

    Raises CollectionError where a run fails.
    """
    began = time.monotonic()
    store = bucket.settings_from_environment(store_url) if store_url else None
    with bucket.server(folder, rules, store_url, store) as server:
        console.print(f"making a repository of about {objects:,} objects, call by call")
        sample = make_sample_repository(server, objects=objects, repository=sample_name(store_url))
        console.print(
            f"an embedded lakeFS (no production server) at {server.url}, rule set {rules}: repository "
            f"{sample.repository!r} with {len(sample.live):,} live objects and {len(sample.garbage):,} objects of "
            + ("garbage, up to 40 days old; waits are zero" if store is None else f"garbage, in {store_url}"),
            soft_wrap=True,
        )
        if store is not None:
            link_pending(server, sample)
            console.print(f"nothing in a bucket can be made to look old: waiting {bucket.AGING.seconds} s")
            time.sleep(bucket.AGING.total_seconds())
        why = {garbage.address: garbage.kind for garbage in sample.garbage}
        users = _Users(server, sample, console)
        loaded = Loaded(configuration(server, sample.repository, store), {})
        shown = demonstrate(loaded, SystemClock(), console, why, users.work, then=(Flow.OPTIMIZED,))
        lost = unreadable(server, sample)
        left = still_stored(server, sample)
    for live in lost:
        console.print(f"LOST: {live.kind}, {live.path} of {live.reference} at {live.address}", style="bold red")
    for garbage in left:
        console.print(f"still there: {garbage.kind}, {garbage.address}", style="yellow")
    console.print(
        f"{len(sample.live) - len(lost):,} of {len(sample.live):,} live objects answered, "
        f"{len(sample.garbage) - len(left):,} of {len(sample.garbage):,} objects of garbage are gone, "
        f"in {time.monotonic() - began:.0f} s",
        style="bold",
        soft_wrap=True,
    )
    as_asked = shown.flows == (Flow.CLEAN, Flow.OPTIMIZED)
    return not lost and not left and not shown.failed and users.worked and as_asked


def sample_name(store_url: str) -> str:
    """The repository's name: in a bucket, which may hold an earlier one, a new one each time."""
    return f"sample-{uuid4().hex[:8]}" if store_url else "sample"


def still_stored(server: EmbeddedServer, sample: Sample) -> list[GarbageObject]:
    """Objects of garbage that the store still has."""
    store = server.core.blockstore.open(f"{server.core.blockstore.scheme}{sample.repository}")
    stored = {key for batch in store.list("data/") for key in batch.column("key").to_pylist()}
    return [garbage for garbage in sample.garbage if garbage.address in stored]


class _Users:
    """People who go on working while the collection runs: they copy and rename staged objects, link uploaded ones."""

    def __init__(self, server: EmbeddedServer, sample: Sample, console: Console) -> None:
        self._server, self._sample, self._console = server, sample, console
        self.worked = False

    def work(self, line: str) -> None:
        """Does their work once, right after the collector has read what is staged."""
        if self.worked or not _STAGED_IS_KNOWN.search(line):
            return
        moved, linked = list(self._sample.to_rename), len(self._sample.pending)
        for live in moved:
            copy(self._server, self._sample, live, f"{live.path}-copy")
            rename(self._server, self._sample, live)
        link_pending(self._server, self._sample)
        self._console.print(
            f"  meanwhile: {len(moved)} objects copied, {len(moved)} renamed, {linked} uploaded ones linked",
            style="italic",
        )
        self.worked = True
