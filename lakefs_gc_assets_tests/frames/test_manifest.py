import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.collection import run_folder
from lakefs_gc_assets.collection.order import Span
from lakefs_gc_assets.collection.stored_records import sealed
from lakefs_gc_assets.errors import CorruptFile, OrderViolation
from lakefs_gc_assets.frames import manifest as manifests
from lakefs_gc_assets.frames.manifest import FrameFile, Manifest
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.frames.frame_rows import RUN_ID, span
from lakefs_gc_assets_tests.stores import bucket, local_store, s3_server, s3_store, store

__all__ = ["bucket", "local_store", "s3_server", "s3_store", "store"]

TEXT = st.text(max_size=20)
COUNTS = st.integers(0, 2**62)
TIMES = st.datetimes(datetime(1990, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))
MANIFESTS = st.builds(
    Manifest,
    st.builds(Span, TEXT, TEXT, TEXT, TIMES, TIMES),
    st.lists(st.builds(FrameFile, TEXT, TEXT, COUNTS, COUNTS, TEXT, COUNTS), max_size=4).map(tuple),
    st.dictionaries(TEXT, TEXT, max_size=3),
    st.dictionaries(TEXT, st.none() | COUNTS | TEXT | st.lists(TEXT, max_size=2), max_size=3),
)


def made(*files: FrameFile) -> Manifest:
    return Manifest(span(), files, {"before": "digest"}, {"pages": 2})


@given(MANIFESTS)
def test_a_manifest_is_read_as_it_was_written(manifest: Manifest) -> None:
    again = Manifest.from_json(manifest.to_json(), "key")

    assert again == manifest
    assert again.digest == manifest.digest


@given(MANIFESTS, MANIFESTS)
def test_a_digest_names_one_content(one: Manifest, other: Manifest) -> None:
    assert (one.digest == other.digest) == (one == other)


def test_sums_are_those_of_the_files() -> None:
    manifest = made(
        FrameFile("a", "2026-10", 1, 10, "x", 100),
        FrameFile("b", "2026-11", 2, 20, "y", 200),
        FrameFile("c", "2026-10", 4, 40, "z", 400),
    )

    assert (manifest.rows, manifest.file_bytes, manifest.object_bytes) == (7, 70, 700)
    assert manifest.rows_by_window() == {"2026-10": 5, "2026-11": 2}
    assert (made().rows, made().rows_by_window()) == (0, {})


def test_a_frame_exists_once_its_manifest_does(store: ObjectStore) -> None:
    with pytest.raises(OrderViolation, match=rf"store_df of run {RUN_ID} does not exist: materialize it first"):
        manifests.read(store, RUN_ID, "store_df")

    manifests.write(store, made())
    assert manifests.read(store, RUN_ID, "store_df") == made()

    later = replace(made(), span=span(attempt="a2"))
    manifests.write(store, later)
    assert manifests.read(store, RUN_ID, "store_df") == later


def broken(**changed: object) -> bytes:
    return sealed({**json.loads(made().to_json()), **changed})


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "manifest"),
        (b"null", "manifest"),
        (b"[]", "manifest"),
        (made().to_json()[:-2], "manifest"),
        (broken(format_version=2), "format version: 2, this program reads 1"),
        (broken(span={"frame": "store_df"}), "manifest"),
        (broken(files=[{"key": "a"}]), "manifest"),
        (broken(files=[{"key": "a", "slice_window": "w", "rows": 1, "bytes": 1, "sha256": "", "new": 1}]), "manifest"),
    ],
)
def test_what_is_no_manifest_ends_the_run(store: ObjectStore, data: bytes, what: str) -> None:
    key = run_folder.manifest(RUN_ID, "store_df")
    store.put(key, data)

    with pytest.raises(CorruptFile, match=what) as caught:
        manifests.read(store, RUN_ID, "store_df")
    assert caught.value.file == key


def test_a_time_without_a_zone_is_no_time() -> None:
    content = json.loads(made().to_json())
    content["span"]["ended_at"] = "2026-11-23T12:30:00"

    with pytest.raises(CorruptFile, match="time without a zone"):
        Manifest.from_json(sealed(content), "key")


def test_a_manifest_that_was_changed_ends_the_run() -> None:
    content = json.loads(made().to_json()) | {"figures": {"pages": 3}}

    with pytest.raises(CorruptFile, match="changed after it was written"):
        Manifest.from_json(json.dumps(content).encode(), "key")
