"""Jobs that list and delete: links, verdicts and partitions, with scripted lists on an embedded server."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from lakefs_gc_assets.collector.repository.repository import OpenRepository, SystemClock
from lakefs_gc_assets.collector.standing_approvals import PlannedDeletion
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs import running
from lakefs_gc_assets.defs.listings import ListingShown
from lakefs_gc_assets.defs.partitions import Names, key_of
from lakefs_gc_assets.defs.wiring import Additions, build
from lakefs_gc_assets.errors import LogLine, OrderViolation, ServerUnavailable
from lakefs_gc_assets.extensions.branches.definitions import stale_branches_deletion
from lakefs_gc_assets.extensions.branches.stale_branches import BranchFate, BranchOutcome
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets_tests.extensions.playground.embedded import clients

CHECK = dg.AssetCheckKey(dg.AssetKey("stale_branches"), "branch_deletions_are_complete")
WHOLE = ListingShown("d1", "1 branch", {"stale": 1}, lambda paths: PlannedDeletion(branches=1, whole=2))


def test_verdicts_links_and_keys_of_launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    lists: list[ListingShown] = []
    deletes: list[BranchOutcome | Exception] = []

    def show(repository: OpenRepository, note: LogLine) -> ListingShown:
        return lists.pop()

    def delete(*arguments: object) -> Iterator[BranchOutcome]:
        for each in deletes:
            if isinstance(each, Exception):
                raise each
            yield each

    def define(names: Names, loaded: Loaded) -> Additions:
        deletion = replace(stale_branches_deletion(names), show=show, delete=delete)
        return Additions(
            [deletion.define_asset(names)], [deletion.define_check(names)], [deletion.define_job(names, loaded)]
        )

    with EmbeddedServer(tmp_path / "server") as server, running.instance() as home:
        clients.repository(server)
        content = demo.configuration(server, "repo")
        content = content.model_copy(update={"automation": content.automation.model_copy(update={"keep_runs": 2})})
        job = build(Loaded(content, {}), SystemClock(), [define]).resolve_job_def("stale_branches")

        def launch(**config: object) -> dict[str, Any]:
            run_config = {"ops": {"retire_branches": {"config": config}}}
            job.execute_in_process(instance=home, run_config=run_config)
            return shown()

        def shown() -> dict[str, Any]:
            event = home.get_latest_materialization_event(CHECK.asset_key)
            assert event is not None and event.asset_materialization is not None
            return {name: value.value for name, value in event.asset_materialization.metadata.items()}

        def verdict() -> tuple[bool, str | None]:
            summary = home.event_log_storage.get_asset_check_summary_records([CHECK])[CHECK]
            record = summary.last_check_execution_record
            assert record is not None and record.event is not None and record.event.dagster_event is not None
            evaluation = record.event.dagster_event.asset_check_evaluation_data
            return evaluation.passed, evaluation.description

        lists = [replace(WHOLE, undecided=2)]
        with pytest.raises(dg.Failure, match="branches: 0 deleted; undecided, since the server failed: 2"):
            launch()
        assert verdict() == (False, "undecided, since the server failed: 2")

        lists = [WHOLE]
        keys = [key_of(launch()["run_id"])]
        assert verdict() == (True, "complete")

        deletes = [OrderViolation("no such list")]
        with pytest.raises(dg.Failure, match="no such list"):
            launch(approve="d0", approved_by="somebody")
        assert verdict() == (True, "complete"), "nothing was begun"
        deletes = [BranchOutcome("old", "c1", BranchFate.DELETED), ServerUnavailable("gone")]
        with pytest.raises(dg.Failure, match="gone"):
            launch(approve="d1", approved_by="somebody")
        assert verdict() == (False, "the deletion approved by d1 ended early: approve it again: gone")

        lists = [replace(WHOLE, unfinished=("the deletion of old got no answer",))]
        keys.append(key_of(launch()["run_id"]))
        assert verdict() == (False, "the deletion of old got no answer")
        assert shown()["next"] == "Approve by `lakefs-gc branches approve d1`: 1 branch"

        lists = [replace(WHOLE, refused_by="too many")]
        keys.append(key_of(launch()["run_id"]))
        assert (shown()["refused_by"], "next" in shown()) == ("too many", False)
        assert {*home.get_dynamic_partitions("gc_stale_branches_repo")} == {*keys[1:]}, "automation.keep_runs is 2"
