"""Iceberg tables made through lakeFS's catalog: only the current `metadata.json` is an entry.

lakeFS's catalog keeps a table's metadata file as the only object of the table (docs.lakefs.io, integrations/iceberg).
Its content names manifests and data files, which clients write into the storage namespace themselves. No entry of any
range names these files. So only their names protect them: their writers choose names that lakeFS never makes.
"""

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lakefs_gc_assets.collector.quarantine.purge import PurgeFate
from lakefs_gc_assets.collector.records.outcomes import Kept
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.extensions.playground.embedded.routes import ROUTES
from lakefs_gc_assets_tests.extensions.playground.embedded.test_twins import configuration
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns

DAYS = timedelta(days=1)
UUID = "5f0b7c0e-9d3c-4f0e-8a57-1c6d1f6f2b11"
FILES = (
    f"data/db/t/data/00000-0-{UUID}-0-00001.parquet",
    f"data/db/t/metadata/snap-3051729675574597004-1-{UUID}.avro",
    f"data/db/t/metadata/{UUID}-m0.avro",
    f"data/{UUID}/00000-2.parquet",
    f"_iceberg/db/t/data/00000-1-{UUID}.parquet",
    f"iceberg/db/t/metadata/snap-1-{UUID}.avro",
    f"00000-3-{UUID}.parquet",
)
"""Manifests and data files at every place that a table's location can lead to inside the storage namespace."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A repository with a committed table, an older state of it that expires, and garbage beside its files."""
    with EmbeddedServer(tmp_path, routes=ROUTES) as started:
        for days, content in ((20, b"first"), (15, b"second")):
            with started.clock.at(datetime.now(UTC) - days * DAYS):
                if days == 20:
                    clients.repository(started)
                clients.upload(started, "db/t/metadata.json", content)
                clients.commit(started, content.decode())
                clients.upload(started, "tmp", b"garbage")
                path = "/repositories/repo/branches/main/objects"
                assert clients.call(started, "DELETE", path, path="tmp")[0] == 204
        rules = {"default_retention_days": 5, "branches": []}
        assert clients.call(started, "PUT", "/repositories/repo/settings/gc_rules", rules)[0] == 204
        old = (datetime.now(UTC) - 15 * DAYS).timestamp()
        for name in FILES:
            file = started.objects_folder / "repo" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"of the table")
            os.utime(file, (old, old))
        yield started


def runs(server: EmbeddedServer, **collection: Any) -> ArrowRuns:
    return ArrowRuns(Loaded(configuration(server, **collection), {}))


def require_whole(server: EmbeddedServer) -> None:
    """Requires that every file of the table exists, and that its entry leads to the newest state."""
    assert [name for name in FILES if not (server.objects_folder / "repo" / name).is_file()] == []
    path = "/repositories/repo/refs/main/objects"
    assert clients.call(server, "GET", path, path="db/t/metadata.json") == (200, b"second")


@pytest.mark.parametrize(("flow", "mode"), [(Flow.CLEAN, "delete"), (Flow.COMMITTED, "quarantine")])
def test_the_files_of_a_table_survive_every_flow(server: EmbeddedServer, flow: Flow, mode: str) -> None:
    made = runs(server, sweep_mode=mode, quarantine_days=0)
    # One run, and after the first flow one that builds on it, and one that lists everything again.
    found = [made.collect(each) for each in ((flow, Flow.OPTIMIZED, flow) if flow is Flow.CLEAN else (flow,))]
    assert sum(each.counts["deleted"] + each.counts["quarantined"] for each in found) > 0
    assert all(each.success for each in found)
    require_whole(server)
    if mode == "quarantine":
        # A server's clock has whole seconds: a second must have passed since the store wrote a receipt.
        written = datetime.now(UTC).timestamp() - 60
        for receipt in server.objects_folder.glob("**/receipts/*"):
            os.utime(receipt, (written, written))
        assert {each.fate for each in made.purge()} == {PurgeFate.PURGED}
        require_whole(server)


def test_they_are_reported_as_names_that_lakefs_never_makes(server: EmbeddedServer) -> None:
    report = runs(server).collect(Flow.CLEAN)
    # Files in separate folders are not listed.
    assert report.kept == {Kept.UNRECOGNISED.value: sum(name.startswith("data/") or "/" not in name for name in FILES)}
