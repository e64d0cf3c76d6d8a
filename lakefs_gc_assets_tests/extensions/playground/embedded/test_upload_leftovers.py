"""Helper objects of multipart uploads, as lakeFS writes and leaves them on Google Cloud Storage."""

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lakefs_gc_assets.collector.records.outcomes import Kept
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.extensions.playground.embedded.routes import ROUTES
from lakefs_gc_assets_tests.extensions.playground.embedded.test_twins import configuration
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns

SUFFIXES = (".multipart", ".part_00001", ".part_00033_1", ".part_01025_1_2")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path, routes=ROUTES) as started:
        clients.repository(started)
        clients.upload(started, "live", b"live")
        clients.commit(started, "live")
        yield started


def begin_upload(server: EmbeddedServer, *, days: float, name: str | None = None) -> list[str]:
    """Writes helper objects of an upload that began `days` ago, or one other name; returns their addresses."""
    then = datetime.now(UTC) - timedelta(days=days)
    names = layout.XidGenerator()
    target = f"data/{names.descending(then)}/{names.ascending(then)}"
    addresses = [target + suffix for suffix in ((name,) if name else SUFFIXES)]
    for address in addresses:
        write(server, address, then)
    return addresses


def write(server: EmbeddedServer, address: str, at: datetime) -> None:
    file = server.objects_folder / "repo" / address
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"a part")
    os.utime(file, (at.timestamp(), at.timestamp()))


def stored(server: EmbeddedServer) -> set[str]:
    folder = server.objects_folder / "repo"
    return {str(file.relative_to(folder)) for file in folder.glob("data/**/*") if file.is_file()}


def sweeping(server: EmbeddedServer) -> ArrowRuns:
    return ArrowRuns(Loaded(configuration(server), {}))


def test_helper_objects_of_an_upload_given_up_are_deleted_and_those_of_younger_ones_stay(
    server: EmbeddedServer,
) -> None:
    given_up = begin_upload(server, days=20)
    under_way = begin_upload(server, days=6)
    resumed = begin_upload(server, days=20)
    recent = resumed[0].removesuffix(SUFFIXES[0]) + ".part_00002"
    write(server, recent, datetime.now(UTC) - timedelta(days=3))
    renamed = begin_upload(server, days=20, name=".part_1")

    report = sweeping(server).collect(Flow.CLEAN)

    assert (report.success, report.counts["deleted"]) == (True, len([*given_up, *resumed]))
    assert stored(server) >= {*under_way, recent, *renamed}
    assert stored(server).isdisjoint([*given_up, *resumed])
    assert report.kept == {Kept.YOUNG.value: len([*under_way, recent]), Kept.UNRECOGNISED.value: 1}


def test_an_object_that_an_entry_names_stays_even_with_the_name_of_a_part(server: EmbeddedServer) -> None:
    addresses = begin_upload(server, days=20)
    committed, staged, *garbage = addresses
    for number, address in enumerate((committed, staged)):
        physical = f"{server.core.blockstore.scheme}repo/{address}"
        entry = {"physical_address": physical, "checksum": "0" * 32, "size_bytes": 6}
        linked = clients.call(server, "PUT", "/repositories/repo/branches/main/objects", entry, path=f"part{number}")
        assert linked[0] == 201, linked
        if number == 0:
            clients.commit(server, "a part")

    assert sweeping(server).collect(Flow.CLEAN).counts["deleted"] == len(garbage)

    assert stored(server) >= {committed, staged}
    assert stored(server).isdisjoint(garbage)
