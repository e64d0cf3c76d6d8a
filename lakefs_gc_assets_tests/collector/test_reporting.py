import pytest

from lakefs_gc_assets.collector.report import Ending
from lakefs_gc_assets.collector.reporting import ending


@pytest.mark.parametrize(
    ("sweep", "candidates", "failed", "moved", "expected"),
    [
        (False, 0, 0, False, Ending.NOTHING_TO_DELETE),
        (True, 0, 0, True, Ending.NOTHING_TO_DELETE),
        (False, 3, 0, True, Ending.MARKED),
        (True, 3, 0, False, Ending.DELETED),
        (True, 3, 1, False, Ending.PARTLY_DELETED),
        (True, 3, 0, True, Ending.QUARANTINED),
        (True, 3, 1, True, Ending.PARTLY_QUARANTINED),
    ],
)
def test_how_a_run_ends(sweep: bool, candidates: int, failed: int, moved: bool, expected: Ending) -> None:
    assert ending(sweep, candidates, failed, moved) is expected
