"""The job and asset `stale_branches`: it lists branches, and deletes the listed ones if launches may do so."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.collector.standing_approvals import ApprovedWork, Limits
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs import pages, running
from lakefs_gc_assets.defs.listings import require_sweeping
from lakefs_gc_assets.defs.partitions import Names, key_of
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.defs.wiring import build
from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.extensions.branches.definitions import define, describe_branches, stale_branches_deletion
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.settings import LaunchSettings
from lakefs_gc_assets_tests.collector.test_standing_approvals import granted
from lakefs_gc_assets_tests.defs.test_jobs import filled
from lakefs_gc_assets_tests.extensions.branches.test_branches_command import LISTING, STALE
from lakefs_gc_assets_tests.extensions.branches.test_stale_branches import branch
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.runs.retained_repository import RetainedRepository

ASSET = dg.AssetKey("stale_branches")
KEYS = "gc_stale_branches_repo"


def test_the_job_shows_and_deletes_what_is_approved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    rules = tmp_path / "policy.yaml"
    rules.write_text("stale_branches: [{branches: 'old*', max_inactivity: 30d}]\n")
    with EmbeddedServer(tmp_path / "server") as server, running.instance() as home:
        with server.clock.at(datetime.now(UTC) - timedelta(days=200)):
            clients.repository(server)
        made = RetainedRepository(server, tmp_path)
        branch(made, "old", 90)
        content = demo.configuration(server, "repo")
        content = content.model_copy(
            update={"collection": content.collection.model_copy(update={"retention_policy": str(rules)})}
        )
        loaded = Loaded(content, {})
        definitions = build(loaded, SystemClock(), [define])
        job = definitions.resolve_job_def("stale_branches")

        def metadata(**config: object) -> dict[str, Any]:
            run_config = {"ops": {"retire_branches": {"config": config}}}
            assert job.execute_in_process(instance=home, run_config=run_config).success
            event = home.get_latest_materialization_event(ASSET)
            assert event is not None and event.asset_materialization is not None
            shown = {name: value.value for name, value in event.asset_materialization.metadata.items()}
            assert event.asset_materialization.partition == key_of(str(shown["run_id"]))
            return shown

        shown = metadata()
        assert (shown["stale"], shown["branches"], shown["is_complete"]) == (1, 2, True)
        assert shown["next"] == f"Approve by `lakefs-gc branches approve {shown['digest']}`: 1 branch"
        home.add_dynamic_partitions(KEYS, ["made in the UI"])
        monkeypatch.setattr(pages, "location_of", lambda _: "here")
        again = metadata()
        assert again["digest"] == shown["digest"], "showing it changes nothing"
        assert sorted(home.get_dynamic_partitions(KEYS)) == sorted(key_of(each["run_id"]) for each in (shown, again))
        link = re.fullmatch(r"\[Approve: 1 branch\]\((.+)\)", again["next"])
        assert link is not None
        path, comment, config, _ = filled(link[1], definitions)
        assert path == "/locations/here/jobs/stale_branches/playground/setup"
        assert comment.startswith("Deletes 1 branch of repo, except") and "name in approved_by" in comment
        assert config == {"approve": shown["digest"], "approved_by": ""}
        with pytest.raises(dg.Failure, match="enter your name in approved_by"):
            metadata(approve=shown["digest"])
        after = metadata(approve=shown["digest"], approved_by="somebody")
        assert (after["stale"], after["branches"]) == (0, 1)
        assert "next" not in after and "digest" not in after
        with pytest.raises(dg.Failure, match="is not the digest of the newest list"):
            metadata(approve="0" * 16, approved_by="somebody")
        assert len(home.get_dynamic_partitions(KEYS)) == 3, "an approval that is refused lists nothing"

        branch(made, "old-2", 90)
        with pytest.raises(dg.Failure, match="no standing approval for branches covers this deletion: there is none"):
            metadata(standing=True)
        with pytest.raises(dg.Failure, match="set either approve or standing"):
            metadata(approve="0" * 16, standing=True)
        granted(
            Collector.from_loaded(loaded, SystemClock()).open(), kind=ApprovedWork.BRANCHES, limits=Limits(branches=1)
        )
        after = metadata(standing=True)
        assert (after["stale"], after["branches"]) == (0, 1)
        (swept,) = home.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.SUCCESS]), limit=1)
        assert swept.tags["lakefs/approved_by"].startswith("standing approval a1 of ")


def test_no_launch_uses_a_standing_approval_if_the_file_lets_none_delete() -> None:
    with pytest.raises(ConfigurationError, match=r"launch\.sweep is never: call the command with --standing"):
        require_sweeping(LaunchSettings(sweep="never"))
    require_sweeping(LaunchSettings(approvers=2))


@pytest.mark.parametrize("policy", [LaunchSettings(sweep="never"), LaunchSettings(approvers=2)])
def test_a_launch_deletes_none_where_the_file_forbids_it(policy: LaunchSettings) -> None:
    with pytest.raises(ConfigurationError, match=r"a launch may not delete branches, since .* branches approve d"):
        stale_branches_deletion(Names("repo")).require_approvable(policy, "d")
    stale_branches_deletion(Names("repo")).require_approvable(LaunchSettings(), "d")


def test_branches_are_shown_with_why(tmp_path: Path) -> None:
    shown = describe_branches(LISTING)
    assert (shown["stale"], shown["branches"]) == (1, 3)
    assert "held_alone_bytes" not in shown
    assert STALE.undo in shown["stale_branches"].md_str and "it is protected" in shown["kept"].md_str
