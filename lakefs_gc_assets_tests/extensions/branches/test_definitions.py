"""The job and asset `stale_branches`: it lists branches, and deletes the listed ones if launches may do so."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs import running
from lakefs_gc_assets.defs.wiring import build
from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.extensions.branches.definitions import define, describe_branches, require_approvable
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.settings import LaunchSettings
from lakefs_gc_assets_tests.extensions.branches.test_branches_command import LISTING, STALE
from lakefs_gc_assets_tests.extensions.branches.test_stale_branches import branch
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.runs.retained_repository import RetainedRepository

ASSET = dg.AssetKey("stale_branches")


def test_the_job_shows_and_deletes_what_is_approved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    rules = tmp_path / "policy.yaml"
    rules.write_text("stale_branches: [{branches: old, max_inactivity: 30d}]\n")
    with EmbeddedServer(tmp_path / "server") as server, running.instance() as home:
        with server.clock.at(datetime.now(UTC) - timedelta(days=200)):
            clients.repository(server)
        made = RetainedRepository(server, tmp_path)
        branch(made, "old", 90)
        content = demo.configuration(server, "repo")
        content = content.model_copy(
            update={"collection": content.collection.model_copy(update={"retention_policy": str(rules)})}
        )
        job = build(Loaded(content, {}), SystemClock(), [define]).resolve_job_def("stale_branches")

        def metadata(**config: object) -> dict[str, object]:
            run_config = {"ops": {"retire_branches": {"config": config}}}
            assert job.execute_in_process(instance=home, run_config=run_config).success
            event = home.get_latest_materialization_event(ASSET)
            assert event is not None and event.asset_materialization is not None
            return {name: value.value for name, value in event.asset_materialization.metadata.items()}

        shown = metadata()
        assert (shown["stale"], shown["branches"]) == (1, 2)
        assert metadata()["digest"] == shown["digest"], "showing it changes nothing"
        with pytest.raises(dg.Failure, match="enter your name in approved_by"):
            metadata(approve=shown["digest"])
        after = metadata(approve=shown["digest"], approved_by="somebody")
        assert (after["stale"], after["branches"]) == (0, 1)
        with pytest.raises(dg.Failure, match="is not the digest of the newest list"):
            metadata(approve="0" * 16, approved_by="somebody")


@pytest.mark.parametrize("policy", [LaunchSettings(sweep="never"), LaunchSettings(approvers=2)])
def test_a_launch_deletes_none_where_the_file_forbids_it(policy: LaunchSettings) -> None:
    with pytest.raises(ConfigurationError, match=r"a launch may not delete branches, since .* branches approve d"):
        require_approvable(policy, "d")
    require_approvable(LaunchSettings(), "d")


def test_branches_are_shown_with_why(tmp_path: Path) -> None:
    shown = describe_branches(LISTING)
    assert (shown["stale"], shown["branches"], shown["digest"]) == (1, 3, LISTING.digest)
    assert "held_alone_bytes" not in shown
    assert STALE.undo in shown["stale_branches"].md_str and "it is protected" in shown["kept"].md_str
