"""The demonstration on an embedded lakeFS server: garbage and live objects of every kind, collected before your eyes.

Afterwards every live object is read back through the API, byte for byte.
"""

import time
from pathlib import Path

from rich.console import Console

from lakefs_gc_assets.collection.clock import SystemClock
from lakefs_gc_assets.configuration import CollectionSettings, Configuration, LakeFSSettings, Loaded, StoreSettings
from lakefs_gc_assets.demonstration import demonstrate
from lakefs_gc_assets.embedded.core import RuleSet
from lakefs_gc_assets.embedded.sample import (
    GarbageObject,
    Sample,
    link_pending,
    make_sample_repository,
    rename,
    unreadable,
)
from lakefs_gc_assets.embedded.server import EmbeddedServer

_WHEN_STAGED_IS_KNOWN = "uncommitted_df: uncommitted_df:"


def configuration(server: EmbeddedServer, repository: str) -> Configuration:
    """Settings that collect a repository of an embedded server, without waits."""
    return Configuration(
        repository=repository,
        lakefs=LakeFSSettings(
            endpoint=server.url, access_key_id=server.access_key_id, secret_access_key=server.secret_access_key
        ),
        store=StoreSettings(local_root=str(server.objects_folder)),
        collection=CollectionSettings(wait_before_dump_seconds=0, wait_before_recheck_seconds=0),
    )


def show(folder: Path, rules: RuleSet, objects: int, console: Console) -> bool:
    """Makes the repository in a folder, collects it, and says what is left; returns whether all is as it must be.

    Raises CollectionError where a run fails.
    """
    began = time.monotonic()
    with EmbeddedServer(folder, rules=rules) as server:
        sample = make_sample_repository(server, objects=objects)
        console.print(
            f"an embedded lakeFS (no production server) at {server.url}, rule set {rules}: repository "
            f"{sample.repository!r} with {len(sample.live):,} live objects and {len(sample.garbage):,} objects of "
            "garbage, up to 40 days old; waits are zero",
            soft_wrap=True,
        )
        why = {garbage.address: garbage.kind for garbage in sample.garbage}
        users = _Users(server, sample, console)
        loaded = Loaded(configuration(server, sample.repository), {})
        shown = demonstrate(loaded, SystemClock(), console, why, users.work)
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
    return not lost and not left and not shown.failed and users.worked


def still_stored(server: EmbeddedServer, sample: Sample) -> list[GarbageObject]:
    """Objects of garbage that the store still has."""
    store = server.core.blockstore.open(f"{server.core.blockstore.scheme}{sample.repository}")
    stored = {key for batch in store.list("data/") for key in batch.column("key").to_pylist()}
    return [garbage for garbage in sample.garbage if garbage.address in stored]


class _Users:
    """People who go on working while the collection runs: they rename staged objects and link uploaded ones."""

    def __init__(self, server: EmbeddedServer, sample: Sample, console: Console) -> None:
        self._server, self._sample, self._console = server, sample, console
        self.worked = False

    def work(self, line: str) -> None:
        """Does their work once, right after the collector has read what is staged."""
        if self.worked or _WHEN_STAGED_IS_KNOWN not in line:
            return
        renamed = len([rename(self._server, self._sample, live) for live in list(self._sample.to_rename)])
        linked = len(self._sample.pending)
        link_pending(self._server, self._sample)
        self._console.print(f"  meanwhile: {renamed} objects renamed, {linked} uploaded ones linked", style="italic")
        self.worked = True
