"""`lakefs-gc metadata`: lines and JSON; the listing of unneeded metadata is tested in its own module."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner, Result

from lakefs_gc_assets.cli import main
from lakefs_gc_assets.cli.common import Target
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.collector.records.tables import IdSet
from lakefs_gc_assets.errors import AccessDenied
from lakefs_gc_assets.extensions.check import metadata_command as command
from lakefs_gc_assets.extensions.check import unneeded_metadata
from lakefs_gc_assets.extensions.check.unneeded_metadata import (
    File,
    FileFate,
    FileKind,
    FileOutcome,
    MetadataListing,
    Survey,
)
from lakefs_gc_assets_tests.extensions.check.test_fsck_command import NOW

RANGE = File("aa", 2048, NOW, FileKind.RANGE)
LISTING = MetadataListing(
    "repo", NOW, NOW, (RANGE, File("bb", 100, NOW, FileKind.METARANGE)), 7, {"too young": Amount(1, 5)}, True
)
Metadata = Callable[..., Result]


def _surveyed(answer: object) -> object:
    return Survey(answer, IdSet()) if isinstance(answer, MetadataListing) else answer


@pytest.fixture
def metadata() -> Metadata:
    """Calls the command with a scripted answer of the collector."""

    def call(answer: object, *arguments: str) -> Result:
        with (
            mock.patch.object(Target, "collector"),
            mock.patch("lakefs_gc_assets.cli.common.start_as_configured"),
            mock.patch.object(command, "find_unneeded", side_effect=[_surveyed(answer)]),
        ):
            return CliRunner().invoke(main, ["metadata", *arguments])

    return call


def test_lines(metadata: Metadata) -> None:
    result = metadata(LISTING)
    assert result.exit_code == Status.WELL
    assert result.stdout.splitlines() == [
        "range      aa: 2.0 KiB, written 2026-11-26",
        "metarange  bb: 100 B, written 2026-11-26",
        "7 files are needed",
        "kept: 1 file, 5 B: too young",
        "their objects count as live, since another repository, also one of another server, may have written them: "
        "see collection.keep_old_unnamed_ranges",
        "repo: 2 files of metadata are unneeded, 2.1 KiB, all written before 2026-11-26 00:00:00Z",
    ]


def test_where_it_does_not_count_or_there_is_none_or_much(metadata: Metadata) -> None:
    assert "count as live" not in metadata(replace(LISTING, count_as_live=False)).stdout
    none = metadata(replace(LISTING, files=())).stdout
    assert "count as live" not in none and none.splitlines()[-1].startswith("repo: 0 files of metadata are unneeded")
    lines = metadata(replace(LISTING, files=(RANGE,) * 25)).stdout.splitlines()
    assert lines[20] == "5 more are shown with --json"


def test_what_cannot_be_known_is_an_error(metadata: Metadata) -> None:
    result = metadata(AccessDenied("no refs dump"))
    assert result.exit_code == Status.FAILED and result.stdout == ""


MOVED, FAILED = FileOutcome("aa", 2048, FileFate.MOVED), FileOutcome("bb", 100, FileFate.FAILED, "no copy")
Act = Callable[..., tuple[Result, mock.Mock]]


@pytest.fixture
def act() -> Act:
    """Calls an action of the command, with scripted listing and results; also returns the collector."""

    def call(
        outcomes: tuple[FileOutcome, ...], *arguments: str, listing: MetadataListing = LISTING, typed: str = ""
    ) -> Any:
        acts: dict[str, Any] = {name: mock.Mock(return_value=outcomes) for name in ("move", "restore", "purge")}
        shown: dict[str, Any] = {"list_movable": lambda *given: listing, "list_copies": lambda store: {"aa": (1, NOW)}}
        with (
            mock.patch.object(Target, "collector") as opening,
            mock.patch("lakefs_gc_assets.cli.common.start_as_configured"),
            mock.patch("lakefs_gc_assets.cli.common.is_on_terminal", lambda: bool(typed)),
            mock.patch.multiple(unneeded_metadata, **acts, **shown),
        ):
            opening.return_value.open.return_value.settings.quarantine_days = 14.0
            result = CliRunner().invoke(main, ["metadata", *arguments], input=typed or None)
        return result, acts[arguments[0]]

    return call


DONE = {"move": "1 moved to quarantine\n", "restore": "1 put back\n", "purge": "1 purged, 2.0 KiB freed\n"}


@pytest.mark.parametrize("name", ["move", "restore", "purge"])
def test_nothing_is_changed_without_a_yes(act: Act, name: str) -> None:
    for result, called in (act((), name), act((), name, typed="n\n")):
        assert result.exit_code == Status.FAILED and "nothing was changed" in result.stderr
        assert not called.called
    done = FileOutcome("aa", 2048, command._USUAL[name])
    result, called = act((done,), name, typed="y\n")
    assert result.exit_code == Status.WELL and called.call_count == 1
    assert result.stdout == DONE[name]


def test_what_failed_is_reported_by_the_exit_status(act: Act) -> None:
    result, called = act((MOVED, FAILED), "move", "--yes", "--json")
    assert result.exit_code == Status.INCOMPLETE and called.call_args.args[2] is LISTING
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert lines == [
        {"id": "aa", "size": 2048, "fate": "moved to quarantine", "why": None},
        {"id": "bb", "size": 100, "fate": "failed", "why": "no copy"},
        {"counts": {"failed": 1, "moved to quarantine": 1}},
    ]
    assert "range      aa: 2.0 KiB" in result.stderr
    lines = act((MOVED, FAILED), "move", "--yes", "--quiet")[0].stdout.splitlines()
    assert lines == ["bb: failed: no copy", "1 moved to quarantine, 1 failed"]


def test_where_nothing_is_unneeded_nothing_is_asked(act: Act) -> None:
    result, called = act((), "move", "--yes", "--quiet", listing=replace(LISTING, files=()))
    assert (result.exit_code, result.stdout, called.called) == (Status.WELL, "0 moved to quarantine\n", False)
