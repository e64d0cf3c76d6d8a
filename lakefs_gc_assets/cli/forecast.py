"""`lakefs-gc forecast`: what other rules of retention would free, and what each branch and tag holds."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from lakefs_gc_assets.cli.opening import open_collector
from lakefs_gc_assets.cli.options import (
    CONFIG,
    JSON,
    QUIET,
    REPOSITORY,
    answer,
    loaded_configuration,
    progress_unless,
)
from lakefs_gc_assets.collector.forecast.forecast import Amount, Forecast, Holding
from lakefs_gc_assets.collector.forecast.scenarios import AGES
from lakefs_gc_assets.collector.retention import policy_file
from lakefs_gc_assets.collector.retention.active_commits import in_words
from lakefs_gc_assets.collector.sizes import size
from lakefs_gc_assets.defs.forecasting import forecast_now

_UNLIMITED = "unlimited"
_WIDEST_NAME = 60


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
@QUIET
@JSON
def forecast(
    file: Path | None,
    repository: str | None,
    policies: tuple[Path, ...],
    ages: tuple[int | None, ...],
    quiet: bool,
    as_json: bool,
) -> None:
    """Says what other rules of retention would free, and what each branch and tag holds.

    Each line of rules is what a run of flow committed with them would mark at this moment. It deletes nothing, needs no
    lock, and may run beside a collection. Every range of the repository is read once.
    """
    parsed = {str(policy): policy_file.load(policy) for policy in policies}
    collector = open_collector(loaded_configuration(file, repository))
    found = forecast_now(collector, progress_unless(quiet), ages, parsed)
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


def _describe_holdings(found: Forecast) -> Iterator[str]:
    width = _width("branch or tag", [_name(each) for each in found.holdings])
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
            f"{_name(each):<{width}}  {each.holder.commits:>9,}  {_amount(each.in_all)}  {size(each.alone.bytes):>12}  "
            f"{size(each.shared.bytes):>12}  {freed:>12}  {head}"
        ).rstrip()
    yield "if deleted: what a run would free beside what it frees anyway, were the branch or tag deleted now"
    if found.undecided:
        yield "there is more to ask for than collection.hidden_suspect_limit: deletions may free more than that"


def _width(title: str, names: list[str]) -> int:
    return min(_WIDEST_NAME, max(len(title), *map(len, names)))


def _name(holding: Holding) -> str:
    kind = holding.holder.kind
    return f"({holding.holder.name})" if kind is None else f"{kind.value} {holding.holder.name}"


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
    }


def _encode_holding(found: Forecast, holding: Holding) -> dict[str, object]:
    holder, deleted = holding.holder, holding.if_deleted
    return {
        "kind": "rest" if holder.kind is None else holder.kind.value,
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


def _encode(what: str, amount: Amount) -> dict[str, object]:
    return {f"{what}_objects": amount.objects, f"{what}_bytes": amount.bytes}
