"""The job `routine`: it lists for every part, opens a dry run for the sensor, and reports failed parts as verdicts."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import dagster as dg
import pytest

from lakefs_gc_assets.cli.common import loaded_configuration
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.definitions import ROUTINE
from lakefs_gc_assets.defs import launching, running
from lakefs_gc_assets.defs.automation import ACTING_ROUTINE
from lakefs_gc_assets.defs.jobs import OPENED_TAG_PREFIX
from lakefs_gc_assets.defs.launching import Permit
from lakefs_gc_assets.defs.partitions import FLOW_TAG, RUN_TAG
from lakefs_gc_assets.defs.wiring import build
from lakefs_gc_assets.errors import ServerUnavailable
from lakefs_gc_assets.extensions.branches import definitions as branches
from lakefs_gc_assets.extensions.branches import stale_branches
from lakefs_gc_assets.extensions.lifecycle import definitions as lifecycle
from lakefs_gc_assets.extensions.routine import definitions as routine
from lakefs_gc_assets.settings import LaunchSettings
from lakefs_gc_assets_tests.extensions.lifecycle.aged_repository import aged_repository


def test_it_lists_opens_a_dry_run_and_reports_failed_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    with aged_repository(tmp_path) as made, running.instance() as home:
        made.add(90, "logs/a")
        made.policy({"name": "logs", "paths": "logs/", "older_than": "60d"})
        policy = tmp_path / "policy.yaml"
        policy.write_text(policy.read_text() + "stale_branches: [{branches: 'old*', max_inactivity: 30d}]\n")
        loaded = loaded_configuration(tmp_path / "lakefs-gc.yaml", None)
        definitions = build(
            loaded, SystemClock(), [lifecycle.define, branches.define, partial(routine.define, ROUTINE)]
        )
        job = definitions.resolve_job_def("routine")

        def launch(tags: dict[str, str], **config: object) -> dg.DagsterRun:
            run_config = {"ops": {"play_routine": {"config": config}}}
            result = job.execute_in_process(instance=home, run_config=run_config, tags=tags)
            run = home.get_run_by_id(result.run_id)
            assert run is not None
            return run

        def fail(*arguments: object) -> object:
            raise ServerUnavailable("gone")

        monkeypatch.setattr(stale_branches, "list_branches", fail)
        permit = Permit(ACTING_ROUTINE, automatic=True, sweep=False, flow="unified")
        ticket = launching.issue_ticket(home, "repo", permit)
        run = launch(ticket, act=True)
        opened = {name: run.tags[OPENED_TAG_PREFIX + name] for name in (RUN_TAG, FLOW_TAG)}
        assert opened[FLOW_TAG] == "unified"
        found = launching.find(home, "repo", opened[RUN_TAG], run)
        assert found == permit, "the sensor of standing approvals knows it by this"
        assert made.opened().store.get(run_folder.ROUTINE_PAGE)
        event = home.get_latest_materialization_event(dg.AssetKey("lifecycle_report"))
        assert event is not None and event.asset_materialization is not None
        assert event.asset_materialization.metadata["expired_objects"].value == 1, "no standing approval covers it"
        check = dg.AssetCheckKey(dg.AssetKey("stale_branches"), "branch_deletions_are_complete")
        record = home.event_log_storage.get_asset_check_summary_records([check])[check].last_check_execution_record
        assert record is not None and record.event is not None and record.event.dagster_event is not None
        evaluation = record.event.dagster_event.asset_check_evaluation_data
        assert (evaluation.passed, evaluation.description) == (False, "gone")

        found = launching.find(
            home, "repo", launch(ticket, skip=["lifecycle", "stale_branches", "rules"]).tags[RUN_TAG]
        )
        assert found == Permit("routine", sweep=False), "a ticket permits one launch"
        with pytest.raises(dg.Failure, match="other: no part of the routine"):
            launch({}, skip=["other"])
        forbidding = loaded.configuration.model_copy(update={"launch": LaunchSettings(sweep="never")})
        never = build(
            replace(loaded, configuration=forbidding),
            SystemClock(),
            [lifecycle.define, partial(routine.define, ROUTINE)],
        )
        for name, op, config in (
            ("routine", "play_routine", {"act": True}),
            ("lifecycle", "expire_entries", {"standing": True}),
            ("lifecycle", "expire_entries", {"approve": "0" * 16, "approved_by": "somebody"}),
        ):
            job = never.resolve_job_def(name)
            run_config = {"ops": {op: {"config": config}}}
            with pytest.raises(dg.Failure, match=r"a launch may not delete.*, since launch\.sweep is never"):
                job.execute_in_process(instance=home, run_config=run_config)
