import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlparse

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakefs_gc_assets.collector import commits
from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.engine.port import Engine
from lakefs_gc_assets.collector.live import hidden
from lakefs_gc_assets.collector.live.hidden import Cleared, clear_hidden
from lakefs_gc_assets.collector.records.outcomes import Kept
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.formats import ranges
from lakefs_gc_assets.spark.engine import SparkEngine
from lakefs_gc_assets_tests.collector.made_frames import made_step
from lakefs_gc_assets_tests.replay.api_answers import ApiAnswer
from lakefs_gc_assets_tests.runs.plain_runs import PlainRuns, replays

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
        self,
        *rows: dict[str, object],
        limit: int = 100,
        engine: Engine[Any] | None = None,
        before: Sequence[Mapping[str, str]] = (),
    ) -> tuple[set[str], Cleared[Any]]:
        """The remaining candidates."""
        settings = self.repository.settings.model_copy(update={"hidden_suspect_limit": limit})
        engine = engine or LocalEngine()
        step = made_step(engine, replace(self.repository, settings=settings, others=self.others))
        candidates = engine.table(pa.Table.from_pylist(list(rows), schema=SCHEMA))
        with clear_hidden(step, candidates, self.heads, SCHEMA, before=before) as found:
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


@pytest.mark.parametrize("place", [0, 1])
def test_a_path_of_a_head_before_uncommitted_data_is_asked_for(head: Head, place: int) -> None:
    """The branch has another head by now, in this repository or in one of `also_live`."""
    (commit_id,) = (branch.commit_id for branch in head.repository.api.branches() if branch.id == head.branch)
    head.branch, head.heads, head.others = "moved", {}, (head.repository,)
    head.stage()
    left, found = head.clear(head.candidate(), before=({},) * place + ({"moved": commit_id},))
    assert left == set()
    assert found.kept == {Kept.HIDDEN_STAGED.value: 1}
    assert ("moved", head.path) in head.asked


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
