"""Stale branches of a real lakeFS server with a real past: what is unknown, and what is in use."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lakefs_gc_assets.extensions.branches import stale_branches
from lakefs_gc_assets_tests.real.server import RealRepository, installation
from lakefs_gc_assets_tests.real.test_guard_inputs import LUA

POLICY = """\
stale_branches:
  - {branches: ["wild", "hooked", "scratch"], max_inactivity: 30d, uncommitted: true}
"""


@pytest.fixture
def repository() -> Iterator[RealRepository]:
    """Three branches of 45 days ago: one with a staged write, one whose hook ran, one without a commit of its own."""
    with installation() as lakefs:
        lakefs.start(days_ago=45)
        repository = RealRepository.make(lakefs, "retired")
        repository.upload("committed", b"committed")
        repository.commit()
        for name, path, content in (("wild", "own", b"own"), ("hooked", "_lakefs_actions/script.yaml", LUA)):
            repository.branch(name)
            repository.upload(path, content, name)
            repository.commit(name)
        repository.upload("staged", b"staged", "wild")
        repository.branch("scratch")
        lakefs.start()
        yield repository


def test_unknown_use_and_recent_staged_writes_keep_a_branch_on_a_real_server(
    repository: RealRepository, tmp_path: Path
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    runs = repository.runs(retention_policy=str(file), sweep=False)

    def kept() -> dict[str, str]:
        listing = stale_branches.list_branches(runs.open(), print)
        return {each.identity.branch: each.kept for each in listing.standings if each.rule}

    before = kept()
    assert before["wild"] == before["hooked"] == ""
    assert before["scratch"].startswith("its last use is unknown: ")
    ran_at = runs.open().branches_api.last_action_run("hooked")
    assert ran_at is not None and timedelta(44) < datetime.now(UTC) - ran_at < timedelta(46)
    assert runs.open().branches_api.last_action_run("wild") is None

    repository.upload("staged", b"staged again", "wild")
    runs.collect()
    after = kept()
    assert after["wild"].startswith("its last staged write at ")
    assert after["scratch"].startswith("the first run that saw it on this commit at ")
    assert after["hooked"] == ""
