"""The overview of all repositories: stored bytes, garbage, cost, and alerts about each.

Figures come from the newest reports of runs, and from holdings and forecasts if there are any; the overview lists no
objects and reads no commits. A figure that these do not state is absent. If a folder for overviews is configured, each
one is kept there. Trends and vanished repositories come from these.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from itertools import islice

import pyarrow as pa

from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.records import run_folder, stored_forecasts, tables
from lakefs_gc_assets.collector.records.figures import Statistics
from lakefs_gc_assets.collector.records.outcomes import Amount, size
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.report import Ending, Report
from lakefs_gc_assets.collector.records.stored_forecasts import ScenarioKind
from lakefs_gc_assets.collector.repository.repository import Clock
from lakefs_gc_assets.configuration_file import AllRepositories
from lakefs_gc_assets.errors import CollectionError, CorruptFile, LogLine
from lakefs_gc_assets.extensions.holdings import holdings_files
from lakefs_gc_assets.extensions.holdings.budgets import Measurement, Proposal, Trend, propose
from lakefs_gc_assets.extensions.holdings.holdings_files import Dimension, Holdings, HoldingState
from lakefs_gc_assets.extensions.holdings.prices import cost_of
from lakefs_gc_assets.extensions.holdings.repositories import AT_ONCE, FoundRepository, find_repositories
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.settings import OverviewSettings
from lakefs_gc_assets.storage.interface import ObjectStore, fetch, get_if_there
from lakefs_gc_assets.storage.opening import StoreOpener

FOLDERS_READ = 20
"""Newest folders of runs and forecasts that are read for a repository; older ones say nothing."""
TREND_DAYS = 35
"""Days of earlier overviews that a trend goes by."""
_WEEK = timedelta(days=7)
_LIVE = (HoldingState.HEAD, HoldingState.HISTORY, HoldingState.STAGED)
_GARBAGE = (HoldingState.GARBAGE, HoldingState.EXPIRED)
_NAME, _SUFFIX = "overview-%Y%m%dT%H%M%SZ", ".parquet"
_MOST = 3
"""Maximum rules that an alert proposes."""
_GONE = "the server no longer has it, or the configuration no longer covers it"
_ALL_COMMITS, _SERVER_RULES = "all commits stay", "rules of the server"


class Standing(StrEnum):
    """State of a repository in an overview. Stored overviews hold these texts."""

    READ = "read"
    NO_RUN = "no run"
    UNREADABLE = "unreadable"
    VANISHED = "vanished"


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryFigures:
    """Figures of a repository. Times are UTC; what is unknown is None.

    Attributes:
        why: reason why it is unreadable; empty otherwise.
        seen_at: time of the overview that read these figures; an earlier one for a vanished repository.
        run_id, run_ended_at, run_succeeded: the newest run that examined the whole repository.
        stored_objects, stored_bytes: what the store has for it, at `stored_at`: all files by its holdings if it has
            any, else the objects in `data/` that the newest full listing left.
        live_objects, live_bytes: objects that something references.
        garbage_objects, garbage_bytes: candidates of the newest run that it neither deleted nor moved.
        stale_bytes: bytes that stale branches hold alone, by a forecast since the newest sweep.
        monthly_cost, currency: cost of the stored bytes; `unpriced_bytes` of them have no price.
        swept_at: end of the newest successful sweep.
        rules: retention rules of the newest run.
        bytes_per_day: slope of the trend of stored bytes.
    """

    repository: str
    namespace: str = ""
    standing: Standing = Standing.READ
    why: str = ""
    seen_at: datetime
    run_id: str | None = None
    run_ended_at: datetime | None = None
    run_succeeded: bool | None = None
    stored_objects: int | None = None
    stored_bytes: int | None = None
    stored_at: datetime | None = None
    live_objects: int | None = None
    live_bytes: int | None = None
    garbage_objects: int | None = None
    garbage_bytes: int | None = None
    stale_bytes: int | None = None
    monthly_cost: float | None = None
    currency: str | None = None
    unpriced_bytes: int | None = None
    swept_at: datetime | None = None
    rules: str | None = None
    budget_bytes: int | None = None
    bytes_per_day: float | None = None


_TIME = pa.timestamp("us", "UTC")
_TYPES: Mapping[str, pa.DataType] = {
    **dict.fromkeys(("repository", "namespace", "standing", "why", "run_id", "currency", "rules"), pa.string()),
    **dict.fromkeys(("seen_at", "run_ended_at", "stored_at", "swept_at"), _TIME),
    **dict.fromkeys(("monthly_cost", "bytes_per_day"), pa.float64()),
    "run_succeeded": pa.bool_(),
}
OVERVIEW = pa.schema([pa.field(each.name, _TYPES.get(each.name, pa.int64())) for each in fields(RepositoryFigures)])
"""A stored overview: a row for each repository, as RepositoryFigures describes it."""


class AlertKind(StrEnum):
    """Kind of an alert."""

    UNREADABLE = "unreadable"
    VANISHED = "vanished"
    FAILED_RUN = "failed run"
    GROWTH = "growth"
    BUDGET = "budget"


@dataclass(frozen=True, slots=True)
class Alert:
    """Something about a repository that a person should look at, in words."""

    repository: str
    kind: AlertKind
    text: str
    proposals: tuple[Proposal, ...] = ()


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the present repositories of an overview; those with an unknown figure are counted in `unknown`.

    Attributes:
        time: time of the overview, UTC.
        monthly_cost: by currency.
        unknown: number of present repositories whose stored bytes are unknown.
    """

    time: datetime
    repositories: int
    stored_bytes: int
    garbage_bytes: int
    monthly_cost: Mapping[str, float]
    unknown: int


@dataclass(frozen=True, slots=True)
class Overview:
    """All repositories at one time.

    Attributes:
        time: UTC.
        rows: by repository; vanished ones have their last figures.
        days: totals of earlier overviews, one a day, oldest first, and of this one.
        paths: bytes by folder, for repositories with holdings.
        prices: sources of the prices.
    """

    time: datetime
    rows: tuple[RepositoryFigures, ...]
    alerts: tuple[Alert, ...]
    days: tuple[Totals, ...]
    paths: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    prices: tuple[str, ...] = ()

    @property
    def totals(self) -> Totals:
        """The sums of this overview."""
        return self.days[-1]


def add_up(time: datetime, rows: Sequence[RepositoryFigures]) -> Totals:
    """The sums over the rows of an overview, without vanished repositories."""
    present = [row for row in rows if row.standing is not Standing.VANISHED]
    costs: dict[str, float] = {}
    for row in present:
        if row.monthly_cost is not None and row.currency is not None:
            costs[row.currency] = costs.get(row.currency, 0.0) + row.monthly_cost
    return Totals(
        time,
        len(present),
        sum(row.stored_bytes or 0 for row in present),
        sum(row.garbage_bytes or 0 for row in present),
        costs,
        sum(row.stored_bytes is None for row in present),
    )


@dataclass(slots=True)
class _Runs:
    """Facts in the newest folders of a repository's runs and forecasts.

    Attributes:
        newest: newest run that was not broken off.
        finished: newest run that did not fail.
        swept: newest run that swept and succeeded.
        listing: newest run that listed everything.
        forecast: newest forecast, if no run has swept since.
    """

    newest: Report | None = None
    finished: Report | None = None
    swept: Report | None = None
    listing: Report | None = None
    forecast: pa.Table | None = None

    def read(self, store: ObjectStore, repository: str, run_ids: Sequence[str]) -> None:
        """Reads folders, newest first, until all facts are known."""
        for run_id in islice(run_ids, FOLDERS_READ):
            try:
                report = reports.read(store, run_id)
            except CorruptFile:
                continue
            if report is None:
                # A forecast from before the newest sweep is out of date.
                if self.swept is None and self.forecast is None:
                    self.forecast = _forecast(store, run_id)
            elif report.repository == repository and not report.is_partial:
                self._add(report)
            if self.newest and self.finished and self.swept and self.listing:
                return

    def _add(self, report: Report) -> None:
        if not report.was_broken_off:
            self.newest = self.newest or report
        if report.ending is Ending.FAILED:
            return
        self.finished = self.finished or report
        if report.is_complete and not report.dry_run:
            self.swept = self.swept or report
        # Runs with a base run list only a part of the store.
        if report.base_run is None and report.flow != Flow.COMMITTED and report.statistics.listed_bytes is not None:
            self.listing = self.listing or report


def _forecast(store: ObjectStore, forecast_id: str) -> pa.Table | None:
    key = stored_forecasts.forecast_key(forecast_id)
    data = get_if_there(store, key)
    try:
        return None if data is None else tables.decode(stored_forecasts.FORECAST, data, key, stored_forecasts.NAME)
    except CorruptFile:
        return None


@dataclass(frozen=True, slots=True)
class _Stored:
    """Amounts of a repository at a time: figures of RepositoryFigures, and bytes by storage class."""

    figures: Mapping[str, int | datetime | None]
    classes: Mapping[str, int]


def _by_listing(listing: Report) -> _Stored:
    """Amounts by the newest full listing, after its own sweep."""
    statistics = listing.statistics
    stored = Amount(statistics.listed or 0, statistics.listed_bytes or 0) - _swept(statistics)
    classes = {name: amount["bytes"] for name, amount in listing.storage_classes.get("listed", {}).items()}
    # The bytes of kept objects are not counted, so live bytes are known only if none were kept.
    live_bytes = None if statistics.kept else (statistics.listed_bytes or 0) - (statistics.candidates_bytes or 0)
    return _Stored(
        {
            "stored_objects": stored.objects,
            "stored_bytes": stored.bytes,
            "stored_at": listing.ended_at,
            "live_objects": statistics.live,
            "live_bytes": live_bytes,
        },
        _scaled(classes, stored.bytes),
    )


def _scaled(classes: Mapping[str, int], total: object) -> dict[str, int]:
    """Bytes by storage class in the same proportions, for another total; empty if it is unknown."""
    whole = sum(classes.values())
    if not whole or not isinstance(total, int):
        return {}
    return {name: count * total // whole for name, count in classes.items()}


def _by_holdings(holdings: Holdings) -> _Stored | None:
    """Amounts by the holdings of a run; None if they leave out a state or its bytes because they are unknown."""
    rows = {row.state: row for row in holdings.of(Dimension.STATE)}
    sizes = {state: row.bytes for state, row in rows.items() if row.bytes is not None}
    if not rows.keys() >= {HoldingState.HEAD, HoldingState.HISTORY} or rows.keys() > sizes.keys():
        return None

    def add_up(prefix: str, states: Iterable[HoldingState | None]) -> dict[str, int]:
        there = [state for state in states if state in rows]
        objects, total = sum(rows[state].objects for state in there), sum(sizes[state] for state in there)
        return {f"{prefix}_objects": objects, f"{prefix}_bytes": total}

    classes: dict[str, int] = {}
    for row in holdings.of(Dimension.STORAGE_CLASS):
        classes[row.key] = classes.get(row.key, 0) + (row.bytes or 0)
    amounts = add_up("stored", rows) | add_up("live", _LIVE) | add_up("garbage", _GARBAGE)
    return _Stored({**amounts, "stored_at": holdings.time}, classes)


def _garbage(finished: Report) -> dict[str, int]:
    """Garbage that the newest finished run left."""
    statistics = finished.statistics
    left = Amount(statistics.candidates or 0, statistics.candidates_bytes or 0) - _swept(statistics)
    return {"garbage_objects": left.objects, "garbage_bytes": left.bytes}


def _swept(statistics: Statistics) -> Amount:
    """Objects that a run deleted or moved to quarantine."""
    deleted = Amount(statistics.deleted or 0, statistics.deleted_bytes or 0)
    return deleted.plus(statistics.quarantined or 0, statistics.quarantined_bytes or 0)


@dataclass(frozen=True, slots=True)
class _RepositoryRead:
    """Results of reading a repository."""

    figures: RepositoryFigures
    paths: Mapping[str, int] = field(default_factory=dict)
    forecast: pa.Table | None = None
    prices: str = ""


def _read(now: datetime, found: FoundRepository) -> _RepositoryRead:
    """Reads the figures of a repository: one listing, the newest holdings, and at most FOLDERS_READ reports."""
    figures = RepositoryFigures(repository=found.label, seen_at=now)
    if found.configuration is None or found.namespace is None:
        standing = Standing.VANISHED if found.is_gone else Standing.UNREADABLE
        return _RepositoryRead(replace(figures, standing=standing, why=found.why))
    figures = replace(figures, namespace=found.namespace.uri, budget_bytes=found.configuration.overview.budget_bytes)
    try:
        return _read_store(found, found.open(), figures)
    except CollectionError as error:
        return _RepositoryRead(replace(figures, standing=Standing.UNREADABLE, why=str(error)))


def _read_store(found: FoundRepository, store: ObjectStore, figures: RepositoryFigures) -> _RepositoryRead:
    """Completes the figures with what the repository's store holds. Raises CollectionError."""
    assert found.configuration is not None and found.namespace is not None
    repository = found.configuration.repository
    prefixes = store.list_level(layout.RUNS_PREFIX).prefixes
    names = (prefix.removeprefix(layout.RUNS_PREFIX).rstrip("/") for prefix in prefixes)
    runs = _Runs()
    runs.read(store, repository, sorted(name for name in names if layout.is_xid(name)))
    holdings = None
    if run_folder.HOLDINGS in prefixes:
        holdings = next((each for each in holdings_files.history(store) if each.repository == repository), None)
    stored = _Stored({}, {})
    if runs.listing is not None:
        stored = _by_listing(runs.listing)
    if holdings is not None and (runs.listing is None or holdings.time >= runs.listing.ended_at):
        by_holdings = _by_holdings(holdings)
        if by_holdings is not None:
            # Only runs that list everything know storage classes, so use their shares in the newest one.
            classes = by_holdings.classes or _scaled(stored.classes, by_holdings.figures["stored_bytes"])
            stored = replace(by_holdings, classes=classes)
    amounts: dict[str, object] = {**(_garbage(runs.finished) if runs.finished else {}), **stored.figures}
    if runs.newest is None and holdings is None:
        amounts["standing"] = Standing.NO_RUN
    total, origin = amounts.get("stored_bytes"), ""
    if isinstance(total, int):
        cost = cost_of(found.configuration, found.namespace, total, stored.classes)
        origin = cost.origin if cost.amount is not None else ""
        amounts |= {"monthly_cost": cost.amount, "currency": cost.currency, "unpriced_bytes": cost.unpriced_bytes}
    if runs.newest is not None:
        policy = found.configuration.collection.retention_policy
        by_rules = Flow(runs.newest.flow).by_retention
        amounts |= {
            "run_id": runs.newest.run_id,
            "run_ended_at": runs.newest.ended_at,
            "run_succeeded": runs.newest.success,
            "rules": (policy or _SERVER_RULES) if by_rules else _ALL_COMMITS,
        }
    if runs.swept is not None:
        amounts["swept_at"] = runs.swept.ended_at
    if runs.forecast is not None:
        amounts["stale_bytes"] = sum(
            row["alone_bytes"] or 0
            for row in runs.forecast.to_pylist()
            if row["kind"] == ScenarioKind.BRANCH and row["stale"]
        )
    paths: dict[str, int] = {}
    for row in holdings.of(Dimension.PATH) if holdings else ():
        folder = row.key or "(top level)"
        paths[folder] = paths.get(folder, 0) + (row.bytes or 0)
    return _RepositoryRead(replace(figures, **amounts), paths, runs.forecast, origin)  # type: ignore[arg-type]


def make_overview(everything: AllRepositories, clock: Clock, warn: LogLine) -> Overview:
    """Reads all repositories of a configuration side by side, and compares them with earlier overviews.

    Args:
        warn: receives a line about each earlier overview that cannot be read.
    Raises:
        CollectionError: the server or the folder of earlier overviews cannot be read.
    """
    now = clock.now()
    found = {each.label: each for each in find_repositories(everything, clock)}
    history = History.from_configuration(everything)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        earlier = history.read(now, pool, warn) if history else []
        results = dict(zip(found, pool.map(partial(_read, now), found.values()), strict=True))
    past: dict[str, list[RepositoryFigures]] = {}
    for _, then in earlier:
        for row in then:
            past.setdefault(row.repository, []).append(row)
    before = {row.repository: row for row in (earlier[-1][1] if earlier else ())}
    rows: list[RepositoryFigures] = []
    alerts: list[Alert] = []
    for label in sorted({*results, *before}):
        row = results[label].figures if label in results else replace(before[label], standing=Standing.VANISHED)
        if row.standing is Standing.VANISHED and label in before:
            row = replace(before[label], standing=Standing.VANISHED, why=row.why)
        measurements = _measurements((*past.get(label, ()), row))
        trend = Trend.from_measurements(measurements)
        rows.append(replace(row, bytes_per_day=trend.bytes_per_day if trend else None))
        if row.standing is not Standing.VANISHED:
            configuration = found[label].configuration or everything.shared.configuration
            judged = [*_judge(row), *_judge_size(row, measurements, trend, configuration.overview)]
            alerts += (_with_proposals(alert, row, found[label], results[label].forecast) for alert in judged)
        elif label not in before or before[label].standing is not Standing.VANISHED:
            alerts.append(Alert(label, AlertKind.VANISHED, row.why or _GONE))
    return Overview(
        now,
        tuple(rows),
        tuple(alerts),
        (*(add_up(time, then) for time, then in earlier), add_up(now, rows)),
        {label: each.paths for label, each in results.items() if each.paths},
        tuple(sorted({each.prices for each in results.values()} - {""})),
    )


def _measurements(rows: Iterable[RepositoryFigures]) -> list[Measurement]:
    """Stored bytes of a repository, oldest first. Overviews between two listings repeat a figure, which counts once."""
    by_time = {
        row.stored_at: row.stored_bytes for row in rows if row.stored_at is not None and row.stored_bytes is not None
    }
    return [Measurement(time, by_time[time]) for time in sorted(by_time)]


def _judge(row: RepositoryFigures) -> Iterator[Alert]:
    """Alerts about reading a repository and its newest run."""
    if row.standing is Standing.UNREADABLE:
        yield Alert(row.repository, AlertKind.UNREADABLE, row.why)
    if row.run_succeeded is False:
        text = f"run {row.run_id} did not succeed: lakefs-gc report {row.run_id} --repository {row.repository}"
        yield Alert(row.repository, AlertKind.FAILED_RUN, text)


def _judge_size(
    row: RepositoryFigures, measurements: Sequence[Measurement], trend: Trend | None, settings: OverviewSettings
) -> Iterator[Alert]:
    """Alerts about the growth and the budget of a repository."""
    if not measurements:
        return
    last = measurements[-1]
    week_ago = next((each for each in reversed(measurements) if last.time - each.time >= _WEEK), None)
    limit = settings.growth_alert_share
    if limit and week_ago and last.time - week_ago.time < 2 * _WEEK:
        grown = last.bytes - week_ago.bytes
        if grown > limit * week_ago.bytes:
            share = f" ({grown / week_ago.bytes:.0%})" if week_ago.bytes else ""
            yield Alert(row.repository, AlertKind.GROWTH, f"{size(grown)}{share} more than on {week_ago.time:%F}")
    if row.budget_bytes is None:
        return
    budget = f"budget of {size(row.budget_bytes)}"
    breaks_at = trend.reaches(row.budget_bytes) if trend else None
    if last.bytes > row.budget_bytes:
        yield Alert(row.repository, AlertKind.BUDGET, f"{size(last.bytes - row.budget_bytes)} above its {budget}")
    elif trend and breaks_at and breaks_at - row.seen_at <= timedelta(days=settings.budget_alert_days):
        text = f"above its {budget} on {breaks_at:%F} if it grows by {size(round(trend.bytes_per_day))} a day as before"
        yield Alert(row.repository, AlertKind.BUDGET, text)


def _with_proposals(alert: Alert, row: RepositoryFigures, found: FoundRepository, forecast: pa.Table | None) -> Alert:
    """The alert of a budget with the rules that would keep it, by the newest forecast of the repository."""
    if alert.kind is not AlertKind.BUDGET or row.budget_bytes is None or row.stored_bytes is None:
        return alert
    if forecast is None and row.standing is Standing.READ:
        with suppress(CollectionError):
            newest = stored_forecasts.read_newest(found.open())
            forecast = newest[1] if newest else None
    proposals = () if forecast is None else tuple(islice(propose(forecast, row.stored_bytes, row.budget_bytes), _MOST))
    if proposals:
        return replace(alert, proposals=proposals)
    return replace(
        alert, text=f"{alert.text}; rules that may keep it: lakefs-gc forecast --repository {row.repository}"
    )


@dataclass(frozen=True, slots=True)
class History:
    """The folder that keeps overviews, one file each."""

    store: ObjectStore

    @classmethod
    def from_configuration(cls, everything: AllRepositories) -> "History | None":
        """The folder of a configuration; None if it has none. Raises CollectionError."""
        uri = everything.shared.configuration.overview.history
        return cls(StoreOpener(everything.shared.with_secrets().store, uri).open()) if uri else None

    def write(self, overview: Overview) -> str:
        """Stores an overview and returns its key. Raises StorageError."""
        rows = [{name: getattr(row, name) for name in OVERVIEW.names} for row in overview.rows]
        key = f"{overview.time:{_NAME}}{_SUFFIX}"
        tables.put(self.store, key, pa.Table.from_pylist(rows, schema=OVERVIEW))
        return key

    def read(
        self, now: datetime, pool: ThreadPoolExecutor, warn: LogLine
    ) -> list[tuple[datetime, list[RepositoryFigures]]]:
        """The last overview of each of the newest TREND_DAYS days, and the newest one of all; oldest first.

        Args:
            warn: receives a line about each overview that cannot be read, which is left out.
        """
        newest_of_day: dict[str, tuple[datetime, str]] = {}
        for time, key in self._times():
            if time < now:
                newest_of_day[f"{time:%F}"] = (time, key)
        kept = sorted(newest_of_day.values())
        recent = [each for each in kept if now - each[0] <= timedelta(days=TREND_DAYS)] or kept[-1:]
        contents = pool.map(lambda each: self._rows(each[1], warn), recent)
        return [(time, rows) for (time, _), rows in zip(recent, contents, strict=True) if rows is not None]

    def _times(self) -> list[tuple[datetime, str]]:
        times = []
        for facts in self.store.list_level("").objects:
            name = facts.key.removesuffix(_SUFFIX)
            try:
                times.append((datetime.strptime(f"{name} +0000", f"{_NAME} %z"), facts.key))
            except ValueError:
                continue
        return sorted(times)

    def _rows(self, key: str, warn: LogLine) -> list[RepositoryFigures] | None:
        try:
            stored = tables.decode(OVERVIEW, fetch(self.store, key), key, "overview")
            return [RepositoryFigures(**{**row, "standing": Standing(row["standing"])}) for row in stored.to_pylist()]
        except (CorruptFile, ValueError) as error:
            warn(f"an earlier overview is left out: {error}")
            return None
