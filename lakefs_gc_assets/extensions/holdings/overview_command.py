"""`lakefs-gc overview` and `lakefs-gc status --all`: all repositories of the configuration."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from lakefs_gc_assets.cli.common import (
    CONFIG,
    JSON,
    Sample,
    configuration_path,
    format_samples,
    print_answer,
    print_result,
    show_progress,
)
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.records.outcomes import size
from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.configuration_file import everything_from, read
from lakefs_gc_assets.errors import ConfigurationError, counted
from lakefs_gc_assets.extensions.holdings import overview_page
from lakefs_gc_assets.extensions.holdings.overview import (
    History,
    Overview,
    RepositoryFigures,
    Standing,
    make_overview,
)

HELP = {
    "overview_timestamp_seconds": "Time of the overview of all repositories.",
    "overview_repositories": "Repositories of the overview, by their state.",
    "overview_stored_bytes": "Stored bytes of a repository, at overview_stored_timestamp_seconds.",
    "overview_stored_timestamp_seconds": "Time of the listing or the holdings that the stored bytes come from.",
    "overview_live_bytes": "Bytes that something references.",
    "overview_garbage_bytes": "Bytes that the newest run found to be garbage and nothing has deleted since.",
    "overview_stale_bytes": "Bytes that stale branches hold alone, by the newest forecast.",
    "overview_monthly_cost": "Cost of the stored bytes for a month.",
    "overview_last_sweep_timestamp_seconds": "End of the newest successful sweep.",
    "overview_growth_bytes_per_day": "Trend of the stored bytes.",
    "overview_budget_bytes": "Limit on the stored bytes.",
    "overview_alerts": "Alerts about a repository, by kind.",
}
_NUMBERS = {
    "overview_stored_bytes": "stored_bytes",
    "overview_live_bytes": "live_bytes",
    "overview_garbage_bytes": "garbage_bytes",
    "overview_stale_bytes": "stale_bytes",
    "overview_growth_bytes_per_day": "bytes_per_day",
    "overview_budget_bytes": "budget_bytes",
}
_TIMES = {
    "overview_stored_timestamp_seconds": "stored_at",
    "overview_last_sweep_timestamp_seconds": "swept_at",
}
_HEADS = ("repository", "stored", "as of", "garbage", "stale branches", "cost a month", "a day", "last sweep", "rules")


@click.command()
@CONFIG
@click.option("--keep", is_flag=True, help="Store the overview in overview.history, as the job overview does.")
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Write the page to this file.")
@click.option("--prometheus", is_flag=True, help="Print the figures in Prometheus' text format.")
@JSON
def overview(file: Path | None, keep: bool, html: Path | None, prometheus: bool, as_json: bool) -> None:
    """Shows all repositories of the configuration: stored bytes, garbage, cost, trends and alerts.

    Figures come from the newest runs of each repository; nothing is listed or deleted. Repositories that `discover`
    covers are looked up on the server each time. A figure that no run states is shown as `?`.

    If a repository cannot be read, an alert names it, the others are shown, and the exit status is 6.
    """
    path = configuration_path(file)
    everything = everything_from(read(path), str(path))
    if keep and not everything.shared.configuration.overview.history:
        raise ConfigurationError(f"--keep needs a folder for overviews: set overview.history in {path}")
    shown = make_overview(everything, SystemClock(), show_progress)
    if keep and (history := History.from_configuration(everything)):
        history.write(shown)
    if html:
        html.write_bytes(overview_page.render(shown))
    if prometheus and not as_json:
        for line in format_samples(measure(shown), HELP):
            print_result(line)
    else:
        print_answer(as_json, lambda: asdict(shown), describe(shown))
    if any(row.standing is Standing.UNREADABLE for row in shown.rows):
        sys.exit(Status.INCOMPLETE)


def measure(shown: Overview) -> Iterator[Sample]:
    """The samples of an overview for Prometheus, without vanished repositories."""
    yield "overview_timestamp_seconds", {}, shown.time.timestamp()
    for standing in Standing:
        count = sum(row.standing is standing for row in shown.rows)
        yield "overview_repositories", {"state": standing.value}, count
    for row in shown.rows:
        if row.standing is Standing.VANISHED:
            continue
        labels = {"repository": row.repository}
        for metric, name in _NUMBERS.items():
            if (number := getattr(row, name)) is not None:
                yield metric, labels, number
        for metric, name in _TIMES.items():
            if (time := getattr(row, name)) is not None:
                yield metric, labels, time.timestamp()
        if row.monthly_cost is not None and row.currency is not None:
            yield "overview_monthly_cost", {**labels, "currency": row.currency}, row.monthly_cost
    for alert in shown.alerts:
        yield "overview_alerts", {"repository": alert.repository, "kind": alert.kind.value}, 1


def describe(shown: Overview) -> Iterator[str]:
    """The overview as lines: sums, a table of the repositories, largest first, and the alerts."""
    totals = shown.totals
    costs = "".join(f", {amount:,.2f} {currency} a month" for currency, amount in sorted(totals.monthly_cost.items()))
    unknown = f"; the bytes of {counted(totals.unknown, 'repositories')} are unknown" if totals.unknown else ""
    yield (
        f"{counted(totals.repositories, 'repositories')} at {shown.time:%F %T}Z: {size(totals.stored_bytes)} stored, "
        f"{size(totals.garbage_bytes)} garbage{costs}{unknown}"
    )
    present = [row for row in shown.rows if row.standing is not Standing.VANISHED]
    yield from _aligned([_HEADS, *map(_cells, sorted(present, key=lambda row: -(row.stored_bytes or 0)))])
    for row in shown.rows:
        if row.standing is Standing.VANISHED:
            stored = "" if row.stored_bytes is None else f": {size(row.stored_bytes)} then"
            yield f"vanished: {row.repository}, last seen at {row.seen_at:%F %T}Z{stored}"
    for alert in shown.alerts:
        yield f"{alert.kind}: {alert.repository}: {alert.text}"
        yield from (f"  rules that would keep it: {proposal}" for proposal in alert.proposals)
    yield from (f"prices: {source}" for source in shown.prices)


def _cells(row: RepositoryFigures) -> tuple[str, ...]:
    def bytes_or_unknown(count: int | None) -> str:
        return "?" if count is None else size(count)

    if row.standing is not Standing.READ:
        return (row.repository, row.standing.value, *[""] * (len(_HEADS) - 2))
    day = "?" if row.bytes_per_day is None else overview_page.signed(row.bytes_per_day)
    return (
        row.repository,
        bytes_or_unknown(row.stored_bytes),
        f"{row.stored_at:%F}" if row.stored_at else "",
        bytes_or_unknown(row.garbage_bytes),
        bytes_or_unknown(row.stale_bytes),
        "?" if row.monthly_cost is None else f"{row.monthly_cost:,.2f} {row.currency}",
        day,
        f"{row.swept_at:%F}" if row.swept_at else "none known",
        row.rules or "?",
    )


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows as lines whose columns begin below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(padded).rstrip()
