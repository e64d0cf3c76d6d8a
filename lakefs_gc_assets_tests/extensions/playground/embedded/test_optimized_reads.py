"""Ranges that an optimized run with candidates reads again after an earlier run."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakefs_gc_assets.collector.live import facts, references
from lakefs_gc_assets.collector.live.facts_of_ranges import METARANGES, SIZES
from lakefs_gc_assets.collector.live.live_files import LiveFiles
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.extensions.playground.embedded.test_twins import configuration
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns

DAYS = timedelta(days=1)
BRANCHES = tuple(f"b{number}" for number in range(6))


class Repository:
    """A repository with a branch for each of six sizes; reads of all runs are counted.

    Attributes:
        read: ranges of branch heads that the last run read for its candidates.
        heads: number of metaranges of branch heads that it read for its candidates.
    """

    def __init__(self, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = server
        self.store = LocalStore(server.objects_folder / "repo")
        self.read: list[str] = []
        self.lines: list[str] = []
        self.heads = 0
        head_entries = LiveFiles.head_entries

        def counted(files: LiveFiles, range_id: str, *more: object) -> object:
            self.read.append(range_id)
            return head_entries(files, range_id, *more)

        metarange, ranges_of_heads = LiveFiles.metarange, references.ranges_of_heads

        def counted_head(files: LiveFiles, metarange_id: str) -> pa.Table:
            self.heads += 1
            return metarange(files, metarange_id)

        def counting(*about: Any, **more: Any) -> Iterator[tuple[str, pa.Table]]:
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(LiveFiles, "metarange", counted_head)
                yield from ranges_of_heads(*about, **more)

        monkeypatch.setattr(LiveFiles, "head_entries", counted)
        monkeypatch.setattr(references, "ranges_of_heads", counting)
        monkeypatch.setattr(references, "HEADS_WORTH_RECORDING", 1)

    def upload(self, path: str, size: int, days: float, branch: str = "main") -> None:
        """Stages an object of `size` bytes."""
        with self.server.clock.at(datetime.now(UTC) - days * DAYS):
            clients.upload(self.server, path, b"x" * size, branch=branch)

    def leave_garbage(self, path: str, size: int, days: float) -> None:
        """Stages an object and drops it."""
        self.upload(path, size, days)
        assert clients.call(self.server, "DELETE", "/repositories/repo/branches/main/objects", path=path)[0] == 204

    def collect(self, flow: Flow) -> Report:
        """One run that sweeps."""
        self.read.clear()
        self.heads = 0
        runs = ArrowRuns(Loaded(configuration(self.server), {}))
        found = runs.collect(flow)
        self.lines = runs.lines
        assert found.flow == flow.value, found.why_clean
        return found


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    with EmbeddedServer(tmp_path) as server:
        clients.repository(server)
        made = Repository(server, monkeypatch)
        for size, branch in enumerate(BRANCHES, start=1):
            clients.call(server, "POST", "/repositories/repo/branches", {"name": branch, "source": "main"})
            made.upload("object", size, 30, branch)
            clients.commit(server, branch, branch=branch)
        made.leave_garbage("first", 100, 30)
        assert made.collect(Flow.CLEAN).counts["deleted"] == 1
        yield made


def test_candidates_read_the_ranges_that_have_their_size_and_no_others(repository: Repository) -> None:
    repository.leave_garbage("second", 4, 3)
    assert repository.collect(Flow.OPTIMIZED).counts["deleted"] == 1
    assert len(repository.read) == 1
    # Later commits are recorded as well, and earlier records stay known.
    repository.upload("later", 300, 2.5)
    clients.commit(repository.server, "later")
    repository.leave_garbage("third", 300, 2.5)
    repository.leave_garbage("fourth", 5, 2.5)
    assert repository.collect(Flow.OPTIMIZED).counts["deleted"] == 2
    assert len(repository.read) == 2


def test_without_facts_every_range_is_read_and_it_is_reported(repository: Repository) -> None:
    for file in facts.files_of(SIZES, facts.list_files(repository.store, facts.ROOT)):
        repository.store.put(file.key, b"damaged")
    repository.leave_garbage("second", 200, 3)
    assert repository.collect(Flow.OPTIMIZED).counts["deleted"] == 1
    assert len(set(repository.read)) == len(BRANCHES)
    assert any(" damaged; the run reads" in line or "cannot be used" in line for line in repository.lines)


def test_heads_that_nobody_moved_are_not_read_again(repository: Repository) -> None:
    # The main branch has no commit of objects yet.
    assert repository.heads == len(BRANCHES)
    repository.leave_garbage("second", 200, 3)
    assert repository.collect(Flow.OPTIMIZED).counts["deleted"] == 1
    assert (repository.heads, repository.read) == (0, []), "no entry has its size"
    # A run without candidates leaves the records unchanged.
    assert repository.collect(Flow.OPTIMIZED).counts["candidates"] == 0
    repository.upload("later", 300, 2.5, BRANCHES[0])
    clients.commit(repository.server, "later", branch=BRANCHES[0])
    repository.leave_garbage("third", 400, 2.5)
    assert repository.collect(Flow.OPTIMIZED).counts["deleted"] == 1
    assert repository.heads == 1


def test_without_facts_every_head_is_read_and_it_is_reported(repository: Repository) -> None:
    for file in facts.files_of(METARANGES, facts.list_files(repository.store, facts.ROOT)):
        repository.store.put(file.key, b"damaged")
    repository.leave_garbage("second", 4, 3)
    assert repository.collect(Flow.OPTIMIZED).counts["deleted"] == 1
    assert (repository.heads, len(repository.read)) == (len(BRANCHES), 1)
    assert any("reading these heads again" in line or " damaged; the run reads" in line for line in repository.lines)
