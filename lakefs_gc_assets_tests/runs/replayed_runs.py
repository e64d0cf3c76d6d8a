"""Recordings that runs of tests collect: served with a clock, objects and answers that a test can change."""

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import FRAMES
from lakefs_gc_assets.collector.records import report
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.collector.repository import lock
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.settings import Configuration
from lakefs_gc_assets_tests.replay.api_answers import ApiAnswer
from lakefs_gc_assets_tests.replay.recording import DeleteRefused, Deletes, RecordedObject
from lakefs_gc_assets_tests.replay.s3_endpoint import S3Answer
from lakefs_gc_assets_tests.replay.server import ReplayServer
from lakefs_gc_assets_tests.runs.moving_clock import MovingClock
from lakefs_gc_assets_tests.runs.recordings import folder_of

AGED = timedelta(days=2)
"""Recorded objects are hours old: this makes them all old enough."""

ApiFault = Callable[[str, str], ApiAnswer | None]


class ChangedServer(ReplayServer):
    """A replay whose objects and answers a test can change.

    Attributes:
        fault: called with method and target; its answer replaces the recorded one, unless it is None.
        undeletable: keys whose deletion is refused although others are deleted.
    """

    def __init__(
        self,
        folder: Path,
        *,
        now: Callable[[], datetime],
        deletes: Deletes = "refuse",
        continues: "ChangedServer | None" = None,
    ) -> None:
        super().__init__(folder, now=now, deletes=deletes, continues=continues)
        self.fault: ApiFault = lambda method, target: None
        self.undeletable: set[str] = set()
        delete = self._overlay.delete

        def refusing(key: str, if_match: str | None = None) -> None:
            if key in self.undeletable:
                raise DeleteRefused(key)
            delete(key, if_match)

        self._overlay.delete = refusing  # type: ignore[method-assign]

    def place(self, key: str, *, written_at: datetime, etag: str | None = None, content: bytes = b"content") -> None:
        """Puts an object with a given write time."""
        facts = self._overlay.put(key, content)
        self._overlay._objects[key] = RecordedObject(facts.size, written_at, etag or facts.etag)

    def stored(self) -> set[str]:
        """Every present key."""
        return set(self._overlay._objects)

    def _api(self, method: str, target: str, headers: dict[str, str], body: bytes) -> S3Answer:
        answer = self.fault(method, target)
        if answer is not None:
            return S3Answer(answer.status, answer.body, {"Content-Type": answer.content_type})
        return super()._api(method, target, headers, body)


def refused(status: int, message: str) -> ApiAnswer:
    """An error in lakeFS's words."""
    return ApiAnswer(status, b'{"message": "%s"}' % message.encode())


@dataclass
class ReplayedRuns:
    """Runs of a replayed repository, and their files.

    Attributes:
        settings: changes of the section `collection`.
        launch: changes of the section `launch`.
        lines: all log lines of the runs.
    """

    server: ChangedServer
    clock: MovingClock
    settings: dict[str, Any] = field(default_factory=dict)
    launch: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    @property
    def loaded(self) -> Loaded:
        """The configuration."""
        content = self.server.configuration().model_dump()
        content["collection"] |= self.settings
        content["lakefs"] |= {"retries": 0}
        content["launch"] |= self.launch
        return Loaded(Configuration.model_validate(content), {})

    @property
    def repository(self) -> OpenRepository:
        """The repository, opened outside of any run."""
        return Collector.from_loaded(self.loaded, self.clock).open()

    def report(self, run_id: str) -> Report:
        """The report of a run, which must have one."""
        found = report.read(self.repository.store, run_id)
        assert found is not None
        return found

    def frame(self, run_id: str, name: str) -> StoredFrame[Any]:
        """A frame as stored."""
        repository = self.repository
        return StoredFrame.from_run(repository.store, repository.opener, run_id, FRAMES[name])

    def table(self, run_id: str, name: str) -> pa.Table:
        """All rows of a frame."""
        return self.frame(run_id, name).table()

    def addresses(self, run_id: str, name: str) -> list[str]:
        """The addresses of a frame, sorted."""
        return sorted(self.table(run_id, name).column("address").to_pylist())

    def lock_holder(self) -> str | None:
        """The holder of the repository's lock."""
        return lock.holder(self.repository.store)

    def require_failed(self, run_id: str, why: str) -> None:
        """Requires that a run failed: its report gives the reason, and the lock is free."""
        found = self.report(run_id)
        assert (found.success, found.ending.value) == (False, "failed")
        assert why in str(found.error)
        assert self.lock_holder() is None


def served(folder: str, deletes: Deletes, after: ReplayedRuns | None) -> tuple[ChangedServer, MovingClock]:
    """A recording, aged by two days, or in the state after other runs; its server is not started yet."""
    clock = MovingClock(datetime.now(UTC))
    continued = after.server if after else None
    server = ChangedServer(folder_of(folder), now=clock.now, deletes=deletes, continues=continued)
    clock.moment = after.clock.moment if after else server.recorded_at + AGED
    return server, clock


def truth_classes(folder: str) -> dict[str, set[str]]:
    """Addresses of a recording by their class in its own bookkeeping."""
    plain = folder_of(folder) / "truth.json"
    text = plain.read_bytes() if plain.exists() else gzip.decompress(Path(f"{plain}.gz").read_bytes())
    classes: dict[str, set[str]] = {}
    for entry in json.loads(text)["objects"]:
        classes.setdefault(entry["class"], set()).add(entry["address"])
    return classes
