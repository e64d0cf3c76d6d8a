"""A sweep into quarantine and back on the embedded server."""

from datetime import UTC, datetime
from pathlib import Path

from lakefs_gc_assets.cli import status
from lakefs_gc_assets.collector.quarantine import restore
from lakefs_gc_assets.collector.quarantine.restore import RestoreFate
from lakefs_gc_assets.collector.records.outcomes import Why
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.report import Ending, describe
from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.extensions.playground.embedded.core import ServerSettings
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.extensions.playground.embedded.test_collecting_expired import (
    DAYS,
    collected,
    reasons,
    status_of,
)


def test_what_was_moved_comes_back_and_may_be_moved_again(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path, settings=ServerSettings()) as server:
        now = datetime.now(UTC)
        with server.clock.at(now - 30 * DAYS):
            repository = clients.repository(server)
            clients.upload(server, "replaced", b"of old")
            old = clients.commit(server, "old")["id"]
        with server.clock.at(now - 20 * DAYS):
            clients.upload(server, "replaced", b"anew")
            clients.commit(server, "new")
        rules = {"default_retention_days": 12, "branches": []}
        assert clients.call(server, "PUT", f"/repositories/{repository}/settings/gc_rules", rules)[0] == 204

        moved = collected(server, repository, Flow.COMMITTED, sweep_mode="quarantine")

        assert (moved.counts["quarantined"], moved.counts["deleted"]) == (1, 0)
        assert (moved.object_bytes["quarantined"], moved.object_bytes["deleted"]) == (6, 0)
        assert moved.ending is Ending.QUARANTINED
        assert "moved to quarantine" in describe(moved)[0]
        assert any("quarantined            1 object, 6 B: moved, not freed" in line for line in describe(moved))
        assert describe(moved)[-1].endswith(f": lakefs-gc restore {moved.run_id}")
        assert not any("deleted  " in line for line in describe(moved))
        loaded = Loaded(demo.configuration(server, repository), {})
        shown = [*status.describe(status.read(Collector.from_loaded(loaded, SystemClock()).open(), 5))]
        assert any(line.startswith(f"quarantine: 1 object, 6 B of run {moved.run_id}, due ") for line in shown)
        assert any(line.endswith("moved to quarantine; 1 candidate, 1 moved to quarantine") for line in shown)
        assert status_of(server, old, "replaced") == 410
        assert collected(server, repository, Flow.COMMITTED).counts["candidates"] == 0

        collector = Collector.from_loaded(loaded, SystemClock())
        (reported,) = restore.restore(collector.open(), moved.run_id, (), "somebody", lambda line: None)

        assert reported.fate is RestoreFate.RESTORED
        assert status_of(server, old, "replaced") == 200
        shown = [*status.describe(status.read(collector.open(), 5))]
        restored = f"quarantine: 1 object, 6 B (1 restored, copies stay until purged) of run {moved.run_id}, due "
        assert any(line.startswith(restored) for line in shown)
        again = collected(server, repository, Flow.COMMITTED, sweep_mode="quarantine")
        assert again.counts["quarantined"] == 1
        assert reasons(server, repository, moved.run_id) == {Why.EXPIRED}
        assert reasons(server, repository, again.run_id) == {Why.RESTORED}
        assert status_of(server, old, "replaced") == 410
        assert status_of(server, "main", "replaced") == 200
