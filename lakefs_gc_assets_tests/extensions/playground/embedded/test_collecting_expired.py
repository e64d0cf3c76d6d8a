"""Sweeps by retention rules, and references from another repository, on the embedded server through its API."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lakefs_gc_assets.collector.engine.local import ArrowRows
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import CANDIDATES_DF
from lakefs_gc_assets.collector.live.current import Uncommitted, prepare_uncommitted
from lakefs_gc_assets.collector.records.outcomes import Why
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.sweep import recheck
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.extensions.playground.embedded.core import ServerSettings
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets_tests.collector.live.test_known_metaranges import metaranges_read
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.extensions.playground.embedded.routes import ROUTES
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns
from lakefs_gc_assets_tests.runs.retained_repository import RetainedRepository

DAYS = timedelta(days=1)


def collected(server: EmbeddedServer, repository: str, flow: Flow, **changes: Any) -> Report:
    """The report of a sweeping run."""
    given = demo.configuration(server, repository)
    changes = {"sweep": True, "max_candidate_share": 1.0, **changes}
    collection = given.collection.model_copy(update=changes)
    found = ArrowRuns(Loaded(given.model_copy(update={"collection": collection}), {})).collect(flow)
    assert found.success
    return found


def reasons(server: EmbeddedServer, repository: str, run_id: str) -> set[str]:
    """Reasons why the candidates of a run are garbage, as recorded by the run."""
    opened = Collector.from_loaded(Loaded(demo.configuration(server, repository), {}), SystemClock()).open()
    frame = StoredFrame.from_run(opened.store, opened.opener, run_id, CANDIDATES_DF)
    return set(frame.table().column("why").to_pylist())


def status_of(server: EmbeddedServer, reference: str, path: str, repository: str = "repo") -> int:
    """The status of a read of an object."""
    return clients.call(server, "GET", f"/repositories/{repository}/refs/{reference}/objects", path=path)[0]


def test_what_only_expired_commits_had_is_gone_and_everything_else_answers(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path, settings=ServerSettings(), routes=ROUTES) as server:
        now = datetime.now(UTC)
        with server.clock.at(now - 30 * DAYS):
            repository = clients.repository(server)
            for name in ("replaced", "removed", "tagged", "lasting"):
                clients.upload(server, name, name.encode())
            old = clients.commit(server, "old")["id"]
        with server.clock.at(now - 20 * DAYS):
            clients.upload(server, "replaced", b"anew")
            path = f"/repositories/{repository}/branches/main/objects"
            assert clients.call(server, "DELETE", path, path="removed")[0] == 204
            clients.upload(server, "between", b"between")
            between = clients.commit(server, "between")["id"]
        with server.clock.at(now - 10 * DAYS):
            assert clients.call(server, "DELETE", path, path="between")[0] == 204
            new = clients.commit(server, "new")["id"]
            clients.upload(server, "staged", b"staged")
        rules = {"default_retention_days": 12, "branches": []}
        assert clients.call(server, "PUT", f"/repositories/{repository}/settings/gc_rules", rules)[0] == 204

        assert collected(server, repository, Flow.CLEAN).counts["deleted"] == 0
        found = collected(server, repository, Flow.COMMITTED)

        # `between` was replaced 10 days ago, within the 12 days; `old` 20 days ago.
        assert found.counts["deleted"] == found.counts["candidates"] == 2
        assert reasons(server, repository, found.run_id) == {Why.EXPIRED}
        expired = {"replaced": 410, "removed": 410}
        for name in ("replaced", "removed", "tagged", "lasting"):
            assert status_of(server, old, name) == expired.get(name, 200), name
        for reference, names in ((between, ("replaced", "between", "lasting")), (new, ("replaced", "tagged"))):
            assert [status_of(server, reference, name) for name in names] == [200] * len(names)
        assert status_of(server, "main", "staged") == 200
        listed = clients.call(server, "GET", f"/repositories/{repository}/refs/main/commits")[1]["results"]
        assert [old, between, new] == [each["id"] for each in listed if each["id"] in (old, between, new)][::-1]

        assert collected(server, repository, Flow.COMMITTED).counts["candidates"] == 0
        assert collected(server, repository, Flow.UNIFIED).counts["deleted"] == 0


@pytest.mark.parametrize(("flow", "commit_dates"), [(Flow.COMMITTED, "written"), (Flow.UNIFIED, "claimed")])
def test_what_a_backdated_commit_replaced_a_moment_ago_stays(tmp_path: Path, flow: Flow, commit_dates: str) -> None:
    """Three days ago A was committed under its true date, and right after it B and C under dates of years ago."""
    with EmbeddedServer(tmp_path, routes=ROUTES) as server:
        made, now = RetainedRepository(server, tmp_path), datetime.now(UTC)
        with server.clock.at(now - 3 * DAYS):
            clients.repository(server)
            for name, claimed_days in (("A", 3), ("B", 2000), ("C", 1700)):
                made.put(name)
                made.commit(name, 3, claimed_days=claimed_days)
        made.rules(21)
        found = collected(server, "repo", flow, commit_dates=commit_dates)
        read = [status_of(server, made.commits[name], "file") for name in "ABC"]
        # The initial commit of the repository holds nothing, and stays as well.
        alone = found.counts["commits_by_files_alone"]
        warned = any(" only because their files were written later" in warning for warning in found.warnings)
        if commit_dates == "written":
            assert (read, found.counts["deleted"], alone, warned) == ([200, 200, 200], 0, 2, True)
        else:
            assert (read, found.counts["deleted"], alone, warned) == ([410, 410, 200], 2, 0, False)
            return
        # The period since they were written is over.
        made.rules(2)
        again = collected(server, "repo", flow)
        assert [status_of(server, made.commits[name], "file") for name in "ABC"] == [410, 410, 200]
        assert (again.counts["deleted"], again.counts["commits_by_files_alone"]) == (2, 0)


def test_a_metarange_is_read_once_in_a_run_and_by_those_that_build_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = metaranges_read(monkeypatch)
    with EmbeddedServer(tmp_path, settings=ServerSettings(), routes=ROUTES) as server:
        now = datetime.now(UTC)
        with server.clock.at(now - 50 * DAYS):
            repository = clients.repository(server)
        rules = {"default_retention_days": 15, "branches": []}
        assert clients.call(server, "PUT", f"/repositories/{repository}/settings/gc_rules", rules)[0] == 204
        made: list[str] = []

        def commit(days: int) -> None:
            with server.clock.at(now - days * DAYS):
                clients.upload(server, "replaced", str(days).encode())
                made.append(clients.commit(server, f"commit {days}")["meta_range_id"])

        def collect(flow: Flow, metaranges: list[str], deleted: int, heads: list[str] | None = None) -> Report:
            """A run that reads exactly these metaranges, once each, including its recheck.

            Args:
                heads: metaranges of a new head and of the base run's head, searched for lost objects of heads.
            """
            read.clear()
            found = collected(server, repository, flow)
            assert sorted(read) == sorted([*metaranges, *(heads or [])])
            assert found.counts["deleted"] == deleted
            return found

        # Commits were replaced 30 and 20 days ago, and then 5 and 4.
        for days in (40, 30, 20):
            commit(days)
        full = collect(Flow.UNIFIED, made, 2)
        commit(5)
        assert collect(Flow.UNIFIED, made[-1:], 0, made[-2:]).base_run == full.run_id
        rules["default_retention_days"] = 1
        assert clients.call(server, "PUT", f"/repositories/{repository}/settings/gc_rules", rules)[0] == 204
        collect(Flow.UNIFIED, [], 1)
        commit(4)
        everything = collect(Flow.COMMITTED, made, 1)
        # Expired commits are read once, and live commits in each run.
        again = collect(Flow.COMMITTED, made[-1:], 0)
        assert (again.base_run, again.counts["listed"]) == (everything.run_id, 0)
        commit(3)
        last = collect(Flow.COMMITTED, made[-1:], 1, made[-2:])
        assert (last.base_run, last.counts["listed"]) == (again.run_id, 1)


def test_a_branch_made_on_an_expired_commit_after_the_mark_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Includes a branch that is gone when the recheck reads refs: its objects may be staged elsewhere."""
    with EmbeddedServer(tmp_path, settings=ServerSettings(), routes=ROUTES) as server:
        now = datetime.now(UTC)
        with server.clock.at(now - 30 * DAYS):
            repository = clients.repository(server)
            clients.upload(server, "replaced", b"old")
            old = clients.commit(server, "old")["id"]
        with server.clock.at(now - 25 * DAYS):
            clients.upload(server, "replaced", b"less old")
            less_old = clients.commit(server, "less old")["id"]
        with server.clock.at(now - 20 * DAYS):
            clients.upload(server, "replaced", b"anew")
            clients.commit(server, "new")
        rules = {"default_retention_days": 12, "branches": []}
        assert clients.call(server, "PUT", f"/repositories/{repository}/settings/gc_rules", rules)[0] == 204
        given = demo.configuration(server, repository)
        collection = given.collection.model_copy(update={"sweep": True, "max_candidate_share": 1.0})
        loaded = Loaded(given.model_copy(update={"collection": collection}), {})

        def branching(step: str) -> None:
            if step == "candidates":
                for branch in ({"name": "rescued", "source": old}, {"name": "shown", "source": less_old}):
                    assert clients.call(server, "POST", f"/repositories/{repository}/branches", branch)[0] == 201

        def prepared(step: Step[ArrowRows], **named: Any) -> Uncommitted[ArrowRows]:
            found = prepare_uncommitted(step, **named)
            clients.call(server, "DELETE", f"/repositories/{repository}/branches/shown")
            return found

        monkeypatch.setattr(recheck, "prepare_uncommitted", prepared)
        found = ArrowRuns(loaded, between=branching).collect(Flow.COMMITTED)
        assert (found.counts["candidates"], found.counts["kept_live"], found.counts["deleted"]) == (2, 2, 0)
        assert status_of(server, "rescued", "replaced") == 200
        assert status_of(server, "shown", "replaced") == 404
        assert status_of(server, less_old, "replaced") == 200


def test_references_of_repositories_that_are_named_count(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path, settings=ServerSettings(), routes=ROUTES) as server:
        with server.clock.at(datetime.now(UTC) - 30 * DAYS):
            repository = clients.repository(server)
            clients.upload(server, "lasting", b"lasting")
            clients.commit(server, "first")
            lent = clients.upload(server, "lent", b"lent")
            path = f"/repositories/{repository}/branches/main/objects"
            assert clients.call(server, "DELETE", path, path="lent")[0] == 204
            other = clients.repository(server, "other")
            physical = f"{server.core.blockstore.scheme}{repository}/{lent}"
            stage = {"physical_address": physical, "checksum": "0" * 32, "size_bytes": 4}
            staged = clients.call(server, "PUT", f"/repositories/{other}/branches/main/objects", stage, path="borrowed")
            assert staged[0] == 201, staged

        with_staged = collected(server, repository, Flow.CLEAN, also_live=["other"])
        assert with_staged.counts["candidates"] == 0
        clients.commit(server, "borrowed", name=other)
        with_other = collected(server, repository, Flow.CLEAN, also_live=["other"])
        assert (with_other.counts["candidates"], with_other.counts["deleted"]) == (0, 0)
        assert status_of(server, "main", "borrowed", other) == 200
        alone = collected(server, repository, Flow.CLEAN)
        assert alone.counts["deleted"] == 1
        assert reasons(server, repository, alone.run_id) == {Why.NO_COMMIT}
        assert status_of(server, "main", "borrowed", other) == 410
