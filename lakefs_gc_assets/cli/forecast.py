"""`lakefs-gc forecast`: what other rules of retention would free, and what each branch and tag holds."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import click

from lakefs_gc_assets.cli.common import (
    CONFIG,
    JSON,
    QUIET,
    REPOSITORY,
    answer,
    loaded_configuration,
    open_collector,
    progress_unless,
)
from lakefs_gc_assets.collector.amount import Amount, size
from lakefs_gc_assets.collector.forecast.forecast import FolderHolding, Forecast, Holding, portions
from lakefs_gc_assets.collector.forecast.scenarios import AGES
from lakefs_gc_assets.collector.page import forecast as page
from lakefs_gc_assets.collector.retention import policy as policy_file
from lakefs_gc_assets.collector.retention.active_commits import in_words
from lakefs_gc_assets.defs.forecasting import forecast_now

_UNLIMITED = "unlimited"
_WIDEST_NAME = 60
_DEEPEST = 16
_FOLDERS, _HOLDERS = 20, 5
"""So many folders are shown to a person, and so many holders of each; `--json` and the stored frame have more."""


def _read_ages(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> tuple[int | None, ...]:
    """Days of retention; None for unlimited. Raises click.BadParameter."""
    for value in values:
        if value != _UNLIMITED and not (value.isascii() and value.isdecimal() and len(value) < 9):
            raise click.BadParameter(f"{value!r} is neither a number of days nor `{_UNLIMITED}`.", context, option)
    return tuple(None if value == _UNLIMITED else int(value) for value in values)


@click.command()
@CONFIG
@REPOSITORY
@click.option(
    "--policy",
    "policies",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="A policy file that is looked at as well, in place of the one of the configuration. May be given again.",
)
@click.option(
    "--days",
    "ages",
    multiple=True,
    metavar="DAYS",
    callback=_read_ages,
    default=[_UNLIMITED if days is None else str(days) for days in AGES],
    help="One retention for all branches and dangling commits, in days, or `unlimited`. May be given again. By default "
    "0, 1, 3, 7, 14, 30, 60, 90, 180, 365 and unlimited.",
)
@click.option(
    "--by-path",
    "depth",
    type=click.IntRange(1, _DEEPEST),
    metavar="DEPTH",
    help="Say also what folders hold, and who has it: so many components of paths make a folder.",
)
@click.option("--html", type=click.File("wb", lazy=True, atomic=True), help="File to write a page to; - for here.")
@QUIET
@JSON
def forecast(
    file: Path | None,
    repository: str | None,
    policies: tuple[Path, ...],
    ages: tuple[int | None, ...],
    depth: int | None,
    html: BinaryIO | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Says what other rules of retention would free, and what each branch and tag holds.

    Each line of rules is what a run of flow committed with them would mark at this moment. It deletes nothing, needs no
    lock, and may run beside a collection. Every range of the repository is read once. The page is one file that loads
    nothing: the curve of bytes against days, what each branch and tag holds, and folders with --by-path.
    """
    if html is not None and as_json:
        raise click.UsageError("--html and --json exclude each other.")
    parsed = {str(policy): policy_file.load(policy) for policy in policies}
    collector = open_collector(loaded_configuration(file, repository))
    _, found = forecast_now(collector, progress_unless(quiet), ages, parsed, depth or 0)
    if html is not None:
        html.write(page.render(found))
        return
    if as_json:
        answer(encode(found))
        return
    for line in describe(found):
        click.echo(line)


def describe(found: Forecast) -> Iterator[str]:
    """A forecast as lines."""
    yield (
        f"{found.repository}: {found.commits:,} commits hold {found.stored.objects:,} objects, "
        f"{size(found.stored.bytes)}, in {found.ranges:,} ranges"
    )
    yield f"ages count back from {found.now:%F %T}Z"
    yield (
        f"what was written after {found.cutoff:%F %T}Z stays by any rules, and so does what is staged; nothing was "
        "deleted"
    )
    yield ""
    names = [each.scenario.name for each in found.rules]
    width = _width("retention", names)
    yield f"{'retention':<{width}}  {'expired commits':>15}  {'objects freed':>13}  {'bytes freed':>12}"
    for each in found.rules:
        yield f"{each.scenario.name:<{width}}  {each.scenario.commits_expired:>15,}  {_amount(each.amount)}"
    for each in found.rules:
        yield from (f"  {each.scenario.name}: {note}" for note in each.scenario.notes)
    yield ""
    yield from _describe_holdings(found)
    if found.by_folder is not None:
        yield ""
        yield from _describe_folders(found)


def _describe_holdings(found: Forecast) -> Iterator[str]:
    width = _width("branch or tag", [each.title for each in found.holdings])
    yield (
        f"{'branch or tag':<{width}}  {'commits':>9}  {'objects held':>13}  {'bytes held':>12}  {'held alone':>12}  "
        f"{'shared':>12}  {'if deleted':>12}  head"
    )
    for each in found.holdings:
        more = found.more_if_deleted(each)
        freed = "" if more is None else f"-{size(-more.bytes)}" if more.bytes < 0 else size(more.bytes)
        made_at = each.holder.head_made_at
        head = "" if made_at is None else in_words(found.now - made_at) + (", stale" if each.holder.stale else "")
        yield (
            f"{each.title:<{width}}  {each.holder.commits:>9,}  {_amount(each.in_all)}  {size(each.alone.bytes):>12}  "
            f"{size(each.shared.bytes):>12}  {freed:>12}  {head}"
        ).rstrip()
    yield "if deleted: what a run would free beside what it frees anyway, were the branch or tag deleted now"
    if found.undecided:
        yield "there is more to ask for than collection.hidden_suspect_limit: deletions may free more than that"


def _describe_folders(found: Forecast) -> Iterator[str]:
    told = found.by_folder
    assert told is not None
    shown = told.largest[:_FOLDERS]
    width = _width("folder", [f"  {each.title}" for each in found.holdings] + [each.title for each in shown])
    yield f"{'folder':<{width}}  {'objects held':>13}  {'bytes held':>12}  {'held alone':>12}"
    for each in shown:
        yield f"{each.title:<{width}}  {_amount(each.stored)}"
        holders = portions(found, each)
        for holding, portion in holders[:_HOLDERS]:
            name = f"  {holding.title}"
            yield f"{name:<{width}}  {_amount(portion.in_all)}  {size(portion.alone.bytes):>12}"
        if more := len(holders) - len(holders[:_HOLDERS]):
            yield f"  {more:,} more branches and tags have something there"
    if more := len(told.largest) - len(shown):
        yield f"{more:,} smaller folders are in the frame and with --json"
    if told.others is not None:
        rest = f"(the {told.other_folders:,} smallest folders together)"
        yield f"{rest:<{width}}  {_amount(told.others.stored)}"
    yield "an object that is in several folders counts in each of them"


def _width(title: str, names: list[str]) -> int:
    return min(_WIDEST_NAME, max(len(title), *map(len, names)))


def _amount(amount: Amount) -> str:
    return f"{amount.objects:>13,}  {size(amount.bytes):>12}"


def encode(found: Forecast) -> Mapping[str, object]:
    """A forecast as JSON can hold it; bytes are numbers, times ISO 8601 in UTC."""
    return {
        "repository": found.repository,
        "forecast_id": found.forecast_id,
        "now": found.now.isoformat(),
        "cutoff": found.cutoff.isoformat(),
        "commits": found.commits,
        "ranges": found.ranges,
        **_encode("stored", found.stored),
        "rules": [
            {
                "kind": each.scenario.kind.value,
                "name": each.scenario.name,
                "days": each.scenario.days,
                "commits_expired": each.scenario.commits_expired,
                **_encode("freed", each.amount),
                "notes": list(each.scenario.notes),
            }
            for each in found.rules
        ],
        "holders": [_encode_holding(found, each) for each in found.holdings],
        "undecided": found.undecided,
        **_encode_folders(found),
    }


def _encode_folders(found: Forecast) -> dict[str, object]:
    told = found.by_folder
    if told is None:
        return {}
    return {
        "by_path": {
            "depth": told.depth,
            "folders": [{"folder": each.folder, **_encode_folder(found, each)} for each in told.largest],
            "others": told.others and {"folders": told.other_folders, **_encode_folder(found, told.others)},
        }
    }


def _encode_folder(found: Forecast, folder: FolderHolding) -> dict[str, object]:
    return {
        **_encode("stored", folder.stored),
        "holders": [
            {
                "kind": _kind(holding),
                "name": holding.holder.name,
                **_encode("held", portion.in_all),
                **_encode("alone", portion.alone),
            }
            for holding, portion in portions(found, folder)
        ],
    }


def _encode_holding(found: Forecast, holding: Holding) -> dict[str, object]:
    holder, deleted = holding.holder, holding.if_deleted
    return {
        "kind": _kind(holding),
        "name": holder.name,
        "commits": holder.commits,
        **_encode("held", holding.in_all),
        **_encode("alone", holding.alone),
        **_encode("shared", holding.shared),
        "head_made_at": holder.head_made_at.isoformat() if holder.head_made_at else None,
        "stale": holder.stale,
        "if_deleted": deleted
        and {
            "commits_expired": deleted.scenario.commits_expired,
            **_encode("freed", deleted.amount),
            **_encode("more", deleted.amount - found.in_force.amount),
        },
    }


def _kind(holding: Holding) -> str:
    return "rest" if holding.holder.kind is None else holding.holder.kind.value


def _encode(what: str, amount: Amount) -> dict[str, object]:
    return {f"{what}_objects": amount.objects, f"{what}_bytes": amount.bytes}
