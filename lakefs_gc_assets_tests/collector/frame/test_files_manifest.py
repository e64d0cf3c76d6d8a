import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.collector.frame import files as manifests
from lakefs_gc_assets.collector.frame.files import FrameFile, Manifest, Span
from lakefs_gc_assets.collector.frame.frames import CANDIDATES_DF, FRAMES, STORE_DF, Frame, ReasonsToStay, StoredFigures
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.records.figures import OLDEST, STEP_FIGURES, StepFigures, of_step
from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.collector.records.records_json import with_digest
from lakefs_gc_assets.errors import CorruptFile, OrderViolation
from lakefs_gc_assets.lakefs.api.models import RetentionRules
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.collector.made_frames import (
    CANDIDATE_FIGURES,
    COMMITTED_FIGURES,
    LISTED_FIGURES,
    UNCOMMITTED_FIGURES,
)
from lakefs_gc_assets_tests.servers.stores import bucket, local_store, s3_server, s3_store, store
from lakefs_gc_assets_tests.spark.frame_rows import RUN_ID, span

__all__ = ["bucket", "local_store", "s3_server", "s3_store", "store"]

TEXT = st.text(max_size=20)
COUNTS = st.integers(0, 2**62)
TIMES = st.datetimes(datetime(1990, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))
VALUES: dict[object, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: COUNTS,
    str: TEXT,
    int | None: st.none() | COUNTS,
    str | None: st.none() | TEXT,
    float | None: st.none() | st.floats(0, 1e6),
    ReasonsToStay | None: st.none()
    | st.builds(
        ReasonsToStay,
        st.dictionaries(TEXT, TEXT, max_size=2),
        st.dictionaries(TEXT, TEXT, max_size=2),
        st.none() | st.builds(RetentionRules, COUNTS, st.dictionaries(TEXT, COUNTS, max_size=2)),
        TEXT,
    ),
    tuple[str, ...]: st.lists(TEXT, max_size=2).map(tuple),
    tuple[tuple[str, str, str], ...]: st.lists(st.tuples(TEXT, TEXT, TEXT), max_size=2).map(tuple),
    Mapping[str, str]: st.dictionaries(TEXT, TEXT, max_size=2),
    Mapping[str, int]: st.dictionaries(TEXT, COUNTS, max_size=2),
}
"""Values per type in figures."""


def figures_of(frame: Frame[Any]) -> st.SearchStrategy[Any]:
    """Figures and facts of a kind of frame, every one of them with a value of its own."""
    types, own = get_type_hints(frame.figures), of_step(frame.name)
    values = {name: VALUES[kind] for name, kind in types.items() if name not in STEP_FIGURES or name in own}
    known = {name: value.filter(is_known) for name, value in values.items() if name in own and not own[name].optional}
    return st.builds(frame.figures, **(values | known))


def is_known(value: object) -> bool:
    return value is not None


MANIFESTS = st.sampled_from([*FRAMES.values()]).flatmap(
    lambda frame: st.builds(
        Manifest,
        st.builds(Span, st.just(frame.name), TEXT, TEXT, TIMES, TIMES),
        st.lists(st.builds(FrameFile, TEXT, TEXT, COUNTS, COUNTS, TEXT, COUNTS), max_size=4).map(tuple),
        figures_of(frame),
        VALUES[Mapping[str, str]],
    )
)


def made(*files: FrameFile) -> Manifest[StoredFigures]:
    return Manifest(span(), files, LISTED_FIGURES, {"before": "digest"})


@given(MANIFESTS)
def test_a_manifest_is_read_as_it_was_written(manifest: Manifest[Any]) -> None:
    again = Manifest.from_json(manifest.to_json(), "key", FRAMES[manifest.span.frame])

    assert again == manifest
    assert again.digest == manifest.digest


@given(MANIFESTS, MANIFESTS)
def test_a_digest_names_one_content(one: Manifest[Any], other: Manifest[Any]) -> None:
    assert (one.digest == other.digest) == (one == other)


def test_sums_are_those_of_the_files() -> None:
    manifest = made(
        FrameFile("a", "2026-10", 1, 10, "x", 100),
        FrameFile("b", "2026-11", 2, 20, "y", 200),
        FrameFile("c", "2026-10", 4, 40, "z", 400),
    )

    assert (manifest.rows, manifest.file_bytes, manifest.object_bytes) == (7, 70, 700)
    assert manifest.rows_by_window() == {"2026-10": 5, "2026-11": 2}
    assert (made().rows, made().rows_by_window(), made().classes) == (0, {}, {})


def test_classes_are_summed_and_a_manifest_from_before_names_none() -> None:
    with_classes = made(
        FrameFile("a", "2026-10", 3, 10, "x", 100, {"STANDARD": [1, 40], "GLACIER": [2, 60]}),
        FrameFile("b", "2026-11", 1, 20, "y", 200, {"STANDARD": [1, 200]}),
    )
    again = Manifest.from_json(with_classes.to_json(), "key", STORE_DF)
    assert again.classes == {"STANDARD": Amount(2, 240), "GLACIER": Amount(2, 60)}
    content = json.loads(with_classes.to_json())
    for file in content["files"]:
        del file["classes"]
    before = Manifest.from_json(with_digest(content), "key", STORE_DF)
    assert (before.classes, before.rows) == ({}, 4)


def test_a_frame_exists_once_its_manifest_does(store: ObjectStore) -> None:
    with pytest.raises(OrderViolation, match=rf"store_df of run {RUN_ID} does not exist: materialize it first"):
        manifests.read_manifest(store, RUN_ID, STORE_DF)

    manifests.write_manifest(store, made())
    assert manifests.read_manifest(store, RUN_ID, STORE_DF) == made()

    later = replace(made(), span=span(attempt="a2"))
    manifests.write_manifest(store, later)
    assert manifests.read_manifest(store, RUN_ID, STORE_DF) == later


def broken(**changed: object) -> bytes:
    return with_digest({**json.loads(made().to_json()), **changed})


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "manifest"),
        (b"null", "manifest"),
        (b"[]", "manifest"),
        (made().to_json()[:-2], "manifest"),
        (broken(format_version=1), "format version: 1, this program reads 2"),
        (broken(span={"frame": "store_df"}), "manifest"),
        (broken(files=[{"key": "a"}]), "manifest"),
        (broken(files=[{"key": "a", "slice_window": "w", "rows": 1, "bytes": 1, "sha256": "", "new": 1}]), "manifest"),
    ],
)
def test_what_is_no_manifest_ends_the_run(store: ObjectStore, data: bytes, what: str) -> None:
    key = run_folder.manifest(RUN_ID, "store_df")
    store.put(key, data)

    with pytest.raises(CorruptFile, match=what) as caught:
        manifests.read_manifest(store, RUN_ID, STORE_DF)
    assert caught.value.file == key


def test_a_time_without_a_zone_is_no_time() -> None:
    content = json.loads(made().to_json())
    content["span"]["ended_at"] = "2026-11-23T12:30:00"

    with pytest.raises(CorruptFile, match="time without a zone"):
        Manifest.from_json(with_digest(content), "key", STORE_DF)


def test_a_manifest_that_was_changed_ends_the_run() -> None:
    content = json.loads(made().to_json())
    content["figures"]["slices_listed"] += 1

    with pytest.raises(CorruptFile, match="changed after it was written"):
        Manifest.from_json(json.dumps(content).encode(), "key", STORE_DF)


def test_what_was_changed_since_it_was_read_is_stored_as_changed(store: ObjectStore) -> None:
    manifests.write_manifest(store, made())
    found = manifests.read_manifest(store, RUN_ID, STORE_DF)
    assert found.to_json() == made().to_json()

    changed = replace(found, figures=replace(found.figures, slices_listed=7))

    assert changed.digest != found.digest
    manifests.write_manifest(store, changed)
    assert manifests.read_manifest(store, RUN_ID, STORE_DF).figures.slices_listed == 7


def test_a_digest_is_that_of_the_very_bytes(store: ObjectStore) -> None:
    """The digest also covers figures of a later version that this version does not know."""
    content = json.loads(made().to_json())
    content["figures"]["of a later version"] = 1
    data = with_digest(content)
    store.put(run_folder.manifest(RUN_ID, "store_df"), data)

    found = manifests.read_manifest(store, RUN_ID, STORE_DF)

    assert found == made()
    assert found.digest == hashlib.sha256(data).hexdigest()
    assert found.to_json() == data


@pytest.mark.parametrize(
    ("name", "value"),
    [("slices_listed", "7"), ("slices_listed", None), ("slices_listed", 1.5), ("other_folders", "ab"), ("flow", 1)],
)
def test_figures_of_another_type_are_no_figures(name: str, value: object) -> None:
    content = json.loads(made().to_json())
    content["figures"][name] = value

    with pytest.raises(CorruptFile, match=name):
        Manifest.from_json(with_digest(content), "key", STORE_DF)


OF_STEPS: Mapping[str, StepFigures] = {
    "store_df": LISTED_FIGURES,
    "uncommitted_df": UNCOMMITTED_FIGURES,
    "committed_df": COMMITTED_FIGURES,
    "candidates": CANDIDATE_FIGURES,
}


def without(step: str, name: str) -> bytes:
    """A manifest of a step without one of its figures."""
    content = json.loads(Manifest(span(step), (), OF_STEPS[step]).to_json())
    del content["figures"][name]
    return with_digest(content)


@pytest.mark.parametrize("name", STEP_FIGURES)
def test_a_manifest_may_lack_only_figures_that_came_later(name: str) -> None:
    figure = STEP_FIGURES[name]
    data = without(figure.step, name)
    if figure.since == OLDEST:
        with pytest.raises(CorruptFile, match=f"figures are missing: {name}\\."):
            Manifest.from_json(data, "key", FRAMES[figure.step])
    else:
        assert getattr(Manifest.from_json(data, "key", FRAMES[figure.step]).figures, name) is None


@pytest.mark.parametrize("name", [name for name, figure in STEP_FIGURES.items() if figure.formerly])
def test_a_manifest_of_an_earlier_version_is_read_by_the_names_of_that_version(name: str) -> None:
    figure = STEP_FIGURES[name]
    content = json.loads(without(figure.step, name))
    content["figures"][figure.formerly] = 7
    assert getattr(Manifest.from_json(with_digest(content), "key", FRAMES[figure.step]).figures, name) == 7


def test_a_manifest_is_not_stored_without_a_figure_that_a_guard_needs(store: ObjectStore) -> None:
    manifest = Manifest(span("candidates"), (), replace(CANDIDATE_FIGURES, missing=None))
    with pytest.raises(ValueError, match="figures are missing: missing"):
        manifests.write_manifest(store, manifest)


def test_the_manifest_of_another_frame_is_not_read(store: ObjectStore) -> None:
    store.put(run_folder.manifest(RUN_ID, "candidates"), made().to_json())

    with pytest.raises(CorruptFile, match="it is the manifest of store_df"):
        manifests.read_manifest(store, RUN_ID, CANDIDATES_DF)
