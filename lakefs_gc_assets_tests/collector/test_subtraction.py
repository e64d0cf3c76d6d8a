from dataclasses import replace
from datetime import timedelta

from lakefs_gc_assets.collector.eligibility import Kept
from lakefs_gc_assets.lakefs import xids
from lakefs_gc_assets_tests.plain_runs import PlainRuns, Replaying, replaying
from lakefs_gc_assets_tests.replayed_runs import truth_classes

__all__ = ["replaying"]


def place_old(runs: PlainRuns, days: int, count: int = 1, etag: str | None = None) -> list[str]:
    """Objects of one slice that were written so many days ago."""
    then = runs.clock.now() - timedelta(days=days)
    generator = xids.Generator()
    folder = f"data/{generator.descending(then)}/"
    addresses = [folder + generator.ascending(then) for _ in range(count)]
    for address in addresses:
        runs.server.place(address, written_at=then, etag=etag)
    return sorted(addresses)


def test_a_run_of_some_windows_collects_these_and_subtracts_all(replaying: Replaying) -> None:
    runs = replaying("chain/1")
    old = place_old(runs, days=70, count=3)
    opened = runs.open()
    assert opened.windows == ("legacy", "2026-09", "2026-11")

    result = runs.make(replace(opened, windows=("2026-09",)))

    assert result.success, result.failures
    classes = truth_classes("chain/1")
    report = runs.report(opened.run_id)
    assert report.windows == ("2026-09",)
    assert runs.addresses(opened.run_id, "candidates") == old
    assert report.kept == {Kept.OTHER_WINDOW.value: len(classes["unreferenced"])}
    windows = {name: runs.frame(opened.run_id, name).manifest.rows_by_window() for name in ("store_df", "committed_df")}
    assert windows == {
        "store_df": {"2026-09": 3, "other": report.counts["listed"] - 3},
        "committed_df": {"other": report.counts["committed"]},
    }


def test_what_is_too_young_by_its_name_or_its_writing_stays(replaying: Replaying) -> None:
    runs = replaying("empty", max_candidate_share=1)
    now = runs.clock.now()
    generator = xids.Generator()
    folder = f"data/{generator.descending(now - timedelta(days=9))}/"
    old, young = now - timedelta(hours=25, seconds=1), now - timedelta(hours=24, minutes=59)
    addresses = {
        "old": folder + generator.ascending(old),
        "young by its name": folder + generator.ascending(young),
        "young by its writing": folder + generator.ascending(old),
    }
    runs.server.place(addresses["old"], written_at=old)
    runs.server.place(addresses["young by its name"], written_at=old)
    runs.server.place(addresses["young by its writing"], written_at=young)
    runs.server.place("data/somebody/elses", written_at=old)
    opened = runs.open()

    assert runs.make(opened).success

    assert runs.addresses(opened.run_id, "candidates") == [addresses["old"]]
    assert runs.addresses(opened.run_id, "unrecognised") == ["data/somebody/elses"]
    assert runs.report(opened.run_id).kept == {Kept.YOUNG.value: 2, Kept.UNRECOGNISED.value: 1}
