"""Losses that no collector can prevent, as lakeFS promises nothing: a history for each, and its limits."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import pytest

from lakefs_gc_assets.collector.frame.frames import STEPS
from lakefs_gc_assets.collector.sweep import sweeping
from lakefs_gc_assets.lakefs.api.models import UncommittedPage
from lakefs_gc_assets_tests.simulation import writers
from lakefs_gc_assets_tests.simulation.bucket import md5
from lakefs_gc_assets_tests.simulation.clocks import DAY, HOUR, MINUTE
from lakefs_gc_assets_tests.simulation.decode_cache import remembering
from lakefs_gc_assets_tests.simulation.failing_calls import Faults
from lakefs_gc_assets_tests.simulation.fault_kinds import DRY
from lakefs_gc_assets_tests.simulation.lakefs_files import Entry
from lakefs_gc_assets_tests.simulation.oracle import Oracle, Violation
from lakefs_gc_assets_tests.simulation.other_repository import Around
from lakefs_gc_assets_tests.simulation.playing import History, Result, Step, deterministic, play
from lakefs_gc_assets_tests.simulation.repository import Repository
from lakefs_gc_assets_tests.simulation.run_requests import ASKED
from lakefs_gc_assets_tests.simulation.scenes import Ended, Scene
from lakefs_gc_assets_tests.simulation.servers import CollectorsApi, Server, Servers
from lakefs_gc_assets_tests.simulation.stored_results import addresses
from lakefs_gc_assets_tests.simulation.world import Setup, World

OLD = Step("time", "seconds", (int(30 * HOUR),))
REPLACED = (Step("w0", "upload_now", (0, 0, 1, 0)), Step("w0", "upload_now", (0, 0, 2, 0)), OLD)
"""The first of two objects at one path is garbage, and old enough."""
SWEEP = Step("c0", "start", (1, 0, 0, 0))
UNTIL_PREPARE = Step("c0", "until", (1, 1))
UNTIL_DUMP = Step("c0", "until", (3, 1))
UNTIL_CANDIDATES = Step("c0", "until", (6, 1))
UNTIL_RECHECK = Step("c0", "until", (6, 2))
UNTIL_DELETE = Step("c0", "until", (7, 1))
STAGED_AGAIN = Step("w1", "stage_object", (0, 3, 1))
FINISH = Step("c0", "finish")


def played(*steps: Step, setup: Setup = Setup(old_objects=0)) -> Result:  # noqa: B008
    return play(History(setup, steps), quiet=False)


class TestStageObject:
    """lakeFS stages any address in the namespace that a client names, even of garbage."""

    def test_garbage_staged_again_after_the_recheck_is_lost(self) -> None:
        result = played(*REPLACED, SWEEP, UNTIL_DELETE, STAGED_AGAIN, FINISH)
        assert (result.deleted, result.losses) == (1, 1)

    def test_staged_again_before_the_recheck_it_is_kept(self) -> None:
        result = played(*REPLACED, SWEEP, UNTIL_DUMP, STAGED_AGAIN, FINISH)
        assert (result.deleted, result.losses) == (0, 0)

    def test_committed_before_the_recheck_it_is_kept(self) -> None:
        commit = Step("w1", "commit_now", (0, 0, 0))
        result = played(*REPLACED, SWEEP, UNTIL_DUMP, STAGED_AGAIN, commit, FINISH)
        assert (result.deleted, result.losses) == (0, 0)

    def test_with_the_content_of_the_committed_object_at_its_path_a_recheck_does_not_see_it(self) -> None:
        again = Step("w0", "upload_again", (0, 0, 0))
        commit = Step("w0", "commit_now", (0, 0, 0))
        staged_again = Step("w1", "stage_object", (0, 0, 1))
        result = played(REPLACED[0], commit, again, again, OLD, SWEEP, UNTIL_RECHECK, staged_again, FINISH)
        assert (result.deleted, result.losses) == (1, 1)

    def test_nor_where_a_commit_under_way_takes_the_committed_object_away_after_it(self) -> None:
        again = Step("w0", "upload_again", (0, 0, 0))
        commit, removal = Step("w0", "commit_now", (0, 0, 0)), Step("w2", "delete", (0, 0))
        staged_again = Step("w1", "stage_object", (0, 0, 2))
        marked = (REPLACED[0], commit, again, again, OLD, SWEEP, UNTIL_RECHECK)
        under_way = (removal, Step("w2", "commit", (0, 0, 0)), staged_again, UNTIL_DUMP, Step("w2", "go_on", (0,)))
        result = played(*marked, UNTIL_PREPARE, *under_way, FINISH)
        assert (result.deleted, result.losses) == (1, 1)


@pytest.mark.parametrize(("beyond", "marked"), [(0, False), (1, True)])
def test_a_size_that_a_client_names_wrongly_hides_what_equals_the_committed_object(beyond: int, marked: bool) -> None:
    """A client that links an object names its size, which is not compared with the store."""
    with remembering(), deterministic(2):
        scene = Scene(World.from_setup(Setup(old_objects=0)))
        linked = [_link_to_main(scene.world, b"the same", beyond)]
        scene.do((("commit_now", (0, 0, 0)),))
        linked.append(_link_to_main(scene.world, b"the same", beyond))
        assert not [*scene.world.repository.changes(scene.world.repository.branches["main"])]
        scene.world.pass_time(10 * DAY)

        assert scene.start(DRY, Faults(), ASKED) is Ended.WELL

        assert (linked[1] in addresses(scene.store, scene.reported.run_id, "candidates")) is marked


def _link_to_main(world: World, content: bytes, beyond: int) -> str:
    """Links an object to one path of main, with its size overstated by some bytes; returns its address."""
    address = world.issue(world.servers.servers[0])[0]
    world.bucket.put_data(address, content)
    entry = Entry(address, 1, len(content) + beyond, md5(content))
    world.repository.stage(world.repository.branches["main"], "a", entry)
    return address


def test_one_batch_that_is_under_way_is_not_called_back() -> None:
    """A machine that stands still between the request and the deletion still deletes, however late."""
    result = played(*REPLACED, SWEEP, UNTIL_DELETE, Step("c0", "freeze"), OLD, STAGED_AGAIN, FINISH)
    assert (result.deleted, result.losses) == (1, 1)


class TestDeletedWithoutReceipt:
    """A sweep is killed between a deletion and its receipts: the next attempt cannot know of it."""

    KILLED = (Step("c0", "go_on", (1,)), Step("c0", "kill"))

    def test_staged_again_before_the_recheck_of_the_next_attempt_it_counts_as_kept(self) -> None:
        steps = (SWEEP, UNTIL_DELETE, STAGED_AGAIN, *self.KILLED, Step("c0", "resume", (0, 8)), FINISH)
        result = played(*REPLACED, *steps)
        assert (result.deleted, result.losses) == (1, 1)

    def test_where_the_store_refuses_the_next_attempt_it_counts_as_failed(self) -> None:
        refused = (Step("c0", "resume", (0, 3)), Step("c0", "refuse_deletes", (1,)))
        result = played(*REPLACED, SWEEP, UNTIL_DELETE, *self.KILLED, *refused, FINISH)
        assert (result.deleted, result.losses) == (1, 0)


class TestLongCommits:
    """If a path that is being committed is staged again, the server lists only the newer entry."""

    STEPS = (
        Step("w0", "upload_now", (0, 0, 1, 0)),
        OLD,
        Step("w0", "commit", (0, 0, 0)),
        Step("w1", "upload_now", (0, 0, 2, 0)),
        SWEEP,
        FINISH,
    )

    @pytest.mark.parametrize("dumps", [True, False])
    @pytest.mark.parametrize("hook_minutes", [0, 17])
    def test_one_that_ends_within_the_wait_keeps_its_objects(self, dumps: bool, hook_minutes: int) -> None:
        setup = Setup(old_objects=0, dumps=dumps, hook_minutes=hook_minutes)
        assert played(*self.STEPS, setup=setup).deleted == 0

    @pytest.mark.parametrize("dumps", [True, False])
    def test_one_that_takes_longer_than_anybody_said_can_lose_what_is_staged_anew_meanwhile(self, dumps: bool) -> None:
        with (
            mock.patch.object(writers, "COMMIT_SECONDS", 2 * HOUR),
            pytest.raises(Violation, match="a commit under way"),
        ):
            played(*self.STEPS, setup=Setup(old_objects=0, dumps=dumps))

    def test_an_approval_makes_up_for_a_dry_run_that_dumps_refs_at_once(self) -> None:
        """The dry run names the object, since its dump came too early; the approval waits for the commit."""
        with remembering(), deterministic(2):
            scene = Scene(World.from_setup(Setup(old_objects=0, hook_minutes=17)))
            scene.do((("upload_now", (0, 0, 1, 0)),))
            scene.world.pass_time(30 * HOUR)
            (old,) = [key for key in scene.world.bucket.objects if key.startswith("data/")]
            scene.world.start("w0 commit", writers.commit(scene.world, 0, 0, 0))
            scene.world.start("w1 upload_now", writers.OPERATIONS["upload_now"](scene.world, 0, 0, 2, 0))
            assert scene.start(DRY, Faults(), ASKED) is Ended.WELL
            assert addresses(scene.store, scene.reported.run_id, "candidates") == {old}
            assert scene.opened is not None
            scene.completed[scene.opened.run_id] = [*STEPS[:4]]
            approved = DRY.model_copy(update={"approve_run": scene.opened.run_id})
            assert scene.go_on(approved, Faults()) is Ended.WELL
            head = scene.world.repository.head(scene.world.repository.branches["main"])
            assert [entry.address for entry in head.values()] == [old]
            assert old in scene.world.bucket.objects
            assert scene.reported.waited_seconds["deleted_report"] > 10 * 17 * MINUTE


class TestServersThatLeaveOutWhatIsStaged:
    """A server may fail to read staged entries without an error; two reads differ only if enough time passes in
    between."""

    STEPS = (Step("w0", "upload_now", (0, 0, 1, 0)), OLD, SWEEP, FINISH)

    @staticmethod
    @contextmanager
    def blind_for(seconds: float) -> Iterator[None]:
        """Hides all staged entries for some seconds after the first request."""
        prepare = Servers.prepare
        began: list[float] = []

        def prepared(self: Servers, server: Server, *more: Any) -> UncommittedPage:
            now = server.clock.time.now
            began[:] = began or [now]
            blind = mock.patch.object(Repository, "changes_over", lambda self, branch, compacted: iter(()))
            with blind if now - began[0] < seconds else nullcontext():
                return prepare(self, server, *more)

        with (
            mock.patch.object(Servers, "prepare", prepared),
            mock.patch.object(CollectorsApi, "changes", lambda self, branch: iter(())),
            mock.patch.object(Oracle, "marked", lambda self, run_id, candidates: None),
        ):
            yield

    def test_the_wait_before_the_recheck_outlasts_some_minutes_of_that(self) -> None:
        with self.blind_for(5 * MINUTE):
            assert played(*self.STEPS).deleted == 0

    def test_so_does_it_where_uncommitted_data_was_prepared_long_after_the_listing(self) -> None:
        later = (UNTIL_PREPARE, Step("time", "seconds", (int(20 * MINUTE),)), FINISH)
        with self.blind_for(5 * MINUTE):
            assert played(*self.STEPS[:-1], *later).deleted == 0

    def test_without_that_wait_what_is_staged_is_lost(self) -> None:
        with (
            self.blind_for(5 * MINUTE),
            mock.patch.object(sweeping, "wait_for_recheck", lambda step, uncommitted: None),
            pytest.raises(Violation),
        ):
            played(*self.STEPS)


UNLISTED = (
    Step("w0", "upload_now", (0, 0, 1, 0)),
    Step("w0", "commit_now", (0, 0, 0)),
    Step("w0", "upload_again", (0, 0, 0)),
    OLD,
    SWEEP,
)
"""An object staged with the content of the committed one at its path, and a run that begins."""
RENAMED = (*UNLISTED, UNTIL_DUMP, Step("w0", "move", (0, 0, 5, 0)), FINISH)
IMPORTED = (
    *UNLISTED,
    UNTIL_CANDIDATES,
    Step("w1", "import_objects", (0, 1, 0)),
    Step("time", "seconds", (20 * 60,)),
    Step("w0", "commit_now", (0, 0, 0)),
    FINISH,
)
"""The commit removes the staged entry; an entry imported meanwhile holds its object."""


@pytest.mark.parametrize(
    ("steps", "setup"),
    [(RENAMED, Setup(old_objects=0, rules="seed")), (IMPORTED, Setup(old_objects=0))],
    ids=["renamed", "imported"],
)
class TestUnlistedAndReferencedInAnotherWay:
    """A staged entry with a committed content is looked up at its path, which no longer has it."""

    def test_a_mark_may_name_such_an_object(self, steps: tuple[Step, ...], setup: Setup) -> None:
        with (
            mock.patch.object(Oracle, "moved_unseen", lambda self, key: None),
            pytest.raises(Violation, match="marks"),
        ):
            played(*steps, setup=setup)

    def test_no_sweep_deletes_it(self, steps: tuple[Step, ...], setup: Setup) -> None:
        result = played(*steps, setup=setup)
        assert (result.deleted, result.losses) == (0, 0)


def _reset_hard(world: World, branch: int, entries: int) -> Iterator[float | None]:
    """Moves a branch to the commit with so many entries, as a server does it: whatever is staged stays.

    See `ResetHard` in `pkg/graveler/graveler.go` of lakeFS 1.86.
    """
    commits = {len(record.entries): commit_id for commit_id, record in world.repository.commits.items()}
    writers.branch_at(world, branch).commit_id = commits[entries]
    yield from ()


class TestHardResetsThatHideAStagedObject:
    """The server lists a staged object only while its branch is on a commit without the object's content at the path.

    The mark looks it up by the heads of the refs dump and by those right before uncommitted data. No recheck does.
    """

    AWAY, BACK = Step("w1", "reset_hard", (0, 0)), Step("w1", "reset_hard", (0, 1))

    def played(self, *steps: Step, setup: Setup = Setup(old_objects=0)) -> int:  # noqa: B008
        """Number of deleted objects of a run; AWAY sets the branch to its empty first commit."""
        with mock.patch.dict(writers.OPERATIONS, {"reset_hard": _reset_hard}):
            return played(*steps, FINISH, setup=setup).deleted

    def test_one_that_shows_it_before_the_recheck_keeps_it(self) -> None:
        assert self.played(*UNLISTED, UNTIL_DUMP, self.AWAY) == 0

    def test_a_second_one_that_hides_it_again_keeps_it(self) -> None:
        for setup in (Setup(old_objects=0), Setup(old_objects=0, rules="seed"), Setup(old_objects=0, dumps=False)):
            assert self.played(*UNLISTED, UNTIL_DUMP, self.AWAY, UNTIL_CANDIDATES, self.BACK, setup=setup) == 0

    def test_a_third_one_between_samples_and_uncommitted_data_loses_it(self) -> None:
        during_mark = (UNTIL_PREPARE, self.BACK, UNTIL_DUMP, self.AWAY, UNTIL_CANDIDATES, self.BACK)
        with pytest.raises(Violation, match="it is referenced since"):
            self.played(*UNLISTED[:-1], self.AWAY, UNLISTED[-1], *during_mark)


def test_a_commit_does_not_take_up_what_equals_the_committed_object() -> None:
    """Such an object is therefore garbage if its path is staged again while the commit is in progress."""
    under_way = (Step("w1", "commit", (0, 0, 0)), Step("w2", "upload_now", (0, 0, 2, 0)))
    result = played(*UNLISTED, Step("c0", "until", (5, 2)), *under_way, FINISH)
    assert (result.deleted, result.losses) == (1, 0)


class TestExpiredDataThatComesBackIntoUse:
    """Expired data is used again by a revert, a branch on an old commit, a longer rule: the state when the last recheck
    begins counts."""

    SETUP = Setup(old_objects=0, retention=True)
    DAYS = Step("time", "seconds", (int(4 * 24 * HOUR),))
    REPLACED = (
        Step("a0", "set_rules", (3, 4, 3)),
        Step("w0", "upload_now", (0, 0, 1, 0)),
        Step("w0", "commit_now", (0, 0, 0)),
        Step("w0", "upload_now", (0, 0, 2, 0)),
        Step("w0", "commit_now", (0, 0, 0)),
        DAYS,
    )
    """The rules keep two days; four days ago the first of two objects was replaced."""
    SWEEP = Step("c0", "start", (1, 0, 0, 0, 2, 0))
    UNTIL_SWEEP = Step("c0", "until", (11, 1))
    LONGER = Step("a0", "lengthen_rules", (9,))
    BRANCHES = (Step("w1", "branch_commit", (0, 0)), Step("w1", "branch_commit", (0, 0)))
    """Branches on both old commits, including the empty first one."""

    def played(self, *steps: Step) -> tuple[int, int]:
        """Number of objects that a run deletes while these steps happen, and number of lost ones."""
        result = play(History(self.SETUP, (*self.REPLACED, self.SWEEP, *steps, FINISH)), quiet=False)
        return result.deleted, result.too_late

    def test_it_goes_where_nothing_happens(self) -> None:
        assert self.played() == (1, 0)

    def test_what_happens_before_the_recheck_keeps_it(self) -> None:
        assert self.played(self.UNTIL_SWEEP, *self.BRANCHES) == (0, 0)
        assert self.played(self.UNTIL_SWEEP, self.LONGER) == (0, 0)

    def test_what_is_staged_again_while_the_recheck_reads_stays(self) -> None:
        """Uncommitted data is prepared by then; the branch that showed the object is set back before refs are read."""
        moved = [
            step
            for branch in (0, 1)
            for step in (
                Step("w2", "hard_reset", (branch, 0, 1)),
                Step("w3", "set_metadata", (branch, 0, 1)),
                Step("w2", "go_on", (0,)),
            )
        ]
        assert self.played(self.UNTIL_SWEEP, *self.BRANCHES, Step("c0", "until", (3, 1)), *moved) == (0, 0)

    def test_what_happens_after_it_is_too_late(self) -> None:
        assert self.played(UNTIL_DELETE, *self.BRANCHES) == (1, 1)
        assert self.played(UNTIL_DELETE, self.LONGER) == (1, 1)

    def test_a_sweep_that_takes_longer_than_a_recheck_is_valid_checks_again(self) -> None:
        """The critical time is therefore no longer than a recheck is valid."""
        pause = Step("time", "seconds", (int(HOUR),))
        killed, resumed = Step("c0", "kill"), Step("c0", "resume", (0, 1000))
        assert self.played(UNTIL_DELETE, killed, *self.BRANCHES, pause, resumed) == (0, 0)

    def test_staged_data_stays_whatever_becomes_of_its_commit(self) -> None:
        staged = Step("w1", "stage_object", (0, 3, 0))
        assert self.played(self.UNTIL_SWEEP, staged) == (0, 0)


class TestTimesOfFilesThatSomebodySetsBack:
    """A commit is as old as the latest date of its claim, its file and its parents; two are false here."""

    SETUP = Setup(old_objects=0, retention=True)
    RULES = Step("a0", "set_rules", (3, 4, 3))
    DAYS = Step("time", "seconds", (int(10 * DAY),))
    PUT_BACK = Step("o2", "set_files_back", (800, 1))
    """The rules keep two days; ten days ago the first of two objects was committed, and was a head until today."""

    def played(self, claimed_days: int, *steps: Step) -> int:
        """Number of objects that a run deletes a day after a commit with that date replaced the first of two."""
        replaced = (
            Step("w0", "upload_now", (0, 0, 1, 0)),
            Step("w0", "commit_now", (0, 0, 0)),
            self.DAYS,
            Step("w0", "upload_now", (0, 0, 2, 0)),
            Step("w0", "commit_now", (0, writers.dated(claimed_days), 0)),
        )
        run = TestExpiredDataThatComesBackIntoUse.SWEEP
        steps = (self.RULES, *replaced, *steps, Step("time", "seconds", (int(30 * HOUR),)), run, FINISH)
        return play(History(self.SETUP, steps), quiet=False).deleted

    def test_one_false_statement_alone_loses_nothing(self) -> None:
        assert self.played(-800) == 0
        assert self.played(0, self.PUT_BACK) == 0

    def test_both_together_expire_what_was_a_head_within_the_window(self) -> None:
        with pytest.raises(Violation, match="referenced all the time"):
            self.played(-800, self.PUT_BACK)

    def test_files_that_are_renewed_keep_more(self) -> None:
        renewed = Step("o2", "renew_files", (1,))
        assert self.played(0, Step("time", "seconds", (int(3 * DAY),))) == 1
        assert self.played(0, renewed, Step("time", "seconds", (int(3 * DAY),))) == 1
        assert self.played(0, Step("time", "seconds", (int(3 * DAY),)), renewed) == 0


class TestExpiredDataThatAnotherRepositoryStages:
    """A repository in `also_live` stages one of our objects by its address after the mark."""

    SETUP = Setup(old_objects=0, retention=True, around=Around(other="importer"))
    REPLACED = (Step("w0", "upload_now", (0, 1, 1, 0)), *TestExpiredDataThatComesBackIntoUse.REPLACED)
    """As there, with another object of the same content that stays."""
    OF_WHAT_STAYS, OF_WHAT_EXPIRED = Step("o0", "other_import", (8, 0, 0)), Step("o0", "other_import", (8, 1, 0))
    COMMITTED = Step("o0", "other_commit", (0,))

    def played(self, *steps: Step, before: tuple[Step, ...] = ()) -> tuple[int, int]:
        run = TestExpiredDataThatComesBackIntoUse
        steps = (*self.REPLACED, *before, run.SWEEP, run.UNTIL_SWEEP, *steps, FINISH)
        result = play(History(self.SETUP, steps), quiet=False)
        return result.deleted, result.losses

    def test_a_recheck_keeps_it(self) -> None:
        assert self.played() == (1, 0)
        assert self.played(self.OF_WHAT_EXPIRED) == (0, 0)

    def test_but_not_where_it_equals_what_is_committed_there(self) -> None:
        """The server does not list it then, and a recheck does not look it up."""
        assert self.played(self.OF_WHAT_EXPIRED, before=(self.OF_WHAT_STAYS, self.COMMITTED)) == (1, 1)
