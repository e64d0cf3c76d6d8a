"""`lakefs-gc forecast`: bytes that other retention rules would free, and bytes of each branch and tag."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import click

from lakefs_gc_assets.cli.common import JSON, QUIET, Target, on_repository, print_answer
from lakefs_gc_assets.cli.progress import shown_bar
from lakefs_gc_assets.collector.records.outcomes import Amount, size
from lakefs_gc_assets.collector.retention import rules
from lakefs_gc_assets.collector.retention.active_commits import in_words
from lakefs_gc_assets.errors import counted
from lakefs_gc_assets.extensions.forecast import page
from lakefs_gc_assets.extensions.forecast.definitions import forecast_now
from lakefs_gc_assets.extensions.forecast.forecast import FolderHolding, Forecast, Holding, portions
from lakefs_gc_assets.extensions.forecast.scenarios import AGES

_UNLIMITED = "unlimited"
_WIDEST_NAME = 60
_DEEPEST = 16
_FOLDERS, _HOLDERS = 20, 5
"""Maximum folders, and maximum holders per folder, in printed lines; `--json` and the stored frame have more."""


def _read_ages(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> tuple[int | None, ...]:
    """Days of retention; None for unlimited. Raises click.BadParameter."""
    for value in values:
        if value != _UNLIMITED and not (value.isascii() and value.isdecimal() and len(value) < 9):
            raise click.BadParameter(f"{value!r} is neither a number of days nor `{_UNLIMITED}`.", context, option)
    return tuple(None if value == _UNLIMITED else int(value) for value in values)


@click.command()
@on_repository
@click.option(
    "--policy",
    "policies",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Another policy file to compare, in place of the configured policy. May be given again.",
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
    help="Also show the bytes of each folder and the branches and tags that hold them. A folder has this many path "
    "components.",
)
@click.option(
    "--html", type=click.File("wb", lazy=True, atomic=True), help="File to write the page to; - for standard output."
)
@QUIET
@JSON
def forecast(
    target: Target,
    policies: tuple[Path, ...],
    ages: tuple[int | None, ...],
    depth: int | None,
    html: BinaryIO | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Shows the bytes that other retention rules would free, and the bytes of each branch and tag.

    Each line of rules shows the objects that a run of flow committed with these rules would mark now. The command
    deletes nothing, needs no lock, and may run beside a collection. It reads every range of the repository once. The
    page is one file that loads nothing: the curve of bytes against days, the bytes of each branch and tag, and folders
    with --by-path.
    """
    if html is not None and as_json:
        raise click.UsageError("--html and --json exclude each other.")
    parsed = {str(policy): rules.load_policy(policy) for policy in policies}
    collector = target.collector()
    with shown_bar("forecasting", quiet) as (say, _):
        _, result = forecast_now(collector, say, ages, parsed, depth or 0)
    if html is not None:
        html.write(page.render(result))
    else:
        print_answer(as_json, lambda: encode(result), describe(result))


def describe(result: Forecast) -> Iterator[str]:
    """A forecast as lines."""
    yield (
        f"{result.repository}: {counted(result.commits, 'commits hold')} {counted(result.stored.objects, 'objects')}, "
        f"{size(result.stored.bytes)}, in {counted(result.ranges, 'ranges')}"
    )
    yield f"ages count back from {result.now:%F %T}Z"
    yield (f"objects written after {result.cutoff:%F %T}Z and staged objects stay by any rules; nothing was deleted")
    yield ""
    names = [freed.scenario.name for freed in result.rules]
    width = _width("retention", names)
    yield f"{'retention':<{width}}  {'expired commits':>15}  {'objects freed':>13}  {'bytes freed':>12}"
    for freed in result.rules:
        yield f"{freed.scenario.name:<{width}}  {freed.scenario.commits_expired:>15,}  {_amount(freed.amount)}"
    for freed in result.rules:
        yield from (f"  {freed.scenario.name}: {note}" for note in freed.scenario.notes)
    if result.when_freed:
        yield result.when_freed
    if cost := page.cost(result, result.in_force.amount.bytes):
        yield f"a run by the rules in force would save {cost}"
    if result.listed is not None:
        by_class = (f"{name} {amount.shown}" for name, amount in result.listed.amounts.items())
        yield f"storage classes, as run {result.listed.run_id} listed them: {'; '.join(by_class)}"
    yield ""
    yield from _describe_holdings(result)
    if result.by_folder is not None:
        yield ""
        yield from _describe_folders(result)


def _describe_holdings(result: Forecast) -> Iterator[str]:
    width = _width("branch or tag", [holding.title for holding in result.holdings])
    yield (
        f"{'branch or tag':<{width}}  {'commits':>9}  {'objects held':>13}  {'bytes held':>12}  {'held alone':>12}  "
        f"{'shared':>12}  {'if deleted':>12}  head"
    )
    for holding in result.holdings:
        more = result.more_if_deleted(holding)
        more_freed = "" if more is None else f"-{size(-more.bytes)}" if more.bytes < 0 else size(more.bytes)
        made_at = holding.holder.head_made_at
        head = "" if made_at is None else in_words(result.now - made_at) + (", stale" if holding.holder.stale else "")
        yield (
            f"{holding.title:<{width}}  {holding.holder.commits:>9,}  {_amount(holding.in_all)}  "
            f"{size(holding.alone.bytes):>12}  {size(holding.shared.bytes):>12}  {more_freed:>12}  {head}"
        ).rstrip()
    yield "if deleted: additional bytes that a run would free if the branch or tag were deleted now"
    if result.undecided:
        yield "more objects need a check than collection.hidden_suspect_limit allows: deletions may free more than that"


def _describe_folders(result: Forecast) -> Iterator[str]:
    by_folder = result.by_folder
    assert by_folder is not None
    shown = by_folder.largest[:_FOLDERS]
    width = _width("folder", [f"  {holding.title}" for holding in result.holdings] + [folder.title for folder in shown])
    yield f"{'folder':<{width}}  {'objects held':>13}  {'bytes held':>12}  {'held alone':>12}"
    for folder in shown:
        yield f"{folder.title:<{width}}  {_amount(folder.stored)}"
        holders = portions(result, folder)
        for holding, portion in holders[:_HOLDERS]:
            name = f"  {holding.title}"
            yield f"{name:<{width}}  {_amount(portion.in_all)}  {size(portion.alone.bytes):>12}"
        if more := len(holders) - len(holders[:_HOLDERS]):
            yield f"  {more:,} more branches and tags have something there"
    if more := len(by_folder.largest) - len(shown):
        yield f"{more:,} smaller folders are in the frame and with --json"
    if by_folder.others is not None:
        rest = f"(the {by_folder.other_folders:,} smallest folders together)"
        yield f"{rest:<{width}}  {_amount(by_folder.others.stored)}"
    yield "an object that is in several folders counts in each of them"


def _width(title: str, names: list[str]) -> int:
    return min(_WIDEST_NAME, max(len(title), *map(len, names)))


def _amount(amount: Amount) -> str:
    return f"{amount.objects:>13,}  {size(amount.bytes):>12}"


def encode(result: Forecast) -> Mapping[str, object]:
    """A forecast as JSON values; bytes are numbers, times are ISO 8601 in UTC."""
    return {
        "repository": result.repository,
        "forecast_id": result.forecast_id,
        "now": result.now.isoformat(),
        "cutoff": result.cutoff.isoformat(),
        "commits": result.commits,
        "ranges": result.ranges,
        **_encode("held", result.stored),
        "rules": [
            {
                "kind": freed.scenario.kind.value,
                "name": freed.scenario.name,
                "days": freed.scenario.days,
                "commits_expired": freed.scenario.commits_expired,
                **_encode("freed", freed.amount),
                "notes": list(freed.scenario.notes),
            }
            for freed in result.rules
        ],
        "holders": [_encode_holding(result, holding) for holding in result.holdings],
        "undecided": result.undecided,
        "storage_classes": result.listed
        and {
            "run_id": result.listed.run_id,
            "listed": {name: amount._asdict() for name, amount in result.listed.amounts.items()},
        },
        **_encode_folders(result),
    }


def _encode_folders(result: Forecast) -> dict[str, object]:
    by_folder = result.by_folder
    if by_folder is None:
        return {}
    return {
        "by_path": {
            "depth": by_folder.depth,
            "folders": [{"folder": folder.folder, **_encode_folder(result, folder)} for folder in by_folder.largest],
            "others": by_folder.others
            and {"folders": by_folder.other_folders, **_encode_folder(result, by_folder.others)},
        }
    }


def _encode_folder(result: Forecast, folder: FolderHolding) -> dict[str, object]:
    return {
        **_encode("held", folder.stored),
        "holders": [
            {
                "kind": _kind(holding),
                "name": holding.holder.name,
                **_encode("held", portion.in_all),
                **_encode("alone", portion.alone),
            }
            for holding, portion in portions(result, folder)
        ],
    }


def _encode_holding(result: Forecast, holding: Holding) -> dict[str, object]:
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
            **_encode("more", deleted.amount - result.in_force.amount),
        },
    }


def _kind(holding: Holding) -> str:
    return "rest" if holding.holder.kind is None else holding.holder.kind.value


def _encode(what: str, amount: Amount) -> dict[str, object]:
    return {f"{what}_objects": amount.objects, f"{what}_bytes": amount.bytes}
