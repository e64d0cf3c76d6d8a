import logging

import pytest

from lakefs_gc_assets.collector.eligibility import Kept
from lakefs_gc_assets.collector.stored import run_folder
from lakefs_gc_assets_tests.collector.test_subtraction import place_old
from lakefs_gc_assets_tests.plain_runs import PlainRuns, Replaying, replaying

__all__ = ["replaying"]

PARTS = "0123456789abcdef0123456789abcdef-3"


def test_an_object_uploaded_in_parts_goes_an_hour_after_an_earlier_run_listed_it(replaying: Replaying) -> None:
    runs = replaying("empty", max_candidate_share=1)
    (parts,) = place_old(runs, days=3, etag=PARTS)
    (whole,) = place_old(runs, days=3)

    def marked() -> tuple[list[str], dict[str, int]]:
        opened = runs.open()
        result = runs.make(opened)
        assert result.success, result.failures
        sightings = runs.table(opened.run_id, "sightings").to_pylist()
        assert [(row["address"], row["first_listed_at"]) for row in sightings] == [(parts, first_listed_at)]
        return runs.addresses(opened.run_id, "candidates"), runs.report(opened.run_id).kept

    first_listed_at = runs.clock.now()
    assert marked() == ([whole], {Kept.MULTIPART.value: 1})
    runs.clock.sleep(3599)
    assert marked() == ([whole], {Kept.MULTIPART.value: 1})
    runs.clock.sleep(1)
    assert marked() == (sorted([parts, whole]), {})


def marked(runs: PlainRuns) -> str:
    """A mark that came to its end; returns its run."""
    opened = runs.open()
    result = runs.make(opened)
    assert result.success, result.failures
    return opened.run_id


@pytest.mark.parametrize("damaged", ["a file", "the manifest", "a file that is gone"])
def test_damaged_sightings_keep_objects_for_longer_and_end_no_run(
    replaying: Replaying, caplog: pytest.LogCaptureFixture, damaged: str
) -> None:
    runs = replaying("empty", max_candidate_share=1)
    (parts,) = place_old(runs, days=3, etag=PARTS)
    (whole,) = place_old(runs, days=3)
    earlier = marked(runs)
    (file,) = runs.frame(earlier, "sightings").manifest.files
    key = run_folder.manifest(earlier, "sightings") if damaged == "the manifest" else file.key
    store = runs.repository.store
    if damaged == "a file that is gone":
        store.delete([key])
    else:
        store.put(key, store.get(key)[:-1])
    runs.clock.sleep(3600)

    with caplog.at_level(logging.WARNING):
        again = marked(runs)

    assert runs.addresses(again, "candidates") == [whole]
    assert runs.report(again).kept == {Kept.MULTIPART.value: 1}
    warned = [line for line in [*runs.lines, caplog.text] if "an earlier run saw are kept for longer" in line]
    assert warned and all(key in line for line in warned)
    runs.clock.sleep(3600)
    assert runs.addresses(marked(runs), "candidates") == sorted([parts, whole])
