"""Recordings of servers are intact, and damage to their ranges, metaranges and objects is found."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import cast
from unittest import mock

import pytest

from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.live.live_files import LiveFiles
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.survey import FindingKind
from lakefs_gc_assets.collector.sweep import sweeping
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.extensions.check.fsck import Checkup, check
from lakefs_gc_assets.lakefs.formats import ranges
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX
from lakefs_gc_assets.settings import Configuration
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.extensions.check.test_fsck import Asked
from lakefs_gc_assets_tests.replay.server import ReplayServer
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns
from lakefs_gc_assets_tests.runs.moving_clock import MovingClock
from lakefs_gc_assets_tests.runs.recordings import folder_of, recorded_and_made
from lakefs_gc_assets_tests.runs.replayed_runs import AGED


@pytest.fixture
def repository(name: str) -> Iterator[OpenRepository]:
    clock = MovingClock(datetime.now(UTC))
    with ReplayServer(folder_of(name), now=clock.now, deletes="overlay") as server:
        clock.moment = server.recorded_at + AGED
        content = server.configuration().model_dump()
        content["collection"] |= {"wait_before_dump_seconds": 0}
        yield ArrowRuns(Loaded(Configuration.model_validate(content), {}), clock).open()


OBJECTS: dict[FindingKind, Callable[[ObjectStore, str, int], object]] = {
    FindingKind.CONTENT: lambda store, address, size: store.put(address, b"x" * size),
    FindingKind.SIZE: lambda store, address, size: store.put(address, b"x" * (size + 1)),
    FindingKind.MISSING: lambda store, address, size: store.delete([address]),
    FindingKind.QUARANTINED: lambda store, address, size: store.put(sweeping.key("g4uk6erfnfus73frbnqg", address), b""),
}
"""Kinds of damage to an object, applied one after the other."""


def _checked(repository: OpenRepository, key: str = "", damage: Callable[[bytes], bytes] = bytes) -> Checkup:
    real = repository.store

    def get(wanted: str) -> bytes:
        return damage(real.get(wanted)) if wanted == key else real.get(wanted)

    store = cast(ObjectStore, Asked(real, get=get))
    damaged = replace(repository, store=store, opener=mock.Mock(open=lambda: store))
    return check(damaged, LocalEngine(), lambda line: None)


@pytest.mark.parametrize("name", recorded_and_made("small"))
def test_they_are_whole_and_damage_is_found(repository: OpenRepository) -> None:
    whole = _checked(repository)
    assert (whole.findings, whole.unchecked) == ((), ()) and whole.entries > 10

    api = repository.api
    (head,) = (branch.commit_id for branch in api.branches() if branch.id == "main")
    metarange = METADATA_PREFIX + api.commit(head).metarange_id
    record = ranges.read_metarange(repository.store.get(metarange), metarange)[0]
    range_ = METADATA_PREFIX + record.id
    for key in (metarange, range_):
        (finding,) = _checked(repository, key, lambda data: data[:30] + b"\0\1\2" + data[33:]).findings
        assert (finding.kind, finding.address) == (FindingKind.METADATA, key)
        assert "branch main" in {place.reference for place in finding.places}

    files = LiveFiles(repository.store, repository.namespace, "month")
    entry = next(row for row in files.sized(record)[0].to_pylist() if row["size"])
    for kind, damage_object in OBJECTS.items():
        damage_object(repository.store, entry["address"], entry["size"])
        (finding,) = _checked(repository).findings
        assert (finding.kind, finding.address) == (kind, entry["address"])
        assert finding.places and all(place.path for place in finding.places)
