"""Object lifecycle on a real lakeFS server: merges, hooks, staged changes, protected branches, races and reverts."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from lakefs_gc_assets.collector.records.own_commits import MARK, list_own_commits
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.extensions.lifecycle import acting, expired, reverting
from lakefs_gc_assets.extensions.lifecycle.acts import BRANCH_PREFIX, LifecycleFate, LifecycleOutcome
from lakefs_gc_assets.lakefs.api.models import LakeFSApi
from lakefs_gc_assets_tests.real.server import RealRepository, installation
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns

POLICY = """\
lifecycle:
  - {name: old-logs, branches: "*", paths: old/, older_than: 90d}
"""
FAILING = b"""\
name: refuse
on:
  pre-merge:
hooks:
  - id: refuse
    type: lua
    properties: {script: 'error("not on a Sunday")'}
"""
OLD = [f"old/{number}" for number in range(3)]


@pytest.fixture
def repository() -> Iterator[RealRepository]:
    """Branches of 100 days ago with three old entries each, which another commit follows today."""
    with installation() as lakefs:
        lakefs.start(days_ago=100)
        repository = RealRepository.make(lakefs, "aged")
        for path in OLD:
            repository.upload(path, path.encode())
        repository.commit()
        for name in ("hooked", "dirty", "guarded", "raced"):
            repository.branch(name)
        lakefs.start()
        for number in range(5):
            repository.upload(f"new/{number}", b"new")
        repository.commit()
        for name in ("hooked", "dirty", "guarded", "raced"):
            repository.upload("new/own", name.encode(), name)
            if name == "hooked":
                repository.upload("_lakefs_actions/refuse.yaml", FAILING, name)
            repository.commit(name)
        yield repository


def _approve(opened: OpenRepository) -> dict[str, LifecycleOutcome]:
    listing = expired.list_expired(opened, print)
    return {each.branch: each for each in acting.approve(opened, listing.digest, "test", print, print)}


def _revert(opened: OpenRepository, run_id: str) -> dict[str, LifecycleOutcome]:
    return {each.branch: each for each in reverting.revert(opened, run_id, "test", print, print)}


def _before_merge_into(opened: OpenRepository, branch: str, act: Callable[[], object]) -> OpenRepository:
    """The repository; `act` is called right before the first merge into a branch."""
    acts = [act]

    def merge(*arguments: Any) -> str:
        if arguments[1] == branch and acts:
            acts.pop()()
        return opened.branches_api.squash_merge(*arguments)

    class Meddling:
        squash_merge = staticmethod(merge)

        def __getattr__(self, name: str) -> Any:
            return getattr(opened.api, name)

    return replace(opened, api=cast("LakeFSApi", Meddling()))


def _call(repository: RealRepository, method: str, path: str, body: object = None) -> bytes:
    return repository.lakefs.call(method, f"/repositories/{repository.name}{path}", body)


def _paths(opened: OpenRepository, reference: str) -> list[str]:
    return [each.path for each in opened.api.list_objects(reference, "", "old/").objects]


def test_each_branch_gets_one_commit_or_a_reason_and_comes_back(repository: RealRepository, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    runs: ArrowRuns = repository.runs(retention_policy=str(file), sweep=False)
    opened = runs.open()
    api = opened.branches_api
    _call(repository, "PUT", "/settings/branch_protection", [{"pattern": "guarded"}])
    repository.upload("staged", b"staged", "dirty")

    def write_again() -> None:
        """The server takes a path with the same content for unchanged."""
        repository.delete(OLD[1], "raced")
        repository.commit("raced")
        repository.upload(OLD[1], OLD[1].encode(), "raced")
        repository.commit("raced")

    outcomes = _approve(_before_merge_into(opened, "raced", write_again))
    assert {branch: each.fate for branch, each in outcomes.items()} == {
        "main": LifecycleFate.DELETED,
        "raced": LifecycleFate.DELETED,
        "hooked": LifecycleFate.KEPT,
        "dirty": LifecycleFate.KEPT,
        "guarded": LifecycleFate.WAITING,
    }
    assert "412" in outcomes["hooked"].why and "pre-merge" in outcomes["hooked"].why
    assert "uncommitted changes, such as staged" in outcomes["dirty"].why
    assert [each.path for each in api.changes("dirty")] == ["staged"]
    assert _paths(opened, "main@") == [] and _paths(opened, "raced@") == [OLD[1]]
    for branch in ("hooked", "dirty", "guarded"):
        assert _paths(opened, f"{branch}@") == OLD
    made = api.commit(outcomes["main"].commit_id)
    assert len(made.parents) == 1 and dict(made.metadata)[MARK] == outcomes["main"].run_id
    assert made.id in list_own_commits(opened.store, repository.name)
    (pull,) = api.open_pull_requests()
    own = [each.id for each in api.branches() if each.id.startswith(BRANCH_PREFIX)]
    assert (own, outcomes["guarded"].why) == ([pull.source], f"pull request {pull.id}")
    assert pull.source in api.visible_branches()

    _call(repository, "PUT", f"/pulls/{pull.id}/merge", {})
    assert _paths(opened, "guarded@") == []
    repository.upload(OLD[0], b"written again")
    repository.commit()
    back = _revert(opened, outcomes["main"].run_id)
    assert {branch: each.fate for branch, each in back.items()} == {
        "main": LifecycleFate.REVERTED,
        "raced": LifecycleFate.REVERTED,
        "hooked": LifecycleFate.UNNEEDED,
        "guarded": LifecycleFate.WAITING,
    }
    assert back["main"].why == "2 entries of 3; the other paths were written again, and stay so"
    assert repository.read(OLD[0]) == b"written again"
    assert [repository.read(path) for path in OLD[1:]] == [path.encode() for path in OLD[1:]]
    assert _paths(opened, "main@") == _paths(opened, "raced@") == OLD
    (pull,) = api.open_pull_requests()
    _call(repository, "PUT", f"/pulls/{pull.id}/merge", {})
    assert _revert(opened, outcomes["main"].run_id)["guarded"].fate is LifecycleFate.REVERTED
    assert _paths(opened, "guarded@") == OLD
    assert not [each.id for each in api.branches() if each.id.startswith(BRANCH_PREFIX)]


def test_what_users_stage_before_the_merge_survives(repository: RealRepository, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    opened = repository.runs(retention_policy=str(file), sweep=False).open()

    def stage() -> None:
        repository.upload(OLD[0], b"staged", "raced")

    outcomes = _approve(_before_merge_into(opened, "raced", stage))
    assert outcomes["raced"].fate is LifecycleFate.FAILED and "uncommitted changes" in outcomes["raced"].why
    assert [each.path for each in opened.api.changes("raced")] == [OLD[0]]
    assert repository.read(OLD[0], "raced") == b"staged" and _paths(opened, "raced@") == OLD
