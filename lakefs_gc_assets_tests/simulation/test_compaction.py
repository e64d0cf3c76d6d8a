"""Entries that move from staging into a compacted base while a server lists them: a history for each moment."""

from lakefs_gc_assets_tests.simulation.playing import History, Result, Step, play
from lakefs_gc_assets_tests.simulation.world import Setup

PATHS = 6
"""More paths than the run looks up one by one in the server's list, and two pages of it."""
OLD = Step("time", "seconds", (30 * 3600,))
SWEEP = Step("c0", "start", (1, 0, 0, 0))
UNTIL_SECOND_PAGE = Step("c0", "until", (1, 4))
"""The server has read the branch, and is about to read its staging token."""
UNTIL_RECHECK = Step("c0", "until", (1, 8))
"""The mark requested three pages. The server read one branch for each, and another one for the last."""
ON_TO_SECOND_PAGE = Step("c0", "until", (1, 3))
"""From the request of the first page to the moment when the second one reads the token."""
COMPACTED = Step("w1", "compact_now", (0,))
FINISH = Step("c0", "finish")


ELSEWHERE = (Step("w0", "create_branch", (4, 0)), Step("w0", "upload_now", (1, 8, 3, 0)))
"""An entry is staged on a later branch, too: a page without a row would be requested again."""


def staged(*more: Step) -> tuple[Step, ...]:
    """Staged, old objects at many paths."""
    uploads = (Step("w0", "upload_now", (0, path, 1 + path % 3, 0)) for path in range(PATHS))
    return (*ELSEWHERE, *uploads, *more, OLD)


def played(*steps: Step) -> Result:
    return play(History(Setup(old_objects=0, page_rows=3, server_skews=(0.0,)), steps), quiet=False)


def test_what_is_compacted_while_the_server_lists_it_is_live_at_the_mark() -> None:
    result = played(*staged(), SWEEP, UNTIL_SECOND_PAGE, COMPACTED, FINISH)
    assert (result.deleted, result.losses) == (0, 0)


def test_what_is_compacted_while_the_server_lists_it_again_is_live_at_the_recheck() -> None:
    replaced = (Step("w0", "upload_now", (0, 9, 1, 0)), Step("w0", "upload_now", (0, 9, 2, 0)))
    again = Step("w1", "stage_object", (0, 8, 1))
    result = played(*staged(*replaced), SWEEP, UNTIL_RECHECK, again, ON_TO_SECOND_PAGE, COMPACTED, FINISH)
    assert (result.deleted, result.losses) == (0, 0)


def test_without_a_compaction_the_replaced_object_goes() -> None:
    replaced = (Step("w0", "upload_now", (0, 9, 1, 0)), Step("w0", "upload_now", (0, 9, 2, 0)))
    assert played(*staged(*replaced), SWEEP, FINISH).deleted == 1
