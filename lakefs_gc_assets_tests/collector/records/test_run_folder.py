from datetime import UTC, datetime, timedelta

import pytest

from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.errors import CollectionError
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.layout import Layout
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.servers.stores import local_store as store

__all__ = ["store"]

RUN = "g4uk6erfnfus73frbnqg"


def test_where_things_lie() -> None:
    root = f"_lakefs/retention/gc/uncommitted/{RUN}/"
    assert run_folder.folder(RUN) == root
    assert run_folder.plan(RUN) == root + "plan.json"
    assert run_folder.report(RUN) == root + "report.json"
    assert run_folder.page(RUN) == root + "report.html"
    assert run_folder.approval(RUN) == root + "approval.json"
    assert run_folder.frame(RUN, "store_df") == root + "store_df/"
    assert run_folder.manifest(RUN, "store_df") == root + "store_df/manifest.json"
    assert run_folder.receipts(RUN) == root + "receipts/"


@pytest.mark.parametrize("run_id", ["", ".", "..", "a/b", "../../data", "/etc", "a\\b", "a\n", "a b", "é", "a" * 101])
def test_what_is_no_name_of_a_run_becomes_no_key(run_id: str) -> None:
    for key_of in (run_folder.folder, run_folder.plan, run_folder.report, run_folder.page, run_folder.receipts):
        with pytest.raises(CollectionError, match="is not a run id"):
            key_of(run_id)


def test_nothing_of_a_run_is_ever_listed_as_data() -> None:
    for key in (run_folder.plan(RUN), run_folder.frame(RUN, "candidates") + "x", run_folder.receipts(RUN) + "y"):
        assert layout.parse(key).layout is Layout.SPECIAL


def test_runs_of_ours_newest_first(store: ObjectStore) -> None:
    assert tuple(run_folder.newest_runs(store)) == ()
    moments = [datetime(2026, 11, 21, tzinfo=UTC) - timedelta(hours=hours) for hours in (2, 0, 1)]
    ours = [layout.XidGenerator().descending(moment) for moment in moments]
    for run_id in ours:
        store.put(run_folder.plan(run_id), b"{}")
    of_the_server = layout.XidGenerator().descending(moments[0])
    store.put(run_folder.folder(of_the_server) + "uncommitted/x", b"")
    store.put(layout.RUNS_PREFIX + "no-xid/plan.json", b"{}")
    store.put(layout.RUNS_PREFIX + "lock.json", b"{}")
    assert tuple(run_folder.newest_runs(store)) == (ours[1], ours[2], ours[0])
