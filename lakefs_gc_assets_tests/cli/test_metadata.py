"""`lakefs-gc metadata`: lines and JSON; what is unneeded is tested where it is found."""

from collections.abc import Callable
from dataclasses import replace
from unittest import mock

import pytest
from click.testing import CliRunner, Result

from lakefs_gc_assets.cli import main
from lakefs_gc_assets.cli import metadata as command
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.fsck.unneeded import File, Kind, Listing
from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.errors import AccessDenied
from lakefs_gc_assets_tests.cli.test_fsck import NOW

RANGE = File("aa", 2048, NOW, Kind.RANGE)
LISTING = Listing("repo", NOW, NOW, (RANGE, File("bb", 100, NOW, Kind.METARANGE)), 7, {"too young": Amount(1, 5)}, True)
Metadata = Callable[..., Result]


@pytest.fixture
def metadata() -> Metadata:
    """Calls the command on what the collector is to answer."""

    def call(answer: object, *arguments: str) -> Result:
        with (
            mock.patch.object(command, "loaded_configuration"),
            mock.patch.object(command, "open_collector"),
            mock.patch("lakefs_gc_assets.cli.common.start_as_configured"),
            mock.patch.object(command, "find_unneeded", side_effect=[answer]),
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
        "what they hold counts as live, since another repository, also one of another server, may have written them: "
        "see collection.keep_old_unnamed_ranges",
        "repo: 2 files of metadata are unneeded, 2.1 KiB, all written before 2026-11-26 00:00:00Z",
    ]


def test_where_it_does_not_count_or_there_is_none_or_much(metadata: Metadata) -> None:
    assert "counts as live" not in metadata(replace(LISTING, count_as_live=False)).stdout
    none = metadata(replace(LISTING, files=())).stdout
    assert "counts as live" not in none and none.splitlines()[-1].startswith("repo: 0 files of metadata are unneeded")
    lines = metadata(replace(LISTING, files=(RANGE,) * 25)).stdout.splitlines()
    assert lines[20] == "5 more are shown with --json"


def test_what_cannot_be_known_is_an_error(metadata: Metadata) -> None:
    result = metadata(AccessDenied("no refs dump"))
    assert result.exit_code == Status.FAILED and result.stdout == ""
