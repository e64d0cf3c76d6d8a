"""Findings and comparisons of a recheck. `test_run_guards` tests that a run calls it, and then deletes nothing."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pyarrow as pa
import pytest

from lakefs_gc_assets.collector.engine.local import ArrowRows, LocalEngine
from lakefs_gc_assets.collector.engine.port import nullable
from lakefs_gc_assets.collector.frame.frames import COMMITTED_DF, UNCOMMITTED_DF, F, Frame
from lakefs_gc_assets.collector.live.current import Committed, Uncommitted
from lakefs_gc_assets.collector.live.uncommitted import Prepared
from lakefs_gc_assets.collector.records import tables
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.retention.commits import CommitSource
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.sweep import recheck
from lakefs_gc_assets.errors import CorruptFile, GuardTripped
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.lakefs.api.models import RepositoryFacts
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage.opening import StoreOpener
from lakefs_gc_assets_tests.collector.made_frames import COMMITTED_FIGURES, UNCOMMITTED_FIGURES
from lakefs_gc_assets_tests.collector.made_steps import made_step, opened_by
from lakefs_gc_assets_tests.collector.scripted import NOW, Script, ScriptedApi
from lakefs_gc_assets_tests.spark.frame_rows import live


@pytest.fixture
def repository(tmp_path: Path) -> OpenRepository:
    """A repository in a folder, for which no uncommitted object may be lost."""
    (tmp_path / "repo").mkdir()
    opener = StoreOpener(StoreSettings(local_root=str(tmp_path)), "local://repo")
    return opened_by(opener, max_uncommitted_loss_share=0)


PREPARED = Prepared(NOW, NOW, ("run",), ("one", "two"), 1)


def rows(*names: str) -> ArrowRows:
    """Live addresses."""
    table = pa.Table.from_pylist([live(address) for address in names], schema=nullable(COMMITTED_DF.schema))
    return LocalEngine().table(table)


def put(step: Step[ArrowRows], kind: Frame[F], names: Sequence[str], figures: F) -> None:
    """Stores findings of the mark."""
    step.complete(kind, figures, step.write(kind, rows(*names)))


class TestFindLiveAgain:
    """The mark found `a` uncommitted and `b` committed; `a` is still uncommitted, and a new commit holds `c`."""

    @pytest.fixture
    def step(self, repository: OpenRepository, monkeypatch: pytest.MonkeyPatch) -> Step[ArrowRows]:
        """A recheck whose server has no other answers."""
        step = made_step(LocalEngine(), repository)
        read = tables.write_run_ids(repository.store, step.plan.run_id, step.plan.attempt, ["b" * 64])
        put(step, UNCOMMITTED_DF, ["a"], UNCOMMITTED_FIGURES)
        put(step, COMMITTED_DF, ["b"], replace(COMMITTED_FIGURES, read_sha256=read))
        prepared = Uncommitted((PREPARED,), (rows("a"),), NOW)
        monkeypatch.setattr(recheck, "prepare_uncommitted", lambda step, samples: prepared)
        monkeypatch.setattr(recheck, "ask_committed", self.committed_since)
        return step

    @staticmethod
    def committed_since(step: Step[ArrowRows], until: datetime, known: frozenset[str], before: None) -> Committed:
        assert until == NOW and known == {"b" * 64} and before is None
        own = SimpleNamespace(commits=1234, heads={})
        source = CommitSource.METADATA_FOLDER.value
        found = SimpleNamespace(
            own=own,
            source=source,
            definition=None,
            count=1,
            waited=7.0,
            addresses=lambda step: [rows("c")],
            provisional_addresses=lambda step: [rows("d")],
        )
        return cast(Committed, found)

    def test_what_is_uncommitted_and_what_was_committed_since_is_live(self, step: Step[ArrowRows]) -> None:
        lines: list[str] = []
        found = recheck.find_live_again(replace(step, log=lines.append), ())
        assert sorted(step.engine.collect(found).column("address").to_pylist()) == ["a", "c", "d"]
        assert lines == ["recheck: 2 files of uncommitted data, 1,234 commits"]

    def test_waits_are_told_apart_from_work(self, step: Step[ArrowRows]) -> None:
        recheck.find_live_again(step, ())
        assert step.waited == 7

    def test_ids_of_what_was_read_are_those_of_the_mark(self, step: Step[ArrowRows]) -> None:
        tables.write_run_ids(step.repository.store, step.plan.run_id, step.plan.attempt, ["b" * 64, "c" * 64])
        with pytest.raises(CorruptFile, match="checksum"):
            recheck.find_live_again(step, ())


def test_a_repository_elsewhere_on_the_bucket_does_no_harm(repository: OpenRepository) -> None:
    other = RepositoryFacts("other", "s3://bucket/other", "main", False)
    api = ScriptedApi(repository_lists=Script((other,)))
    step = made_step(LocalEngine(), replace(repository, api=api, namespace=Namespace.parse("s3://bucket/repo")))
    recheck.require_own_namespace(step)


class Noting(LocalEngine):
    """Records the columns and stated sizes of subtractions."""

    def __init__(self) -> None:
        super().__init__()
        self.columns: list[list[str]] = []
        self.counts: list[int] = []

    def without(self, rows: ArrowRows, *live: ArrowRows, count: int, least: int = 0) -> ArrowRows:
        self.columns.extend(each.schema.names for each in (rows, *live))
        self.counts.append(count)
        return super().without(rows, *live, count=count)


class TestRequireUncommittedKept:
    """At the recheck, `staged` addresses are still uncommitted, and commits hold the `committed` ones."""

    def require(
        self, repository: OpenRepository, marked: Sequence[str], staged: Sequence[str], committed: Sequence[str]
    ) -> Noting:
        """Checks two files of uncommitted data and 40 new committed addresses; returns the engine's recorded calls."""
        engine = Noting()
        step = made_step(engine, repository)
        put(step, UNCOMMITTED_DF, marked, UNCOMMITTED_FIGURES)
        put(step, COMMITTED_DF, committed, COMMITTED_FIGURES)
        prepared = Uncommitted[ArrowRows]((PREPARED,), (), NOW)
        found = cast(Committed, SimpleNamespace(count=40))
        recheck.require_uncommitted_kept(step, engine.select(rows(*staged), "address"), prepared, found)
        return engine

    def test_where_all_are_uncommitted_still_what_was_committed_is_not_read(self, repository: OpenRepository) -> None:
        assert len(self.require(repository, ["a", "b"], staged=["b", "a", "c"], committed=["d"]).counts) == 1

    def test_each_may_be_uncommitted_still_or_committed(self, repository: OpenRepository) -> None:
        engine = self.require(repository, ["a", "b", "c"], staged=["a"], committed=["b", "c", "d", "e"])
        assert engine.columns == [["address"]] * 4
        assert engine.counts == [3 + 2 * 250_000 + 40, 2 + 4]

    @pytest.mark.parametrize(("staged", "committed"), [([], ["b"]), (["a"], []), (["a"], ["c"]), (["c"], ["b"])])
    def test_one_that_is_neither_is_lost(
        self, repository: OpenRepository, staged: list[str], committed: list[str]
    ) -> None:
        with pytest.raises(GuardTripped, match="1 of 2 uncommitted addresses are gone since the mark"):
            self.require(repository, ["a", "b"], staged, committed)

    def test_where_nothing_was_uncommitted_nothing_is_asked(self, repository: OpenRepository) -> None:
        assert self.require(repository, [], staged=[], committed=[]).counts == []
