"""Deleting expired entries on an embedded server over HTTP: one commit for each group, whatever others do meanwhile."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast
from unittest import mock

import pyarrow.compute as pc
import pytest

from lakefs_gc_assets.collector.records.own_commits import MARK, list_own_commits
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.errors import (
    AccessDenied,
    CorruptFile,
    GuardTripped,
    HookFailed,
    LakeFSError,
    LockLost,
    ServerUnavailable,
    StorageError,
    UnknownPath,
)
from lakefs_gc_assets.extensions.lifecycle import acting, acts
from lakefs_gc_assets.extensions.lifecycle.acts import (
    BRANCH_PREFIX,
    LifecycleFate,
    LifecycleOutcome,
    describe_unfinished,
)
from lakefs_gc_assets.extensions.lifecycle.listing import ENTRIES, LifecycleListing
from lakefs_gc_assets.lakefs.api.models import Branch, LakeFSApi
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.extensions.check.test_fsck import Asked
from lakefs_gc_assets_tests.extensions.lifecycle.acting_repository import OLD, RULE, ActingRepository, acting_repository
from lakefs_gc_assets_tests.extensions.lifecycle.aged_repository import aged_repository
from lakefs_gc_assets_tests.extensions.playground.embedded import clients

CHANGES = frozenset(
    {"create_branch", "delete_branch", "delete_paths", "commit_changes", "squash_merge", "revert", "open_pull_request"}
)
PROTECTION = "/settings/branch_protection"


@pytest.fixture
def made(tmp_path: Path) -> Iterator[ActingRepository]:
    with acting_repository(tmp_path) as made:
        yield made


class Killed(BaseException):
    """The process dies: nothing catches it."""


@dataclass
class Meddler:
    """A server or a store that does something before some calls.

    Attributes:
        before: called with the name and the number of each of these calls, counted from 1.
    """

    real: object
    names: frozenset[str]
    before: Callable[[str, int], None]
    calls: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.real, name)
        if name not in self.names:
            return call

        def meddled(*arguments: Any, **options: Any) -> Any:
            self.calls.append(name)
            self.before(name, len(self.calls))
            return call(*arguments, **options)

        return meddled


def meddled(made: ActingRepository, name: str, act: Callable[[], object], times: int = 1) -> OpenRepository:
    """The repository; `act` is called before the first calls of this name."""
    opened = made.open()

    def before(name: str, number: int) -> None:
        if number <= times:
            act()

    return replace(opened, api=cast("LakeFSApi", Meddler(opened.api, frozenset({name}), before)))


def answering(made: ActingRepository, **answers: Callable[..., Any]) -> OpenRepository:
    """The repository; some calls to the server get other answers."""
    opened = made.open()
    return replace(opened, api=cast("LakeFSApi", Asked(opened.api, **answers)))


def raising(error: Exception) -> Callable[..., Any]:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise error

    return refuse


def merging_then(made: ActingRepository, error: Exception) -> OpenRepository:
    """The repository; the server merges, and the answer is an error."""

    def merge(*arguments: Any) -> str:
        made.open().branches_api.squash_merge(*arguments)
        raise error

    return answering(made, squash_merge=merge)


def dying(made: ActingRepository, at: int) -> OpenRepository:
    """The repository; the process dies before change number `at`, of the server or the store."""
    opened, changes = made.open(), 0

    def before(name: str, number: int) -> None:
        nonlocal changes
        changes += 1
        if changes >= at:
            raise Killed

    api = cast("LakeFSApi", Meddler(opened.api, CHANGES, before))
    return replace(opened, api=api, store=cast("ObjectStore", Meddler(opened.store, frozenset({"put"}), before)))


def old(made: ActingRepository, reference: str = "main@") -> list[str]:
    return [path for path in made.entries(reference) if path.startswith(OLD)]


def messages(made: ActingRepository) -> list[str]:
    return [commit["message"].partition(" ")[0] for commit in made.log()]


class TestOneCommit:
    def test_one_commit_for_each_branch_with_metadata_and_receipt(self, made: ActingRepository) -> None:
        heads = {branch: made.log(branch)[0]["id"] for branch in ("main", "dev")}
        made.list("main", "dev")
        outcomes = made.approve()
        for branch, outcome in outcomes.items():
            assert (outcome.fate, outcome.objects, outcome.bytes) == (LifecycleFate.DELETED, 3, 15)
            head = made.log(branch)[0]
            assert (head["id"], head["parents"]) == (outcome.commit_id, [heads[branch]])
            expected = {MARK: outcome.run_id, f"{MARK}-rule": RULE, f"{MARK}-objects": "3"}
            assert expected.items() <= head["metadata"].items()
            assert head["message"].startswith("Delete 3 entries, 15 B that expired by rule logs\n")
            assert not old(made, f"{branch}@") and len(made.entries(f"{branch}@")) == 5
        assert list_own_commits(made.open().store, "repo") == {each.commit_id for each in outcomes.values()}
        assert made.own_branches() == made.warnings == []
        again = made.approve()
        assert [each.fate for each in again.values()] == [LifecycleFate.GONE] * 2
        assert {branch: made.log(branch)[0]["id"] for branch in heads} == {
            branch: outcome.commit_id for branch, outcome in outcomes.items()
        }

    def test_a_later_listing_of_the_same_entries_is_a_new_run(self, made: ActingRepository) -> None:
        first = made.list()
        run_id = made.approve()["main"].run_id
        made.revert(run_id)
        assert made.list().digest == first.digest
        again = made.approve()["main"]
        assert again.fate is LifecycleFate.DELETED and again.run_id != run_id


class TestKept:
    def test_a_dirty_branch_before_anything_is_done(self, made: ActingRepository) -> None:
        made.list()
        made.upload("staged")
        outcome = made.approve()["main"]
        assert outcome.fate is LifecycleFate.KEPT and "uncommitted changes, such as staged" in outcome.why
        assert messages(made) == ["first", "Repository"] and made.decisions == 0

    @pytest.mark.parametrize("call", ["create_branch", "commit_changes", "squash_merge"])
    def test_a_failing_hook(self, made: ActingRepository, call: str) -> None:
        made.list()
        refusing = answering(made, **{call: raising(HookFailed("POST …: 412: pre-merge hook aborted"))})
        outcome = made.approve(repository=refusing)["main"]
        assert outcome.fate is LifecycleFate.KEPT and "pre-merge hook aborted" in outcome.why
        assert len(old(made)) == 3 and not made.own_branches()
        assert made.approve()["main"].fate is LifecycleFate.DELETED

    def test_a_path_that_the_server_refuses_keeps_the_group(self, made: ActingRepository) -> None:
        made.list()
        refusing = answering(made, delete_paths=lambda branch, paths: ((paths[-1], "401 Unauthorized"),))
        outcome = made.approve(repository=refusing)["main"]
        assert outcome.fate is LifecycleFate.KEPT and outcome.why.endswith("delete old/2: 401 Unauthorized")
        assert len(old(made)) == 3 and not made.own_branches()

    def test_other_failures_and_groups_that_are_gone(self, made: ActingRepository) -> None:
        made.list("main", "dev")
        failing = answering(made, commit_changes=raising(LakeFSError("500")))
        assert {each.fate for each in made.approve(repository=failing).values()} == {LifecycleFate.FAILED}
        made.call("DELETE", "/branches/dev")
        facts = replace(made.open().facts, read_only=True)
        outcome = made.approve(repository=answering(made, repository=lambda: facts))["main"]
        assert (outcome.fate, outcome.why) == (LifecycleFate.KEPT, "the repository is read-only")
        outcomes = made.approve()
        assert outcomes["main"].fate is LifecycleFate.DELETED
        assert (outcomes["dev"].fate, outcomes["dev"].why) == (LifecycleFate.KEPT, "the branch was deleted")
        assert not made.own_branches()

    def test_damaged_entries_keep_a_branch_alone(self, made: ActingRepository, monkeypatch: pytest.MonkeyPatch) -> None:
        def damaged(repository: OpenRepository, listing: LifecycleListing, branch: Branch, note: Any) -> Any:
            if branch.id == "main":
                raise CorruptFile("listing.json", "checksum", "it was changed")
            return made.expired_now(repository, listing, branch, note)

        made.list("main", "dev")
        monkeypatch.setattr(acting, "expired_now", damaged)
        outcomes = made.approve()
        assert outcomes["main"].fate is LifecycleFate.KEPT and outcomes["main"].why.startswith("listing.json: checksum")
        assert outcomes["dev"].fate is LifecycleFate.DELETED

    def test_a_branch_that_nothing_records_is_left(self, made: ActingRepository) -> None:
        name = f"{BRANCH_PREFIX}{'0' * 20}-1"
        made.call("POST", "/branches", {"name": name, "source": "main"})
        made.list()
        assert made.approve()["main"].fate is LifecycleFate.DELETED
        assert made.own_branches() == [name] and "no record of this repository names it" in made.warnings[0]


def test_an_approval_withdrawn_while_a_group_is_deleted_stops_the_merge(made: ActingRepository) -> None:
    digest, withdrawn = made.list().digest, list[bool]()

    def approver() -> str:
        if withdrawn:
            raise GuardTripped("standing approval", "it was withdrawn", "Approve again")
        return "somebody"

    withdrawing = meddled(made, "commit_changes", lambda: withdrawn.append(True))
    with pytest.raises(GuardTripped, match="it was withdrawn"):
        list(acting.approve(withdrawing, digest, "test", lambda line: None, made.warnings.append, approver))
    assert len(old(made)) == 3 and not made.own_branches() and not [*describe_unfinished(made.open())]
    assert made.approve()["main"].fate is LifecycleFate.DELETED


def test_too_large_a_share_is_refused() -> None:
    with TemporaryDirectory() as folder, acting_repository(Path(folder)) as made:
        for number in range(20):
            made.upload(f"{OLD}{number}")
        made.commit()
        made.list("dev", "main")
        with pytest.raises(GuardTripped, match=r"20 of 25 entries of branch main .* 80.0%, more than 50.0%"):
            made.approve()
        assert messages(made) == ["commit", "first", "Repository"] and len(old(made, "dev@")) == 3


def test_a_share_that_became_too_large_since_the_list_is_refused() -> None:
    with TemporaryDirectory() as folder, acting_repository(Path(folder)) as made:
        for number in range(12):
            made.upload(f"{OLD}more{number}")
            made.upload(f"new/more{number}")
        made.commit()
        made.list()
        made.open().branches_api.delete_paths("main", [f"new/more{number}" for number in range(12)])
        made.commit("removed")
        with pytest.raises(GuardTripped, match=r"15 of 20 entries of branch main .* 75.0%, more than 50.0%"):
            made.approve()
        assert len(old(made)) == 15 and not made.own_branches() and not [*describe_unfinished(made.open())]


def test_what_users_stage_is_neither_committed_nor_dropped() -> None:
    with TemporaryDirectory() as folder, acting_repository(Path(folder)) as made:
        for call in ("commit_changes", "squash_merge"):
            made.list()
            outcome = made.approve(repository=meddled(made, call, lambda: made.upload(OLD + "0", b"staged")))["main"]
            diff = made.call("GET", "/branches/main/diff")["results"]
            assert [(each["path"], each["type"]) for each in diff] == [(OLD + "0", "changed")]
            assert outcome.fate in (LifecycleFate.KEPT, LifecycleFate.FAILED) and "uncommitted changes" in outcome.why
            assert len(old(made)) == 3 and not made.own_branches()
            made.call("PUT", "/branches/main", {"type": "reset"})


class TestRaces:
    def test_a_commit_before_the_last_look_makes_it_decide_anew(self, made: ActingRepository) -> None:
        made.list()

        def overwrite() -> None:
            made.upload(OLD + "1", b"new content")
            made.commit("overwritten")

        outcome = made.approve(repository=meddled(made, "commit_changes", overwrite))["main"]
        assert (outcome.fate, outcome.objects, made.decisions) == (LifecycleFate.DELETED, 2, 2)
        assert old(made) == [OLD + "1"] and messages(made) == ["Delete", "overwritten", "first", "Repository"]

    def test_a_conflict_makes_it_decide_anew(self, made: ActingRepository) -> None:
        made.list()

        def overwrite() -> None:
            made.upload(OLD + "1", b"new content")
            made.commit("overwritten")

        outcome = made.approve(repository=meddled(made, "squash_merge", overwrite))["main"]
        assert (outcome.fate, outcome.objects, made.decisions) == (LifecycleFate.DELETED, 2, 2)
        assert old(made) == [OLD + "1"] and not made.own_branches()

    def test_other_clients_that_commit_all_the_time_keep_it(self, made: ActingRepository) -> None:
        made.list()

        def commit() -> None:
            made.upload("busy", str(len(made.log())).encode())
            made.commit("busy")

        outcome = made.approve(repository=meddled(made, "commit_changes", commit, times=9))["main"]
        assert outcome.fate is LifecycleFate.KEPT and "during each of 3 attempts" in outcome.why
        assert messages(made) == [*["busy"] * 3, "first", "Repository"] and len(old(made)) == 3

    def test_a_staged_change_that_keeps_a_merge_from_being_reverted_is_said(self, made: ActingRepository) -> None:
        made.list()

        def commit_then_stage(name: str, number: int) -> None:
            if name == "squash_merge":
                made.upload("raced")
                made.commit("raced")
            elif messages(made)[0] == "Delete":
                made.upload("staged")

        opened = made.open()
        api = Meddler(opened.api, frozenset({"squash_merge", "commit"}), commit_then_stage)
        outcome = made.approve(repository=replace(opened, api=cast("LakeFSApi", api)))["main"]
        assert outcome.fate is LifecycleFate.DELETED
        assert [line for line in made.warnings if f"lifecycle revert {outcome.run_id}" in line]
        assert made.call("GET", "/branches/main/diff")["results"][0]["path"] == "staged"


def test_after_a_merge_that_cannot_be_reverted_the_next_rule_is_decided_anew() -> None:
    """The commit that came between may have written the paths of the next rule."""
    with TemporaryDirectory() as folder, acting_repository(Path(folder)) as made:
        listing = made.list()
        made.listing = replace(listing, groups=(*listing.groups, replace(listing.groups[0], rule="second")))

        def by_rule(repository: OpenRepository, _: LifecycleListing, branch: Branch, note: Any) -> Any:
            still = made.expired_now(repository, listing, branch, note).get(RULE, ENTRIES.empty_table())
            is_second = pc.equal(still["path"], OLD + "2")
            return {RULE: still.filter(pc.invert(is_second)), "second": still.filter(is_second)}

        def overwrite() -> None:
            made.upload(OLD + "2", b"new content")
            made.commit("overwritten")

        opened = meddled(made, "squash_merge", overwrite)
        api = Asked(opened.api, revert=raising(HookFailed("POST …: 412: pre-revert hook aborted")))
        with mock.patch.object(acting, "expired_now", by_rule):
            outcomes = made.approve(repository=replace(opened, api=cast("LakeFSApi", api)))
        assert old(made) == [OLD + "2"]
        assert outcomes["main"].fate is LifecycleFate.KEPT and "changed since" in outcomes["main"].why
        assert [line for line in made.warnings if "pre-revert hook aborted" in line]


def test_a_commit_before_the_merge_is_noticed_and_the_merge_reverted() -> None:
    """A path written again with the same content is no conflict for the server, which goes by contents."""
    with TemporaryDirectory() as folder, acting_repository(Path(folder)) as made:
        made.list()

        def write_again() -> None:
            made.open().branches_api.delete_path("main", OLD + "1")
            made.commit("removed")
            made.upload(OLD + "1", b"old 1")
            made.commit("written")

        outcome = made.approve(repository=meddled(made, "squash_merge", write_again))["main"]
        assert (outcome.fate, outcome.objects) == (LifecycleFate.DELETED, 2)
        assert old(made) == [OLD + "1"]
        assert messages(made) == ["Delete", "Bring", "Delete", "written", "removed", "first", "Repository"]
        own = {commit["id"] for commit in made.log() if MARK in commit["metadata"]}
        assert list_own_commits(made.open().store, "repo") == own and len(own) == 3
        assert not made.own_branches()


def test_a_branch_that_moves_during_the_decision_and_back_loses_nothing_new(tmp_path: Path) -> None:
    """The decision is about the head on which it is carried out: at another one, the path has an old object."""
    with aged_repository(tmp_path) as made:
        made.add(100, "raw/a", "raw/b")
        made.policy({"paths": "raw/", "older_than": "90d"})
        listing, before = made.listed(), made.commits["100 ('raw/a', 'raw/b')"]
        made.add(1, "raw/a")
        heads = {"first_change": before, "visible_branches": made.commits["1 ('raw/a',)"]}

        def move(name: str, number: int) -> None:
            path = "/repositories/repo/branches/main/hard_reset"
            if name in heads:
                assert clients.call(made.server, "PUT", path, ref=heads.pop(name))[0] == 204

        opened = made.opened()
        api = cast("LakeFSApi", Meddler(opened.api, frozenset(heads), move))
        moving = replace(opened, api=api)
        list(acting.approve(moving, listing.digest, "test", lambda line: None, pytest.fail))
        assert [each.path for each in opened.api.list_objects("main", "").objects] == ["raw/a"]


def test_a_process_that_lost_the_lock_cannot_delete_by_its_older_decision(made: ActingRepository) -> None:
    """It wakes up while another process, which took the lock over, works on its own branch."""
    made.list()
    late = list[tuple[Any, ...]]()

    def stall(*arguments: Any) -> Any:
        late.append(arguments)
        raise Killed

    with pytest.raises(Killed):
        made.approve(repository=answering(made, delete_paths=stall))
    made.upload(OLD + "1", b"new content")
    made.commit("overwritten")

    def wake() -> None:
        with suppress(LakeFSError):
            made.open().branches_api.delete_paths(*late[0])

    outcome = made.approve(repository=meddled(made, "commit_changes", wake))["main"]
    assert (outcome.fate, outcome.objects) == (LifecycleFate.DELETED, 2)
    assert old(made) == [OLD + "1"] and not made.own_branches()


def test_a_process_that_lost_the_lock_records_nothing(made: ActingRepository) -> None:
    made.list()
    done = list[LifecycleOutcome]()

    def approver() -> str:
        if not done:
            done.append(made.approve()["main"])
        return "somebody"

    with pytest.raises(LockLost):
        made.approve(approver=approver)
    act = acts.read_act(made.open(), done[0].run_id, 0)
    assert act is not None and (act.state, act.commit_id) == (acts.ActState.DELETED, made.log()[0]["id"])


class TestInterrupted:
    def test_killed_before_any_change_it_goes_on_without_a_second_commit(self, made: ActingRepository) -> None:
        made.call("DELETE", "/branches/dev")
        done, at = False, 0
        while not done:
            at += 1
            for number in range(2):
                made.upload(f"{OLD}{number}", f"{at} {number}".encode())
            head = made.commit(f"round {at}")
            made.list()
            try:
                made.approve(repository=dying(made, at))
                done = True
            except Killed:
                outcome = made.approve()["main"]
                assert outcome.fate in (LifecycleFate.DELETED, LifecycleFate.GONE)
            log = made.log()
            assert log[0]["parents"] == [head], f"killed before change {at}: not exactly one commit"
            assert log[0]["id"] in list_own_commits(made.open().store, "repo")
            assert not old(made) and not made.own_branches()
        assert at > 10

    def test_a_later_listing_settles_what_was_left(self, made: ActingRepository) -> None:
        made.list()
        with pytest.raises(Killed):
            made.approve(repository=meddled(made, "squash_merge", raising(Killed())))  # type: ignore[arg-type]
        assert len(made.own_branches()) == 1
        made.upload(OLD + "3")
        made.commit()
        made.list()
        assert made.approve()["main"].objects == 4
        assert not made.own_branches()

    def test_a_lost_answer_of_the_merge_is_found_out(self, made: ActingRepository) -> None:
        made.list()
        outcome = made.approve(repository=merging_then(made, ServerUnavailable("timeout")))
        assert outcome["main"].fate is LifecycleFate.FAILED and "approve again to find out" in outcome["main"].why
        assert made.approve()["main"].fate is LifecycleFate.GONE
        assert messages(made) == ["Delete", "first", "Repository"] and not made.own_branches()

    def test_an_unreadable_answer_of_the_merge_is_found_out_at_once(self, made: ActingRepository) -> None:
        made.list()
        outcome = made.approve(repository=merging_then(made, LakeFSError("the answer is not JSON")))["main"]
        assert (outcome.fate, outcome.commit_id) == (LifecycleFate.DELETED, made.log()[0]["id"])
        assert list_own_commits(made.open().store, "repo") == {outcome.commit_id} and not made.own_branches()
        assert made.revert(outcome.run_id)["main"].fate is LifecycleFate.REVERTED

    def test_a_new_run_of_the_same_entries_settles_one_that_left_no_branch(self, made: ActingRepository) -> None:
        digest = made.list().digest
        with pytest.raises(Killed):
            made.approve(repository=meddled(made, "create_branch", raising(Killed())))  # type: ignore[arg-type]
        assert len([*describe_unfinished(made.open())]) == 1 and not made.own_branches()
        assert made.list().digest == digest
        assert made.approve()["main"].fate is LifecycleFate.DELETED
        assert not [*describe_unfinished(made.open())] and not made.warnings

    @pytest.mark.parametrize("is_reset", [False, True])
    def test_its_commit_is_found_behind_many_others_unless_the_branch_was_reset(
        self, made: ActingRepository, monkeypatch: pytest.MonkeyPatch, is_reset: bool
    ) -> None:
        made.list()
        opened, read = made.open(), list[str]()

        def die(*arguments: Any) -> Any:
            opened.branches_api.squash_merge(*arguments)
            raise Killed

        with pytest.raises(Killed):
            made.approve(repository=answering(made, squash_merge=die))
        merged = made.log()[0]["id"]
        if is_reset:
            made.hard_reset("main", f"{merged}~2")
        for number in range(4):
            made.upload("later", str(number).encode())
            made.commit("later")

        def commit(commit_id: str) -> Any:
            read.append(commit_id)
            return opened.api.commit(commit_id)

        monkeypatch.setattr(acts, "_MOST_COMMITS", 1)
        outcome = made.approve(repository=answering(made, commit=commit))["main"]
        assert (outcome.fate, outcome.commit_id) == (
            (LifecycleFate.KEPT, "") if is_reset else (LifecycleFate.GONE, merged)
        )
        assert (merged in read) != is_reset and (len(read) < 4) == is_reset
        assert not [*describe_unfinished(made.open())] and not made.own_branches()

    def test_damaged_records_keep_their_group_alone(self, made: ActingRepository) -> None:
        made.list("main", "dev")
        made.upload("staged")
        outcomes = made.approve()
        run_id, store = outcomes["main"].run_id, made.open().store
        made.call("PUT", "/branches/main", {"type": "reset"})
        store.put(f"{acts._ACTS}{run_id}/0.json", b"damaged")
        store.put(acts._UNFINISHED, b"damaged")
        (line,) = describe_unfinished(made.open())
        assert line.startswith(f"it is unknown if act {run_id}-0 was interrupted")
        again = made.approve()
        assert again["main"].fate is LifecycleFate.KEPT and "0.json" in again["main"].why
        assert again["dev"].fate is LifecycleFate.GONE and f"{run_id}-0 is left" in made.warnings[0]
        back = made.revert(run_id)
        assert (back["unknown"].fate, back["dev"].fate) == (LifecycleFate.FAILED, LifecycleFate.REVERTED)
        store.put(f"{acts._FOLDER}approved/{made.listing.digest}.json", b"damaged")
        assert made.approve()["main"].fate is LifecycleFate.DELETED

    def test_a_commit_that_cannot_be_read_after_the_merge_is_found_out(self, made: ActingRepository) -> None:
        made.list()
        merged, opened = list[str](), made.open()

        def merge(*arguments: Any) -> str:
            merged.append(opened.branches_api.squash_merge(*arguments))
            return merged[-1]

        def refuse_it(commit_id: str) -> Any:
            if commit_id in merged:
                raise AccessDenied("no right to read it")
            return opened.api.commit(commit_id)

        outcome = made.approve(repository=answering(made, squash_merge=merge, commit=refuse_it))["main"]
        assert outcome.fate is LifecycleFate.FAILED and "approve again to find out" in outcome.why
        outcome = made.approve()["main"]
        assert (outcome.fate, outcome.commit_id) == (LifecycleFate.GONE, merged[0])
        assert list_own_commits(made.open().store, "repo") == {*merged} and not made.own_branches()


class TestProtected:
    def test_a_protected_branch_gets_one_pull_request(self, made: ActingRepository) -> None:
        made.call("PUT", PROTECTION, [{"pattern": "main"}])
        made.list()
        first = made.approve()["main"]
        (pull,) = made.open().branches_api.open_pull_requests()
        assert first.fate is LifecycleFate.WAITING and first.why == f"pull request {pull.id}"
        assert (made.own_branches(), pull.destination) == ([pull.source], "main")
        assert pull.source in made.open().branches_api.visible_branches()
        assert len(old(made)) == 3 and not old(made, f"{pull.source}@")
        assert made.approve()["main"].why == first.why
        made.upload(OLD + "3")
        made.commit()
        made.list()
        assert made.approve()["main"].why == first.why
        made.call("PUT", f"/pulls/{pull.id}/merge", {})
        assert made.approve()["main"].fate is LifecycleFate.WAITING
        assert old(made) == [OLD + "3"] and pull.source not in made.own_branches()

    def test_a_branch_that_is_protected_meanwhile_gets_one_too(self, made: ActingRepository) -> None:
        made.list()

        def protect() -> None:
            made.call("PUT", PROTECTION, [{"pattern": "main"}])

        outcome = made.approve(repository=meddled(made, "commit_changes", protect))["main"]
        assert outcome.fate is LifecycleFate.WAITING and len(old(made)) == 3

    def test_one_that_cannot_be_recorded_can_still_be_merged(self, made: ActingRepository) -> None:
        made.call("PUT", PROTECTION, [{"pattern": "main"}])
        made.list()
        opened = made.open()

        def put(key: str, data: bytes) -> Any:
            if b"waiting for review" in data:
                raise StorageError("503")
            return opened.store.put(key, data)

        failing = replace(opened, store=cast("ObjectStore", Asked(opened.store, put=put)))
        assert made.approve(repository=failing)["main"].fate is LifecycleFate.FAILED
        assert made.approve()["main"].fate is LifecycleFate.WAITING
        (pull,) = made.open().branches_api.open_pull_requests()
        made.call("PUT", f"/pulls/{pull.id}/merge", {})
        assert made.approve()["main"].fate is LifecycleFate.GONE and not old(made)

    def test_a_closed_pull_request_keeps_it_until_it_is_approved_again(self, made: ActingRepository) -> None:
        made.call("PUT", PROTECTION, [{"pattern": "main"}])
        made.list()
        first = made.approve()["main"]
        (pull,) = made.open().branches_api.open_pull_requests()
        made.call("PATCH", f"/pulls/{pull.id}", {"status": "closed"})
        second = made.approve()["main"]
        assert second.fate is LifecycleFate.WAITING and second.why != first.why
        assert len(made.own_branches()) == 1
        closed = made.revert(first.run_id)["main"]
        assert closed.fate is LifecycleFate.UNNEEDED and not made.open().branches_api.open_pull_requests()
        assert not made.own_branches() and len(old(made)) == 3

    def test_an_unreadable_pull_request_of_another_run_ends_nothing(self, made: ActingRepository) -> None:
        made.call("PUT", PROTECTION, [{"pattern": "main"}])
        made.list()
        made.approve()
        made.upload(OLD + "3")
        made.commit()
        made.list("main", "dev")
        outcomes = made.approve(repository=answering(made, pull_request=raising(AccessDenied("403"))))
        assert outcomes["main"].fate is LifecycleFate.WAITING and outcomes["dev"].fate is LifecycleFate.DELETED
        assert "is left: 403" in made.warnings[0]

    def test_without_pull_requests_or_with_a_rule_for_every_branch_it_stays(self, made: ActingRepository) -> None:
        made.call("PUT", PROTECTION, [{"pattern": "main"}])
        made.list()
        without = answering(made, open_pull_request=raising(UnknownPath("404")), open_pull_requests=lambda: ())
        outcome = made.approve(repository=without)["main"]
        assert outcome.fate is LifecycleFate.KEPT and "the server has no pull requests" in outcome.why
        made.call("PUT", PROTECTION, [{"pattern": "*"}])
        outcome = made.approve()["main"]
        assert outcome.fate is LifecycleFate.KEPT and "rule * matches" in outcome.why
        assert not made.own_branches() and len(old(made)) == 3
