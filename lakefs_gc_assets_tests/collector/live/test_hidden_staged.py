import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlparse

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.engine.port import Engine
from lakefs_gc_assets.collector.frame.frames import HEAD_ENTRIES
from lakefs_gc_assets.collector.live import hidden
from lakefs_gc_assets.collector.live.contents import ContentSample, known_contents
from lakefs_gc_assets.collector.live.hidden import Cleared, clear_hidden
from lakefs_gc_assets.collector.records.outcomes import Kept
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.retention import commits
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.formats import ranges
from lakefs_gc_assets.spark.engine import SparkEngine
from lakefs_gc_assets.storage import interface
from lakefs_gc_assets_tests.collector.made_frames import made_step
from lakefs_gc_assets_tests.replay.api_answers import ApiAnswer
from lakefs_gc_assets_tests.runs.plain_runs import PlainRuns, replays
from lakefs_gc_assets_tests.spark.frame_rows import listed

SCHEMA = pa.schema([("address", pa.string()), ("size", pa.int64()), ("etag", pa.string())])


@dataclass
class Head:
    """A committed object of a branch head, and a copy of its content without known references."""

    runs: PlainRuns
    repository: OpenRepository
    heads: dict[str, str]
    branch: str
    path: str
    content: bytes
    copy: str
    asked: list[tuple[str, str]]
    others: tuple[OpenRepository, ...] = ()

    def candidate(self, **changed: object) -> dict[str, object]:
        """The copy as a candidate."""
        usual = {"address": self.copy, "size": len(self.content), "etag": hashlib.md5(self.content).hexdigest()}
        return {**usual, **changed}

    def clear(
        self, *rows: dict[str, object], limit: int = 100, engine: Engine[Any] | None = None
    ) -> tuple[set[str], Cleared[Any]]:
        """The remaining candidates."""
        settings = self.repository.settings.model_copy(update={"hidden_suspect_limit": limit})
        engine = engine or LocalEngine()
        step = made_step(engine, replace(self.repository, settings=settings, others=self.others))
        candidates = engine.table(pa.Table.from_pylist(list(rows), schema=SCHEMA))
        with clear_hidden(step, candidates, self.heads, SCHEMA) as found:
            return set(engine.collect(found.candidates).column("address").to_pylist()), found

    def stage(self) -> None:
        """Makes the server return the copy for the path on the branch."""

        def fault(method: str, target: str) -> ApiAnswer | None:
            asked = urlparse(target)
            if not asked.path.endswith("/objects/stat"):
                return None
            place = (asked.path.split("/refs/")[1].split("/")[0], parse_qs(asked.query)["path"][0])
            self.asked.append(place)
            if place != (self.branch, self.path):
                return None
            stats = {
                "path": self.path,
                "path_type": "object",
                "physical_address": self.repository.namespace.uri + self.copy,
                "checksum": hashlib.md5(self.content).hexdigest(),
                "mtime": 0,
                "size_bytes": len(self.content),
            }
            return ApiAnswer(200, json.dumps(stats).encode())

        self.runs.server.fault = fault


@pytest.fixture
def head() -> Iterator[Head]:
    with replays() as replaying:
        yield head_of(replaying("small"))


def head_of(runs: PlainRuns) -> Head:
    """An object of the main branch's head."""
    repository = runs.repository
    live = commits.live_commits(repository, runs.clock.now())
    key = f"_lakefs/{live.heads['main']}"
    for record in ranges.read_metarange(repository.store.get(key), key):
        part = f"_lakefs/{record.id}"
        entries = ranges.read_range(repository.store.get(part), part, expected=record, columns=("keys", "etags"))
        assert entries.keys is not None
        for path, address in zip(entries.keys.to_pylist(), entries.addresses.to_pylist(), strict=True):
            if address in runs.server.stored():
                content = repository.store.get(address)
                then = runs.clock.now() - timedelta(days=9)
                generator = layout.XidGenerator()
                copy = f"data/{generator.descending(then)}/{generator.ascending(then)}"
                runs.server.place(copy, written_at=then, content=content)
                return Head(runs, repository, live.heads, "main", path.decode(), content, copy, [])
    raise AssertionError("the head has no object")


def other(head: Head) -> dict[str, object]:
    """A candidate with different content."""
    return {"address": "data/other", "size": len(head.content), "etag": "f" * 32}


def test_a_candidate_that_a_path_of_another_repository_means_is_kept(head: Head) -> None:
    """`also_live` names the other repository, which has the same branches here; this one has none."""
    head.stage()
    head.others, head.heads = (head.repository,), {}
    left, found = head.clear(head.candidate(), other(head))
    assert left == {"data/other"}
    assert found.kept == {Kept.HIDDEN_STAGED.value: 1}
    assert head.copy in found.live
    assert (head.branch, head.path) in head.asked
    assert found.asked == len(head.asked) == len(set(head.asked))


def test_a_candidate_that_a_path_means_is_kept(head: Head) -> None:
    head.stage()

    left, found = head.clear(head.candidate(), other(head))

    assert left == {"data/other"}
    assert found.kept == {Kept.HIDDEN_STAGED.value: 1}
    assert (head.branch, head.path) in head.asked
    assert found.asked == len(head.asked) == len(set(head.asked))


def test_a_candidate_with_the_content_of_a_committed_object_may_go(head: Head) -> None:
    left, found = head.clear(head.candidate(), other(head))

    assert left == {head.copy, "data/other"}
    assert found.kept == {}
    assert found.asked > 0


def test_contents_of_their_own_ask_nothing(head: Head) -> None:
    head.stage()

    left, found = head.clear({**other(head), "size": 1}, {**other(head), "address": "data/more"})

    assert left == {"data/other", "data/more"}
    assert (found.asked, head.asked) == (0, [])


def test_more_suspects_than_may_be_asked_are_kept(head: Head) -> None:
    left, found = head.clear(head.candidate(), other(head), limit=0)

    assert left == {"data/other"}
    assert found.kept == {Kept.UNCERTAIN.value: 1}
    assert found.asked == 0


def test_what_is_known_to_be_staged_is_not_uncertain_as_well(head: Head) -> None:
    """One place may be asked; whichever it is, each candidate is kept for at most one reason."""
    head.stage()

    left, found = head.clear(head.candidate(), other(head), limit=1)

    assert "data/other" in left
    assert sum(found.kept.values()) + len(left) == 2


def test_etags_that_are_no_digests_do_not_hide_a_staged_object(head: Head) -> None:
    """With KMS keys, ETags look like MD5s but are not."""
    head.stage()
    head.runs.server.place(
        head.copy, written_at=head.runs.clock.now() - timedelta(days=9), content=head.content, etag="e" * 32
    )

    left, found = head.clear(head.candidate(etag="e" * 32))

    assert left == set()
    assert found.kept == {Kept.HIDDEN_STAGED.value: 1}


@pytest.mark.parametrize(
    ("size", "etag_is_digest", "expected"),
    [
        (2 * 1024 * 1024, True, "digest"),
        (2 * 1024 * 1024, False, "digest"),
        (interface.LARGEST_READ + 1, True, None),
        (interface.LARGEST_READ + 1, False, None),
    ],
)
def test_large_objects_are_no_reason_to_believe_etags(
    head: Head, size: int, etag_is_digest: bool, expected: str | None
) -> None:
    """If no object can be read, no content is known."""
    content = b"0123456789abcdef" * (2 * 1024 * 1024 // 16)
    digest = hashlib.md5(content).hexdigest()
    etag = digest if etag_is_digest else "e" * 32
    head.runs.server.place(head.copy, written_at=head.runs.clock.now(), content=content, etag=etag)
    rows = pa.Table.from_pylist([head.candidate(size=size, etag=etag)], schema=SCHEMA)
    engine = LocalEngine()
    step, candidates = made_step(engine, head.repository), engine.table(rows)

    entry = {"range_id": "r", "path": b"p", "size": size, "etag": None, "key": None}
    entries = engine.table(pa.Table.from_pylist([entry], schema=HEAD_ENTRIES))

    looking = ContentSample(None, 1.0, "seed")
    with known_contents(step, candidates, entries, SCHEMA, looking, None) as known:
        assert engine.collect(known.candidates).to_pylist() == [
            {"address": head.copy, "size": size, "etag": digest if expected else None, "unreadable": False}
        ]


@pytest.mark.parametrize("etag", [None, "0123456789abcdef0123456789abcdef-2", "odd"])
def test_without_a_digest_content_or_size_decides(head: Head, etag: str | None) -> None:
    head.stage()

    left, found = head.clear(head.candidate(etag=etag))

    assert left == set()
    assert found.kept == {Kept.HIDDEN_STAGED.value: 1}


@pytest.mark.slow
@pytest.mark.parametrize(("few", "limit"), [(10_000, 100), (0, 100), (0, 0)])
def test_tasks_of_spark_read_contents_and_choose_as_well(
    spark: SparkSession, head: Head, monkeypatch: pytest.MonkeyPatch, few: int, limit: int
) -> None:
    monkeypatch.setattr(hidden, "_FEW_PLACES", few)
    head.stage()

    left, found = head.clear(head.candidate(etag=None), other(head), limit=limit, engine=SparkEngine(spark, 2))

    assert left == {"data/other"}
    assert found.kept == {(Kept.HIDDEN_STAGED if limit else Kept.UNCERTAIN).value: 1}


def test_rows_of_a_listing_are_enough(head: Head) -> None:
    rows = listed(head.copy, size=len(head.content), etag=hashlib.md5(head.content).hexdigest())

    left, _ = head.clear({name: rows[name] for name in SCHEMA.names})

    assert left == {head.copy}
