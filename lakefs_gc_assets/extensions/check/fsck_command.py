"""`lakefs-gc fsck`: checks that a repository is complete and readable."""

import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

import click

from lakefs_gc_assets.cli.common import JSON, QUIET, Target, on_repository, print_answer
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.cli.progress import shown_bar
from lakefs_gc_assets.collector.page import markup
from lakefs_gc_assets.errors import counted
from lakefs_gc_assets.extensions.check.definitions import check_now
from lakefs_gc_assets.extensions.check.fsck import EVERYTHING, Checkup

_ALL = "all"
_SHOWN = 50


def _read_deep(context: click.Context, option: click.Parameter, value: str | None) -> int:
    """Number of objects whose content is read. Raises click.BadParameter."""
    if value is None or value == _ALL:
        return EVERYTHING if value else 0
    if not (value.isascii() and value.isdecimal() and 0 < int(value) < EVERYTHING):
        raise click.BadParameter(f"{value!r} is neither a number of objects nor `{_ALL}`.", context, option)
    return int(value)


@click.command()
@on_repository
@click.option(
    "--deep",
    metavar="OBJECTS",
    callback=_read_deep,
    help="Also read the content of this many random objects, or of `all`, and compare its length and checksums.",
)
@click.option("--every-commit", is_flag=True, help="Also check commits that retention rules let expire.")
@click.option(
    "--html", type=click.File("wb", lazy=True, atomic=True), help="File to write a page to; - for standard output."
)
@QUIET
@JSON
def fsck(target: Target, deep: int, every_commit: bool, html: BinaryIO | None, quiet: bool, as_json: bool) -> None:
    """Checks that all objects a repository needs are stored and its metadata can be read.

    Live commits, staged data and tags have entries. The store must have the object of each entry, with the size and,
    if both are known, the MD5 of the entry. Ranges, metaranges and refs that cannot be read are reported, and the rest
    is checked. A commit is live if a run by retention rules keeps it; without rules, each commit is. The command reads
    as much as a clean run, deletes nothing, needs no lock, and may run beside a collection.

    Exit status 0 if the repository is whole, 8 if anything is missing or wrong, 6 if nothing is missing or wrong but a
    part could not be checked. If nothing could be checked, the status is that of the error.
    """
    if html is not None and as_json:
        raise click.UsageError("--html and --json exclude each other.")
    collector = target.collector()
    with shown_bar("checking", quiet) as (say, _):
        checkup = check_now(collector, say, every_commit, deep)
    if html is not None:
        html.write(render(checkup))
    else:
        verdict = {"is_damaged": checkup.is_damaged, "verdict": checkup.verdict}
        print_answer(as_json, lambda: {**asdict(checkup), **verdict}, describe(checkup))
    if checkup.is_damaged:
        sys.exit(Status.DAMAGED)
    if checkup.unchecked:
        sys.exit(Status.INCOMPLETE)


def describe(checkup: Checkup) -> Iterator[str]:
    """A check as lines: each finding with its places and remedy, and the verdict last."""
    for finding in checkup.findings[:_SHOWN]:
        yield f"{finding.kind:<16}  {finding.address}: {finding.detail}"
        yield from (f"    needed by {place}" for place in finding.places)
        yield f"    {finding.remedy}"
    if (more := len(checkup.findings) - _SHOWN) > 0:
        yield f"{more:,} more are shown with --json"
    yield from (f"not checked: {what}" for what in checkup.unchecked)
    yield _scope(checkup)
    yield f"{checkup.repository}: {checkup.verdict}"


def _scope(checkup: Checkup) -> str:
    contents = f", the content of {counted(checkup.contents_read, 'objects')}" if checkup.contents_read else ""
    if checkup.contents_without_checksum:
        contents += f" ({checkup.contents_without_checksum:,} without a checksum to compare it with)"
    ranges = f"{counted(checkup.ranges, 'ranges')} with {counted(checkup.entries, 'entries')}"
    return f"checked {counted(checkup.commits, 'commits')}, {ranges}{contents}"


def render(checkup: Checkup) -> bytes:
    """The page of a check: one HTML file that loads nothing."""
    return markup.render(Path(__file__).with_name("fsck.html"), "", checkup=checkup, scope=_scope(checkup))
