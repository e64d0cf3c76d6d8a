"""Objects expired by rule and referenced again are distinguished from losses, on the embedded server."""

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.frame.frames import LISTED
from lakefs_gc_assets.collector.records import plan, run_folder
from lakefs_gc_assets.collector.records.outcomes import Outcome
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.collector.survey import FindingKind
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.extensions.check.fsck import Checkup, check
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.storage.local.store import LocalStore
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns
from lakefs_gc_assets_tests.spark.frame_rows import listed

DAY = timedelta(days=1)
FULL: dict[str, Any] = {"full_listing_days": 0}


class Repository:
    """A file that was replaced 40 and 20 days ago, with rules that keep a week."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.server, now = server, datetime.now(UTC)
        with server.clock.at(now - 60 * DAY):
            clients.repository(server)
        self.addresses: list[str] = []
        self.commits: list[dict[str, Any]] = []
        for number, days in enumerate((60, 40, 20)):
            with server.clock.at(now - days * DAY):
                self.addresses.append(clients.upload(server, "file", b"%d" % number))
                clients.upload(server, f"other{number}", b"stays")
                self.commits.append(clients.commit(server, f"{days} days ago"))
        self.rules(7)

    def rules(self, days: int) -> None:
        self.call("PUT", "/settings/gc_rules", {"default_retention_days": days, "branches": []})

    def folder_of(self, run_id: str) -> Path:
        return self.server.objects_folder / "repo" / run_folder.folder(run_id)

    def call(self, method: str, path: str, body: object = None, **query: str) -> object:
        status, answer = clients.call(self.server, method, f"/repositories/repo{path}", body, **query)
        assert status < 300, answer
        return answer

    def check(self, *, every_commit: bool = False) -> Checkup:
        runs = ArrowRuns(Loaded(demo.configuration(self.server, "repo"), {}))
        return check(runs.open(), LocalEngine(), runs.log, every_commit=every_commit)

    def collect(self, flow: Flow = Flow.UNIFIED, **collection: Any) -> Report:
        given = demo.configuration(self.server, "repo")
        changes = {"sweep": True, "max_candidate_share": 1.0, **collection}
        settings = given.collection.model_copy(update=changes)
        return ArrowRuns(Loaded(given.model_copy(update={"collection": settings}), {})).collect(flow)


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[Repository]:
    with EmbeddedServer(tmp_path) as server:
        yield Repository(server)


def gone(found: Report) -> tuple[int, int, bool]:
    """Number of lost objects, number of objects expired by rule, and True if the run succeeded."""
    return found.counts["lost"], found.counts["named_again"], found.success


def test_what_a_branch_or_a_merge_of_an_expired_commit_names_again_is_no_loss(repository: Repository) -> None:
    first = repository.collect()
    assert first.counts["deleted"] == 2
    repository.call("POST", "/branches", {"name": "back", "source": repository.commits[1]["id"]})
    found = repository.collect(Flow.CLEAN)
    assert gone(found) == (0, 1, True)
    (reported,) = [line for line in found.warnings if "referenced again" in line]
    assert reported.startswith("1 object is referenced again") and repository.addresses[1] in reported
    # No metarange of an expired commit is then live, but a head holds an object of an expired one.
    repository.call("DELETE", "/branches/back")
    repository.call("POST", "/branches/main/revert", {"ref": repository.commits[2]["id"], "parent_number": 0})
    assert gone(repository.collect(**FULL)) == (0, 1, True)
    # A run that builds on it reports the same, and objects referenced again since.
    repository.call("POST", "/branches", {"name": "first", "source": repository.commits[0]["id"]})
    building = repository.collect()
    assert (building.base_run is not None, *gone(building)) == (True, 0, 2, True)
    repository.call("DELETE", "/branches/first")
    # The frames of the run go, including its list of expired commits.
    shutil.rmtree(repository.folder_of(first.run_id) / "committed_df")
    assert gone(repository.collect(**FULL)) == (0, 1, True)


@pytest.mark.parametrize("flow", [Flow.UNIFIED, Flow.COMMITTED])
def test_branch_on_expired_commit_whose_ranges_are_known_is_reported_by_a_building_run(
    repository: Repository, flow: Flow
) -> None:
    """Facts about its ranges were recorded while it was live, so a building run reads no range."""
    repository.rules(50)
    assert repository.collect().base_run is None
    repository.rules(7)
    expiring = repository.collect(flow)
    assert expiring.counts["deleted"] == 2 and (expiring.base_run is None) is (flow is Flow.COMMITTED)
    repository.call("POST", "/branches", {"name": "back", "source": repository.commits[1]["id"]})
    for _ in range(2):
        building = repository.collect()
        assert (building.base_run is not None, *gone(building)) == (True, 0, 1, True)
    assert gone(repository.collect(**FULL)) == (0, 1, True)


def test_branch_on_expired_commit_is_reported_by_a_clean_run_that_builds_on_another(repository: Repository) -> None:
    assert repository.collect().counts["deleted"] == 2
    assert gone(repository.collect(Flow.CLEAN)) == (0, 0, True)
    repository.call("POST", "/branches", {"name": "back", "source": repository.commits[1]["id"]})
    building = repository.collect(Flow.OPTIMIZED)
    assert (building.base_run is not None, *gone(building)) == (True, 0, 1, True)
    assert gone(repository.collect(Flow.CLEAN)) == (0, 1, True)


def test_check_calls_head_that_cannot_be_read_damaged_and_expired_commits_whole(repository: Repository) -> None:
    assert repository.collect().counts["deleted"] == 2
    assert repository.check().verdict == "whole"
    assert repository.check(every_commit=True).verdict == "whole; 2 expired before"
    repository.call("POST", "/branches", {"name": "back", "source": repository.commits[1]["id"]})
    for every_commit in (False, True):
        checkup = repository.check(every_commit=every_commit)
        assert checkup.is_damaged
        (finding,) = (each for each in checkup.findings if each.kind is FindingKind.MISSING)
        assert finding.address == repository.addresses[1] and "had expired by the rules" in finding.detail
        assert "branch back" in {place.reference for place in finding.places}
    assert checkup.verdict == "damaged: 1 missing, 1 expired before"


def test_what_was_deleted_although_a_commit_held_it_is_lost(repository: Repository) -> None:
    first = repository.collect()
    live = repository.addresses[2]
    rows = pa.Table.from_pylist([listed(live)], schema=LISTED)
    store = LocalStore(repository.server.objects_folder / "repo")
    attempt = plan.read(store, first.run_id).attempt
    made = receipts.table(rows, [Outcome.ACCEPTED], [None], datetime.now(UTC), attempt)
    shutil.rmtree(repository.folder_of(first.run_id) / "deleted_report")
    receipts.write(store, first.run_id, "more", made)
    store.delete([live])
    found = repository.collect(**FULL, max_missing_share=1)
    assert gone(found) == (1, 0, False) and found.is_complete
    assert any(line.startswith("1 object that earlier runs deleted is held") for line in found.warnings)


def test_longer_rules_say_how_many_commits_earlier_sweeps_took_objects_of(repository: Repository) -> None:
    line = "2 of the 4 commits that stay had expired when earlier sweeps deleted objects"
    first = repository.collect(Flow.COMMITTED)
    assert first.counts["deleted"] == 2
    # Frames expire after some runs, but expired objects are still known.
    shutil.rmtree(repository.folder_of(first.run_id) / "committed_df")
    assert not [warning for warning in repository.collect(Flow.COMMITTED).warnings if "earlier sweeps" in warning]
    repository.call("PUT", "/settings/gc_rules", {"default_retention_days": 300, "branches": []})
    for flow in (Flow.COMMITTED, Flow.UNIFIED):
        (warning,) = [each for each in repository.collect(flow).warnings if "earlier sweeps" in each]
        assert warning.startswith(line)
    expired = repository.folder_of("x").parent / "expired.parquet"
    expired.write_bytes(b"damaged")
    damaged = repository.collect(Flow.COMMITTED)
    assert damaged.success and not [warning for warning in damaged.warnings if line in warning]


@pytest.mark.parametrize("sweep", [True, False])
def test_only_a_sweep_notes_what_had_expired(repository: Repository, sweep: bool) -> None:
    found = repository.collect(Flow.COMMITTED, sweep=sweep)
    assert found.counts["candidates"] == 2
    assert (repository.folder_of("x").parent / "expired.parquet").exists() == sweep
