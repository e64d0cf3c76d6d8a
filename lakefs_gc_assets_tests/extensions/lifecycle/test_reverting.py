"""Bringing back what a lifecycle run deleted, on an embedded server over HTTP."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest

from lakefs_gc_assets.collector.incremental.deleted_data import DeletedData
from lakefs_gc_assets.collector.records.own_commits import MARK, list_own_commits
from lakefs_gc_assets.errors import ConfigurationError, HookFailed, LakeFSError, ServerUnavailable
from lakefs_gc_assets.extensions.lifecycle.acts import LifecycleFate
from lakefs_gc_assets_tests.extensions.lifecycle.acting_repository import OLD, ActingRepository, acting_repository
from lakefs_gc_assets_tests.extensions.lifecycle.test_acting import (
    PROTECTION,
    Killed,
    answering,
    dying,
    meddled,
    messages,
    old,
    raising,
)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[ActingRepository]:
    with acting_repository(tmp_path) as made:
        yield made


@pytest.fixture
def run_id(made: ActingRepository) -> str:
    made.list()
    return made.approve()["main"].run_id


def test_paths_written_again_stay_and_the_others_come_back() -> None:
    with TemporaryDirectory() as folder, acting_repository(Path(folder)) as made:
        before = made.entries("main@")
        made.list()
        run_id = made.approve()["main"].run_id
        made.upload(OLD + "1", b"written again")
        made.upload("new/0", b"written again")
        made.upload("new/9", b"another")
        made.commit("later")
        later = made.entries("main@")
        outcome = made.revert(run_id)["main"]
        assert outcome.fate is LifecycleFate.REVERTED
        assert outcome.why == "2 entries of 3; the other paths were written again, and stay so"
        assert made.entries("main@") == {**later, OLD + "0": before[OLD + "0"], OLD + "2": before[OLD + "2"]}
        assert messages(made) == ["Bring", "later", "Delete", "first", "Repository"]
        assert {each["id"] for each in made.log() if MARK in each["metadata"]} == list_own_commits(
            made.open().store, "repo"
        )
        assert made.revert(run_id)["main"].fate is LifecycleFate.UNNEEDED
        assert len(made.log()) == 5 and not made.own_branches()


def test_nothing_is_committed_if_all_paths_were_written_again(made: ActingRepository, run_id: str) -> None:
    for number in range(3):
        made.upload(f"{OLD}{number}", b"written again")
    made.commit("later")
    assert made.revert(run_id)["main"].why.startswith("0 entries of 3; ")
    assert messages(made)[0] == "later" and not made.own_branches()


def test_staged_changes_and_hooks_keep_it(made: ActingRepository, run_id: str) -> None:
    made.upload("staged")
    outcome = made.revert(run_id)["main"]
    assert outcome.fate is LifecycleFate.KEPT and "uncommitted changes, such as staged" in outcome.why
    made.call("PUT", "/branches/main", {"type": "reset"})
    outcome = made.revert(run_id, answering(made, squash_merge=raising(HookFailed("412"))))["main"]
    assert outcome.fate is LifecycleFate.KEPT and not old(made) and not made.own_branches()
    assert made.revert(run_id)["main"].fate is LifecycleFate.REVERTED and len(old(made)) == 3


def test_a_commit_that_left_the_history_is_not_reverted() -> None:
    """The merge would be based on an older commit, and bring back what others have deleted."""
    with TemporaryDirectory() as folder, acting_repository(Path(folder)) as made:
        first = made.log()[0]["id"]
        made.list()
        run_id = made.approve()["main"].run_id
        made.hard_reset("main", f"{first}~1")
        outcome = made.revert(run_id)["main"]
        assert outcome.fate is LifecycleFate.KEPT and "not in the history" in outcome.why
        assert not made.entries("main@") and not made.own_branches()


def test_data_that_runs_deleted_meanwhile_is_counted(
    made: ActingRepository, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = made.listed["main"]["logs"]["address"].to_pylist()[0]
    key = made.open().namespace.relative(address)
    assert key is not None
    monkeypatch.setattr(DeletedData, "addresses", pa.table({"address": [key]}))
    (made.server.objects_folder / "repo" / key).unlink()
    outcome = made.revert(run_id)["main"]
    assert outcome.fate is LifecycleFate.INCOMPLETE
    assert "3 entries of 3; the data of 1 object is gone" in outcome.why


def test_data_that_is_gone_is_counted_after_a_lost_answer_too(
    made: ActingRepository, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = made.open().namespace.relative(made.listed["main"]["logs"]["address"].to_pylist()[0])
    monkeypatch.setattr(DeletedData, "addresses", pa.table({"address": [address]}))
    (made.server.objects_folder / "repo" / str(address)).unlink()
    opened = made.open()

    def lose(*arguments: Any) -> str:
        opened.branches_api.squash_merge(*arguments)
        raise ServerUnavailable("timeout")

    assert made.revert(run_id, answering(made, squash_merge=lose))["main"].fate is LifecycleFate.FAILED
    outcome = made.revert(run_id)["main"]
    assert outcome.fate is LifecycleFate.INCOMPLETE and "the data of 1 object is gone" in outcome.why


def test_an_unreadable_answer_of_the_merge_is_found_out_at_once(
    made: ActingRepository, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeletedData, "addresses", pa.table({"address": pa.array([], pa.string())}))
    opened = made.open()

    def garble(*arguments: Any) -> str:
        opened.branches_api.squash_merge(*arguments)
        raise LakeFSError("the answer is not JSON")

    outcome = made.revert(run_id, answering(made, squash_merge=garble))["main"]
    assert outcome.fate is LifecycleFate.REVERTED and len(old(made)) == 3
    assert made.log()[0]["id"] in list_own_commits(made.open().store, "repo")


def test_deleted_branches_and_unknown_runs(made: ActingRepository) -> None:
    made.list("dev")
    run_id = made.approve()["dev"].run_id
    made.call("DELETE", "/branches/dev")
    assert made.revert(run_id)["dev"].why == "the branch was deleted"
    for unknown in ("0" * 20, "../" + run_id, ""):
        with pytest.raises(ConfigurationError, match="is no run"):
            made.revert(unknown)


def test_a_protected_branch_gets_a_pull_request(made: ActingRepository, run_id: str) -> None:
    made.call("PUT", PROTECTION, [{"pattern": "main"}])
    waits = made.revert(run_id)["main"]
    (pull,) = made.open().branches_api.open_pull_requests()
    assert (waits.fate, waits.why) == (LifecycleFate.WAITING, f"pull request {pull.id}")
    assert made.revert(run_id)["main"].why == waits.why
    made.call("PUT", f"/pulls/{pull.id}/merge", {})
    assert made.revert(run_id)["main"].fate is LifecycleFate.REVERTED
    assert len(old(made)) == 3 and not made.own_branches()


def test_a_pull_request_that_is_merged_right_before_it_is_closed_is_brought_back(made: ActingRepository) -> None:
    made.call("PUT", PROTECTION, [{"pattern": "main"}])
    made.list()
    run_id = made.approve()["main"].run_id
    (pull,) = made.open().branches_api.open_pull_requests()

    def merge() -> None:
        made.call("PUT", f"/pulls/{pull.id}/merge", {})

    outcome = made.revert(run_id, meddled(made, "close_pull_request", merge))["main"]
    assert outcome.fate is LifecycleFate.WAITING and not old(made)
    (back,) = made.open().branches_api.open_pull_requests()
    assert outcome.why == f"pull request {back.id}"


def test_changes_of_reviewers_are_not_reverted(made: ActingRepository) -> None:
    made.call("PUT", PROTECTION, [{"pattern": "main"}])
    made.list()
    run_id = made.approve()["main"].run_id
    (pull,) = made.open().branches_api.open_pull_requests()
    made.upload("report", branch=pull.source)
    made.commit("report", branch=pull.source)
    made.call("PUT", f"/pulls/{pull.id}/merge", {})
    for patterns in [{"pattern": "main"}], []:
        made.call("PUT", PROTECTION, patterns)
        outcome = made.revert(run_id)["main"]
        assert outcome.fate is LifecycleFate.KEPT and "reviewers changed report in commit" in outcome.why
        assert "report" in made.entries("main@") and not made.own_branches()


def test_killed_before_any_change_it_goes_on(made: ActingRepository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeletedData, "addresses", pa.table({"address": pa.array([], pa.string())}))
    done, at = False, 0
    while not done:
        at += 1
        made.list()
        run_id = made.approve()["main"].run_id
        length = len(made.log())
        try:
            made.revert(run_id, dying(made, at))
            done = True
        except Killed:
            assert made.revert(run_id)["main"].fate in (LifecycleFate.REVERTED, LifecycleFate.UNNEEDED)
        assert len(old(made)) == 3 and not made.own_branches()
        assert len(made.log()) == length + 1, f"killed before change {at}: not exactly one commit"
        assert made.log()[0]["id"] in list_own_commits(made.open().store, "repo")
    assert at > 6
