"""Reasons for garbage, by the flow of the run, except for restored objects; and reasons to keep."""

import re

import pyarrow as pa
import pytest

from lakefs_gc_assets.collector.frame.frames import CANDIDATES_DF
from lakefs_gc_assets.collector.records.outcomes import MULTIPART_ETAG, PLAIN_ETAG, Kept, Why, add_why
from lakefs_gc_assets.collector.records.plan import Flow, by_flow

MD5 = "d41d8cd98f00b204e9800998ecf8427e"


@pytest.mark.parametrize("flow", Flow)
def test_a_flow_that_reads_what_any_commit_holds_says_so(flow: Flow) -> None:
    says = {
        Flow.CLEAN: Why.NO_COMMIT,
        Flow.OPTIMIZED: Why.NO_COMMIT,
        Flow.COMMITTED: Why.EXPIRED,
        Flow.UNIFIED: Why.NO_ACTIVE_COMMIT,
    }
    assert by_flow(flow) is says[flow]
    assert (by_flow(flow) is Why.NO_COMMIT) == (not flow.by_retention)


def test_what_was_brought_back_is_reported_from_the_others() -> None:
    batch = pa.RecordBatch.from_pydict({"address": ["a", "b", "c"]})
    reported = add_why(batch, Why.EXPIRED, pa.array(["b", "elsewhere"]))

    assert reported.column("why").to_pylist() == [Why.EXPIRED, Why.RESTORED, Why.EXPIRED]
    none = add_why(batch, Why.NO_COMMIT, pa.array([], pa.string()))
    assert none.column("why").to_pylist() == [Why.NO_COMMIT] * 3
    assert add_why(batch.slice(0, 0), Why.NO_COMMIT, pa.array([], pa.string())).schema == none.schema


def test_the_texts_that_frames_hold_stay_as_they_are() -> None:
    assert {each.name: each.value for each in Why} == {
        "NO_COMMIT": "no commit holds it",
        "EXPIRED": "only expired commits hold it",
        "NO_ACTIVE_COMMIT": "no active commit holds it",
        "RESTORED": "brought back, and garbage again",
    }
    (column,) = (each for each in CANDIDATES_DF.columns if each.name == "why")
    assert column.allowed == tuple(Why)
    assert CANDIDATES_DF.added == ("storage_class", "why")


@pytest.mark.parametrize(
    ("etag", "plain", "multipart"),
    [
        (MD5, True, False),
        (f"{MD5}-1", False, True),
        (f"{MD5}-10000", False, True),
        (f"{MD5}-", False, False),
        (f"{MD5}-1x", False, False),
        (f'"{MD5}"', False, False),
        (MD5[:-1], False, False),
        (f"x{MD5}-1", False, False),
        ("18b9a3-4d-7", False, False),
        ("", False, False),
    ],
)
def test_kinds_of_etags(etag: str, plain: bool, multipart: bool) -> None:
    assert (re.search(PLAIN_ETAG, etag) is not None, re.search(MULTIPART_ETAG, etag) is not None) == (plain, multipart)


def test_reasons_are_told_apart() -> None:
    assert len({reason.value for reason in Kept}) == len(Kept) == 9
