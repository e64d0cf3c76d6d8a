"""The job that restores objects from quarantine: it first lists them, and restores them once confirmed."""

from dataclasses import dataclass
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from lakefs_gc_assets.collector.records import across_runs
from lakefs_gc_assets.collector.repository import lock
from lakefs_gc_assets.collector.repository.lock import Lock
from lakefs_gc_assets.collector.sweep import sweeping
from lakefs_gc_assets.collector.sweep.sweeping import Quarantine
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets_tests.collector.frame.test_receipts import candidates
from lakefs_gc_assets_tests.collector.past_runs import DAY, HOUR, NOW, began
from lakefs_gc_assets_tests.collector.scripted import HandClock
from lakefs_gc_assets_tests.collector.sweep.test_sweeping_deletion_move import ALL, KEYS
from lakefs_gc_assets_tests.defs.automated import Automated, automated, failure_in, output_of, server

__all__ = ["automated", "server"]


@dataclass
class Moved:
    """A repository with three objects that a run moved to quarantine."""

    automated: Automated
    run_id: str

    def there(self) -> set[str]:
        store = self.automated.repository.store
        return {key for batch in store.list("data/") for key in batch["key"].to_pylist()}.intersection(KEYS)

    def launch(self, **config: Any) -> dg.ExecuteInProcessResult:
        job = self.automated.definitions.resolve_job_def("restore")
        given = {"ops": {"bring_back": {"config": {"run_id": self.run_id, **config}}}}
        return job.execute_in_process(instance=self.automated.instance, run_config=given, raise_on_error=False)


@pytest.fixture
def moved(automated: Automated) -> Moved:
    repository = automated.repository
    for batch in repository.store.list(layout.QUARANTINE_PREFIX):
        repository.store.delete(batch["key"].to_pylist())
    for key, content in ALL.items():
        repository.store.put(key, content)
    run = began(repository, DAY)
    held = Lock.acquire(repository.store, run_id=run.run_id, owner="run", now=NOW, expiry=HOUR)
    sizes = pa.array([len(content) for content in ALL.values()], pa.int64())
    rows = candidates(*KEYS).drop_columns(["size"]).append_column("size", sizes)
    assert [*Quarantine(repository.store, run.run_id, held.token, HandClock(), run.attempt).delete(rows)]
    held.release()
    return Moved(automated, run.run_id)


def test_it_shows_what_it_would_do(moved: Moved) -> None:
    page = output_of(moved.launch())

    assert (page["objects"], page["bytes"]) == (3, sum(map(len, ALL.values())))
    assert all(f"- {key}, " in page["for_example"] for key in KEYS)
    assert "confirm: true" in page["next"]
    assert moved.there() == set()
    assert across_runs.read_restoration(moved.automated.repository.store) is None


def test_it_brings_back_what_is_asked_for_when_it_is_confirmed(moved: Moved) -> None:
    page = output_of(moved.launch(confirm=True, addresses=[KEYS[0]]))

    assert (page["objects"], page["restored"]) == (1, 1)
    assert moved.there() == {KEYS[0]}

    page = output_of(moved.launch(confirm=True))

    assert (page["objects"], page["restored"], page["there already"]) == (3, 2, 1)
    assert moved.there() == set(KEYS)
    assert across_runs.read_restoration(moved.automated.repository.store) is not None
    assert lock.holder(moved.automated.repository.store) is None


def test_what_does_not_come_back_fails_the_run_and_is_reported(moved: Moved) -> None:
    moved.automated.repository.store.delete([sweeping.key(moved.run_id, KEYS[1])])

    result = moved.launch(confirm=True)

    assert not result.success
    assert failure_in(result).startswith("1 object was not restored")
    assert moved.there() == {KEYS[0], KEYS[2]}


def test_a_run_that_there_is_not_is_reported_in_a_line(moved: Moved) -> None:
    assert "this repository has no run" in failure_in(moved.launch(run_id="c" * 20))
