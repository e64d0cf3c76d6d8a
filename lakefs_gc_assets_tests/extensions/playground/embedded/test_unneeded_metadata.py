"""Unneeded metadata of an embedded server over HTTP is moved, restored and purged."""

import os
import shutil
import time
from pathlib import Path

from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.extensions.check import unneeded_metadata
from lakefs_gc_assets.extensions.check.unneeded_metadata import FileFate, FileOutcome
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.extensions.playground.embedded.test_twins import configuration, status
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns

DAY = 86400
SETTINGS = {"keep_old_unnamed_ranges": False, "wait_before_dump_seconds": 0, "wait_before_recheck_seconds": 0}


def opened(server: EmbeddedServer, **collection: object) -> OpenRepository:
    return ArrowRuns(Loaded(configuration(server, **SETTINGS, **collection), {})).open()


def tables(folder: Path) -> set[str]:
    return {file.name for file in (folder / "_lakefs").iterdir() if len(file.name) == 64}


def move(repository: OpenRepository) -> tuple[FileOutcome, ...]:
    listing = unneeded_metadata.list_movable(repository, LocalEngine(), print)
    return unneeded_metadata.move(repository, LocalEngine(), listing, "mover", print, print)


def test_what_another_repository_left_is_moved_put_back_and_purged(server: EmbeddedServer) -> None:
    clients.repository(server, "gone")
    for name in ("repo", "gone"):
        clients.upload(server, "path", name.encode(), name=name)
        clients.commit(server, "one", name=name)
    here = server.objects_folder / "repo"
    left = tables(server.objects_folder / "gone")
    for name in left:
        shutil.copy(server.objects_folder / "gone" / "_lakefs" / name, here / "_lakefs")
    for name in tables(here):
        os.utime(here / "_lakefs" / name, (time.time() - 30 * DAY,) * 2)

    moved = move(opened(server))
    assert {(each.id, each.fate) for each in moved} == {(name, FileFate.MOVED) for name in left}
    assert not tables(here) & left and status(server, "path") == 200
    restored = unneeded_metadata.restore(opened(server), "restorer", print)
    assert {(each.id, each.fate) for each in restored} == {(name, FileFate.RESTORED) for name in left}
    assert tables(here) > left
    move(opened(server))
    assert unneeded_metadata.purge(opened(server), LocalEngine(), "purger", print, print) == ()
    # The server has whole seconds, and the period ends later by the earliest clock than by the latest.
    time.sleep(2.0)
    purged = unneeded_metadata.purge(opened(server, quarantine_days=0), LocalEngine(), "purger", print, print)
    assert {(each.id, each.fate) for each in purged} == {(name, FileFate.PURGED) for name in left}
    assert not unneeded_metadata.list_copies(opened(server).store)
    clients.upload(server, "other", b"after")
    clients.commit(server, "two")
    assert status(server, "path") == status(server, "other") == 200
