from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets_tests.replay.recording import (
    DeleteRefused,
    NoSuchKey,
    Overlay,
    PreconditionFailed,
    RecordedObject,
    Recording,
)

NOW = datetime(2026, 11, 23, tzinfo=UTC)
LOCK = "_lakefs/retention/gc/uncommitted/lock.json"

keys = st.text(alphabet="ab/é\U0001f600-", min_size=1, max_size=6)


def overlay(recorded: set[str], deletes: str = "refuse") -> Overlay:
    objects = {key: RecordedObject(1, NOW, "e") for key in recorded}
    recording = SimpleNamespace(objects=objects, read=lambda key: b"x", folder=Path())
    return Overlay(cast(Recording, recording), lambda: NOW, deletes)  # type: ignore[arg-type]


def listed(below: Overlay, prefix: str, delimiter: str, limit: int) -> list[str]:
    found: list[str] = []
    start: str | None = ""
    while start is not None:
        page = below.page(prefix, delimiter, start, limit)
        assert len(page.objects) + len(page.prefixes) <= limit
        found += sorted([key for key, _ in page.objects] + page.prefixes)
        start = page.next_start
    return found


@given(recorded=st.sets(keys), written=st.sets(keys), prefix=st.text("ab/é", max_size=3), limit=st.integers(1, 4))
def test_pages_make_up_the_whole_listing_at_any_depth_and_on_one_level(
    recorded: set[str], written: set[str], prefix: str, limit: int
) -> None:
    below = overlay(recorded)
    for key in written:
        below.put(key, b"")
    inside = sorted(key for key in recorded | written if key.startswith(prefix))
    assert listed(below, prefix, "", limit) == inside
    level = {prefix + head + cut for key in inside for head, cut, _ in [key[len(prefix) :].partition("/")]}
    assert listed(below, prefix, "/", limit) == sorted(level)


def test_conditions_are_kept() -> None:
    below = overlay({"a"})
    with pytest.raises(PreconditionFailed):
        below.put("a", b"1", if_absent=True)
    with pytest.raises(PreconditionFailed):
        below.put("a", b"1", if_match="other")
    with pytest.raises(NoSuchKey):
        below.put("b", b"1", if_match="e")
    first = below.put("a", b"1", if_match="e")
    assert below.read("a") == (first, b"1")
    assert below.put("b", b"2", if_absent=True).last_modified == NOW


def test_refused_deletes_change_nothing_and_are_noted() -> None:
    below = overlay({"data/x", LOCK + ".recorded"})
    below.put("data/new", b"")
    below.put(LOCK + ".recorded", b"overwritten")
    below.put(LOCK, b"")
    for key in ("data/x", "data/new", "data/missing", LOCK + ".recorded"):
        with pytest.raises(DeleteRefused):
            below.delete(key)
    below.delete(LOCK)
    with pytest.raises(NoSuchKey):
        below.head(LOCK)
    assert below.refused == {"data/x", "data/new", "data/missing", LOCK + ".recorded"}
    assert below.deleted == set()
    assert listed(below, "data/", "", 1000) == ["data/new", "data/x"]


def test_deletes_of_the_scratch_layer_are_seen_and_carried_on() -> None:
    first = overlay({"data/x", "data/y"}, "overlay")
    first.put("data/z", b"z")
    first.put("data/gone", b"")
    for key in ("data/x", "data/gone", "data/never-there"):
        first.delete(key)
    assert listed(first, "", "", 1000) == ["data/y", "data/z"]
    assert first.deleted == {"data/x"}
    recording = SimpleNamespace(
        objects={key: RecordedObject(1, NOW, "e") for key in ("data/x", "data/y", "data/later")}, read=lambda key: b"x"
    )
    second = Overlay(cast(Recording, recording), lambda: NOW, "refuse", continues=first)
    assert listed(second, "", "", 1000) == ["data/later", "data/y", "data/z"]
    assert second.read("data/z")[1] == b"z"
    assert second.deleted == set()
    second.put("data/w", b"")
    assert listed(first, "", "", 1000) == ["data/y", "data/z"]
