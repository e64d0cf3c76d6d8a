"""The job `lifecycle` and its asset: it lists expired objects, and deletes the listed ones from their branches."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from lakefs_gc_assets.cli.common import loaded_configuration
from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.collector.repository.lock import locked
from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.defs import running
from lakefs_gc_assets.defs.partitions import key_of
from lakefs_gc_assets.defs.wiring import build
from lakefs_gc_assets.extensions.lifecycle.acting import count_planned
from lakefs_gc_assets.extensions.lifecycle.acts import Act, ActState, LifecycleWork, describe_unfinished
from lakefs_gc_assets.extensions.lifecycle.definitions import define, freed_by_branch, show
from lakefs_gc_assets.extensions.lifecycle.listing import Group, LifecycleListing
from lakefs_gc_assets_tests.extensions.check.test_fsck_command import NOW
from lakefs_gc_assets_tests.extensions.lifecycle.aged_repository import aged_repository

ASSET = dg.AssetKey("lifecycle_report")


def test_the_job_lists_and_deletes_what_is_approved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    with aged_repository(tmp_path) as made, running.instance() as home:
        made.add(90, "logs/a", "logs/b", "data/c")
        made.policy({"name": "logs", "paths": ["logs/", "data/"], "older_than": "60d", "except": "data/"})
        loaded = loaded_configuration(tmp_path / "lakefs-gc.yaml", None)
        job = build(loaded, SystemClock(), [define]).resolve_job_def("lifecycle")

        def metadata(**config: object) -> dict[str, Any]:
            run_config = {"ops": {"expire_entries": {"config": config}}}
            assert job.execute_in_process(instance=home, run_config=run_config).success
            event = home.get_latest_materialization_event(ASSET)
            assert event is not None and event.asset_materialization is not None
            shown = {name: value.value for name, value in event.asset_materialization.metadata.items()}
            assert event.asset_materialization.partition == key_of(str(shown["run_id"]))
            return shown

        listed = metadata()
        assert (listed["expired_objects"], listed["freed_later_bytes"]) == (2, listed["expired_bytes"])
        assert listed["next"].startswith(
            f"Approve by `lakefs-gc lifecycle approve {listed['digest']}`: 2 entries of 1 "
        )
        opened, listing = made.opened(), made.listed()
        planned = count_planned(opened, listing, ("logs/a", "elsewhere/"))
        assert (planned.objects, planned.branches, planned.whole, planned.outside) == (2, 1, 3, 1)
        assert count_planned(opened, listing, ()).outside == 0
        after = metadata(approve=listed["digest"], approved_by="somebody")
        assert (after["expired_objects"], after["is_complete"]) == (0, True)
        assert {each.path for each in opened.api.list_objects("main", "").objects} == {"data/c"}
        by = made.call("GET", "/commits/main")["metadata"]["lakefs-gc-lifecycle-approved-by"]
        assert by == "somebody, as the launch says"

        act = Act("repo", "d" * 20, 0, "d1", "main", "logs", "h", 2, 9, "", ActState.DELETING, NOW)
        with locked(opened, "test", "test", pytest.fail) as lock:
            LifecycleWork(opened, lock, pytest.fail, pytest.fail).put(act, ActState.DELETING)
        assert (
            show(opened, lambda line: None).verdict.why
            == next(describe_unfinished(opened))
            == (
                "deleting 2 entries, 9 B of branch main, rule logs, was interrupted: `lakefs-gc lifecycle approve d1` "
                "finishes it"
            )
        )


def test_what_a_branch_frees_is_unknown_if_one_group_does_not_know_it() -> None:
    one = Group("main", "c", "r1", Amount(1, 1), "g1", Amount(1, 1))
    two, three = Group("main", "c", "r2", Amount(2, 2), "g2", Amount(2, 2)), Group("dev", "c", "r1", Amount(), "g3")
    freed = freed_by_branch(LifecycleListing("repo", NOW, (one, two, three)))
    assert freed == {"main": Amount(3, 3), "dev": None}
