"""Expired runs of an embedded server lose exactly their frames and prepared files."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from lakefs_gc_assets.collector import expiring
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns


def files(server: EmbeddedServer) -> set[str]:
    """Everything in the storage namespace."""
    folder = server.objects_folder / "repo"
    return {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}


def test_refs_dumps_of_old_runs_stay_since_others_may_have_made_the_same(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server:
        with server.clock.at(datetime.now(UTC) - timedelta(days=20)):
            clients.repository(server)
            clients.upload(server, "first", b"first")
            clients.commit(server, "first")
            clients.upload(server, "staged", b"staged")
        runs = ArrowRuns(Loaded(demo.configuration(server, "repo"), {}))
        before = files(server)
        old = runs.collect(Flow.CLEAN)
        dumped = {name for name in files(server) - before if name.startswith("_lakefs/") and name.count("/") == 1}
        api = runs.open().api
        task = api.start_refs_dump()
        server.core.tasks.wait_for_all(10)
        backup = api.refs_dump(task)
        clients.commit(server, "second")
        runs.collect(Flow.CLEAN)
        there, store = files(server), runs.open().store

        (expired,) = expiring.decide(store, keep=1).expired
        expiring.remove_frames(store, expired)

        assert expired.run_id == old.run_id
        tables = (backup.commits_meta_range_id, backup.branches_meta_range_id)
        assert {f"_lakefs/{table}" for table in tables} <= dumped
        gone = there - files(server)
        # Frames and facts are in folders named by the run's id; prepared files are in one named by the server's id.
        ids = {old.run_id, *expired.prepared}
        assert len(ids) > 1 and dumped.isdisjoint(gone)
        assert {part for name in gone for part in name.split("/") if part in ids} == ids
        assert [name for name in gone if ids.isdisjoint(name.split("/"))] == []
