"""Collections that delete while several clients upload, copy, rename, link, commit and reset."""

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from lakefs_sdk.exceptions import ApiException
from pyspark.sql import SparkSession

from lakefs_gc_assets.collector.records import report
from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs import running
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.extensions.playground.embedded.core import ServerSettings
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.extensions.playground.embedded.clients import models

_PATHS = 12
_PAUSE = 0.05


@dataclass
class Worker:
    """One user.

    `staged` and `committed` are the expected branch contents, `commits` the contents of each commit, by path.
    """

    server: EmbeddedServer
    repository: str
    branch: str
    staged: dict[str, bytes | None] = field(default_factory=dict)
    committed: dict[str, bytes] = field(default_factory=dict)
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    steps: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.branch)
        self._sdk: Any = clients.sdk(self.server)
        self._sdk.branches_api.create_branch(self.repository, models.BranchCreation(name=self.branch, source="main"))

    def shown(self) -> dict[str, bytes]:
        """Contents that the branch must show."""
        return {path: content for path, content in {**self.committed, **self.staged}.items() if content is not None}

    def work(self, ended: threading.Event) -> None:
        """Repeats random actions until told to stop."""
        things: list[Callable[[], object]] = [
            self._upload,
            self._upload,
            self._upload,
            self._upload_again,
            self._delete,
            self._copy,
            self._rename,
            self._link,
            self._commit,
            self._reset,
        ]
        while not ended.is_set():
            self._random.choice(things)()
            self.steps += 1
            time.sleep(_PAUSE)

    def _content(self) -> bytes:
        return f"{self.branch} {self.steps} ".encode() * self._random.randint(1, 40)

    def _path(self) -> str:
        return f"{self.branch}/{self._random.randrange(_PATHS)}"

    def _any(self) -> str | None:
        shown = sorted(self.shown())
        return self._random.choice(shown) if shown else None

    def _put(self, path: str, content: bytes) -> None:
        self._sdk.objects_api.upload_object(self.repository, self.branch, path, content=content)
        self.staged[path] = content

    def _upload(self) -> None:
        self._put(self._path(), self._content())

    def _upload_again(self) -> None:
        """Uploads the committed content at its path: the server does not list such a staged object."""
        if self.committed:
            path = self._random.choice(sorted(self.committed))
            self._put(path, self.committed[path])

    def _delete(self, path: str | None = None) -> None:
        path = path or self._any()
        if path is not None:
            self._sdk.objects_api.delete_object(self.repository, self.branch, path)
            self.staged[path] = None

    def _copy(self, source: str | None = None) -> bool:
        """Copies an object; returns False if there is none, or the drawn target is the source."""
        source, target = source or self._any(), self._path()
        if source is None or source == target:
            return False
        content = self.shown()[source]
        body = models.ObjectCopyCreation(src_path=source)
        self._sdk.objects_api.copy_object(self.repository, self.branch, target, body)
        self.staged[target] = content
        return True

    def _rename(self) -> None:
        source = self._any()
        if source is not None and self._copy(source):
            self._delete(source)

    def _link(self) -> None:
        path, content = self._path(), self._content()
        issued = self._sdk.staging_api.get_physical_address(self.repository, self.branch, path, presign=True)
        with urlopen(Request(issued.presigned_url, content, method="PUT")) as answer:
            etag = answer.headers["ETag"].strip('"')
        if self._random.random() < 0.3:
            return
        body = models.StagingMetadata(staging=issued, checksum=etag, size_bytes=len(content))
        self._sdk.staging_api.link_physical_address(self.repository, self.branch, path, body)
        self.staged[path] = content

    def _commit(self) -> None:
        try:
            made = self._sdk.commits_api.commit(self.repository, self.branch, models.CommitCreation(message="work"))
        except ApiException as refusal:
            # The branch equals the last commit.
            if refusal.status != 400:
                raise
        else:
            self.committed = self.shown()
            self.commits[made.id] = dict(self.committed)
        self.staged = {path: content for path, content in self.staged.items() if self.committed.get(path) != content}

    def _reset(self) -> None:
        if self._random.random() < 0.3:
            self._sdk.branches_api.reset_branch(self.repository, self.branch, models.ResetCreation(type="reset"))
            self.staged = {}

    def lost(self) -> list[str]:
        """Places whose content differs from the written one: on the branch, and in each commit."""
        found = [
            f"{self.branch}: {path}"
            for path, content in self.shown().items()
            if self._read(self.branch, path) != content
        ]
        for commit, held in self.commits.items():
            found += [f"{commit}: {path}" for path, content in held.items() if self._read(commit, path) != content]
        return found

    def _read(self, reference: str, path: str) -> bytes | None:
        try:
            return bytes(self._sdk.objects_api.get_object(self.repository, reference, path))
        except ApiException:
            return None


RUNS = 3
STEPS = 100
"""Minimum steps of all clients; the test continues until then, and until something is deleted."""
WORKERS = 4
# The day of grace is 15 seconds here: objects older than that and the skew may go while the clients are at work.
LINK_SECONDS = 15


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_nothing_live_is_lost(spark: SparkSession, tmp_path: Path) -> None:
    settings = ServerSettings(rules="seed", link_seconds=LINK_SECONDS, copy_seconds=LINK_SECONDS * 4)
    with EmbeddedServer(tmp_path, settings=settings) as server:
        repository = clients.repository(server, "busy")
        clients.upload(server, "first", b"first", name=repository)
        clients.commit(server, "first", name=repository)
        workers = [Worker(server, repository, f"worker-{number}") for number in range(WORKERS)]
        given = demo.configuration(server, repository)
        collection = CollectionSettings(
            **{
                **given.collection.model_dump(),
                "min_age_hours": 0,
                "clock_skew_minutes": 0.1,
                "max_candidate_share": 1,
                # A hard reset by a worker discards most uncommitted changes.
                "max_uncommitted_loss_share": 1,
                "sweep": True,
            }
        )
        loaded = Loaded(given.model_copy(update={"collection": collection}), {})
        ended = threading.Event()
        deleted, runs = 0, 0

        def steps() -> int:
            return sum(worker.steps for worker in workers)

        with ThreadPoolExecutor(WORKERS) as pool, running.instance() as home:
            working = [pool.submit(worker.work, ended) for worker in workers]
            try:
                while runs < RUNS or not deleted or steps() < STEPS:
                    for worked in working:
                        if worked.done():
                            worked.result()
                    run_id, error = running.execute(loaded, running.AskedRun(), print, SystemClock(), home)
                    assert error is None
                    found = report.read(Collector.from_loaded(loaded, SystemClock()).open().store, run_id)
                    assert found is not None and found.success
                    deleted, runs = deleted + found.counts["deleted"], runs + 1
            finally:
                ended.set()
            for worked in working:
                worked.result()
        assert [lost for worker in workers for lost in worker.lost()] == []
