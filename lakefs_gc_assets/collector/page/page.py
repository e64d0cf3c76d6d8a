"""The page of a run: one self-contained HTML file, made from the files of the run and stored beside its report.

The page is made after the run has ended; a run does not fail if its page cannot be made. It begins with the facts for a
decision: the garbage, its cost, tripped guards, the deadline for an approval, and the way to undo a deletion.

Histories and lists of candidates use the same facts. The server is not asked. Missing facts are left out: a failed run
has fewer frames, and most frames of an old run have expired.
"""

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector import guards
from lakefs_gc_assets.collector.engine.port import LOCAL_ROWS, Engine, R
from lakefs_gc_assets.collector.frame.files import Manifest, StoredFrame, read_manifest
from lakefs_gc_assets.collector.frame.frames import (
    CANDIDATES_DF,
    COMMITTED_DF,
    STEPS,
    STORE_DF,
    UNCOMMITTED_DF,
    CandidateFigures,
    CommittedFigures,
    F,
    Frame,
)
from lakefs_gc_assets.collector.guards import Gauge, Mark
from lakefs_gc_assets.collector.live.live_files import LiveFiles
from lakefs_gc_assets.collector.page import garbage, markup
from lakefs_gc_assets.collector.page.garbage import (
    AGES,
    SIZES,
    WITH_A_PREVIEW,
    WITH_A_RUN,
    FrameReader,
    Garbage,
    LastHeld,
    LastStaged,
    PastRun,
    count_by_month,
    count_here,
    count_last_held,
    count_last_staged,
    find_counts,
    find_last_held,
    find_last_staged,
)
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.records import run_folder, tables
from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.collector.records.plan import Plan
from lakefs_gc_assets.collector.records.report import Report, describe_loosened
from lakefs_gc_assets.collector.reporting import mark_of
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.retention import active_commits
from lakefs_gc_assets.errors import CollectionError, CorruptFile, OrderViolation, counted
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.settings import CollectionSettings, ReportSettings
from lakefs_gc_assets.storage.interface import ObjectStore, get_if_there

_NO_BRANCH = "(no branch leads there)"
_NO_FOLDER = "(in no folder)"
_NOT_COMMITTED = "(no expired commit holds it)"
Count = Callable[[Manifest[CandidateFigures]], Garbage | None]
"""Counts the candidates of a manifest; returns None if there are too many. May raise CorruptFile."""


@dataclass(frozen=True)
class Counting:
    """Settings for counting garbage on a page.

    Attributes:
        count: counts the run's candidates, if there are any.
        most_read: maximum entries and candidates to read for the last holders, and again for the runs that saw
            candidates staged; None for no limit.
        frames: reads the frames of earlier runs; None to leave out staged entries.
    """

    count: Count
    most_read: int | None = None
    frames: FrameReader[Any] | None = None


_NOT_READ = "too much to read when a run ends; `lakefs-gc report --again RUN` reads it"
_TOO_MUCH = "too much to read for a list; `lakefs-gc candidates --by path RUN` reads it"
_NOT_NOTED = "the run did not note it"
_NOT_COUNTED = "the run failed with too many to count; `lakefs-gc report --again RUN` counts them"
_ID_SHOWN = 12
_EARLIER = 6
"""Maximum earlier runs beside a run: each costs a request."""


@dataclass(frozen=True)
class RunFacts:
    """Facts about a finished run.

    Attributes:
        settings: limits for its figures: the run's own at its end, or the present ones.
        made_at: time when these facts were read, UTC.
        mark: None if the run ended before its mark, or its frames are gone.
        gauges: figures of the mark and the guards' limits.
        listed_at: start of its listing; None if it has none.
        retention: number of commits by the reason why they stay, in flows by retention.
        months: candidates by the month of their slice.
        garbage: None if candidates were not counted; `uncounted` gives the reason.
        last_held: garbage by the commit that held it last, in flows by retention; None if that is unknown, and
            `held_unknown` gives the reason.
        last_staged: garbage that no commit held, by the newest earlier run that saw it staged; None if no earlier run
            has its frames.
        gone_branches: branches that these earlier runs saw and this run does not.
        earlier: reports of the runs before, newest first, up to the first gap.
    """

    report: Report
    plan: Plan
    settings: CollectionSettings
    prices: ReportSettings
    made_at: datetime
    mark: Mark | None = None
    gauges: tuple[Gauge, ...] = ()
    listed_at: datetime | None = None
    retention: Mapping[str, int] = field(default_factory=dict)
    months: Mapping[str, Amount] = field(default_factory=dict)
    garbage: Garbage | None = None
    uncounted: str | None = None
    last_held: LastHeld | None = None
    held_unknown: str | None = None
    last_staged: LastStaged | None = None
    gone_branches: frozenset[str] = frozenset()
    earlier: tuple[Report, ...] = ()


def gather(
    store: ObjectStore,
    run_id: str,
    settings: CollectionSettings,
    prices: ReportSettings,
    now: datetime,
    counting: Counting,
) -> RunFacts:
    """Reads the files of a run.

    Args:
        now: UTC.
    Raises:
        CollectionError: there is no such run, it left no report, or its plan or report is damaged.
    """
    plan, report = plans.read(store, run_id), reports.read(store, run_id)
    if report is None:
        raise CollectionError(f"run {run_id} left no report: it has not ended, or its process was killed")

    def manifest(frame: Frame[F]) -> Manifest[F] | None:
        stored = _stored(store, run_id, frame)
        # Frames of an earlier attempt do not describe this one.
        return stored if stored and stored.span.attempt == report.attempt else None

    listed, uncommitted = manifest(STORE_DF), manifest(UNCOMMITTED_DF)
    committed, candidates = manifest(COMMITTED_DF), manifest(CANDIDATES_DF)
    mark: Mark | None = None
    if listed and uncommitted and committed and candidates:
        mark = mark_of(listed, uncommitted, committed, candidates)
    earlier = _before(store, report.previous_run)
    return RunFacts(
        report,
        plan,
        settings,
        prices,
        now,
        mark=mark,
        gauges=guards.measure(mark, settings) if mark else (),
        listed_at=listed.span.started_at if listed else None,
        retention=committed.figures.retention if committed else {},
        **_counted(candidates, plan, counting.count),
        **_last_seen(store, plan, committed, candidates, earlier, counting),
        earlier=earlier,
    )


def _before(store: ObjectStore, previous_run: str | None) -> tuple[Report, ...]:
    """Reports of the runs before one, newest first, up to the first run without a report."""
    found: list[Report] = []
    while previous_run is not None and len(found) < _EARLIER:
        try:
            before = reports.read(store, previous_run)
        except CollectionError:
            break
        if before is None:
            break
        found.append(before)
        previous_run = before.previous_run
    return tuple(found)


def _counted(candidates: Manifest[CandidateFigures] | None, plan: Plan, count: Count) -> dict[str, Any]:
    if candidates is None:
        return {"uncounted": "the run has no candidates stored: it ended before, or they were removed as it is old"}
    months = count_by_month(candidates, plan.slice_window)
    if not candidates.rows:
        return {"months": months, "uncounted": "there are none"}
    try:
        garbage = count(candidates)
    except CorruptFile as damage:
        return {"months": months, "uncounted": f"they cannot be read: {damage}"}
    return {"months": months, "garbage": garbage, "uncounted": None if garbage else _NOT_COUNTED}


def _last_seen(
    store: ObjectStore,
    plan: Plan,
    committed: Manifest[CommittedFigures] | None,
    candidates: Manifest[CandidateFigures] | None,
    earlier: Sequence[Report],
    counting: Counting,
) -> dict[str, Any]:
    """Garbage by the commit that held it last, in flows by retention, and the rest by the run that saw it staged."""
    if committed is None or candidates is None or not candidates.rows:
        return {}
    if not plan.flow.by_retention:
        return _last_staged(store, committed, candidates, earlier, counting)
    try:
        expired = _expired_commits(store, plan, committed)
        rows = None if expired is None else find_last_held(*expired, candidates, counting.most_read)
    except CorruptFile as damage:
        return {"held_unknown": f"a file cannot be read: {damage}"}
    if expired is None or rows is None:
        return {"held_unknown": _NOT_NOTED if expired is None else _NOT_READ}
    held = {"last_held": count_last_held(rows, expired[1])}
    not_committed = rows.filter(pc.is_null(rows.column("holder"))).select(["address", "size"])
    return {**held, **_last_staged(store, committed, not_committed, earlier, counting)}


def _last_staged(
    store: ObjectStore,
    committed: Manifest[CommittedFigures],
    garbage: Manifest[CandidateFigures] | pa.Table,
    earlier: Sequence[Report],
    counting: Counting,
) -> dict[str, Any]:
    """Garbage that no commit held by the newest earlier run that saw it staged."""
    reader = counting.frames
    if reader is None:
        return {}
    past = _past_runs(store, earlier)
    if isinstance(garbage, Manifest):
        total = Amount(garbage.rows, garbage.object_bytes)
        rows = reader.rows(CANDIDATES_DF, garbage, "address", "size")
    else:
        total = Amount(garbage.num_rows, pc.sum(garbage.column("size")).as_py() or 0)
        rows = reader.engine.table(garbage)
    last_staged = count_last_staged(reader, rows, total, past, counting.most_read)
    if last_staged is None or not last_staged.until:
        return {"last_staged": last_staged}
    seen = (_stored(store, report.run_id, COMMITTED_DF) for report in earlier if report.started_at in last_staged.until)
    branches = {branch for manifest in seen if manifest for branch in manifest.figures.heads}
    return {"last_staged": last_staged, "gone_branches": frozenset(branches - committed.figures.heads.keys())}


def _past_runs(store: ObjectStore, earlier: Sequence[Report]) -> list[PastRun]:
    staged = [(report.started_at, _stored(store, report.run_id, UNCOMMITTED_DF)) for report in earlier]
    return [PastRun(began, manifest) for began, manifest in staged if manifest]


def _stored(store: ObjectStore, run_id: str, frame: Frame[F]) -> Manifest[F] | None:
    """The manifest of a run's frame; None if it is gone or damaged."""
    try:
        return read_manifest(store, run_id, frame)
    except (OrderViolation, CorruptFile):
        return None


def _expired_commits(
    store: ObjectStore, plan: Plan, committed: Manifest[CommittedFigures]
) -> tuple[LiveFiles, pa.Table, Collection[str]] | None:
    """The files of commits, the run's facts about expired commits (LAST_HOLDERS), and the ids of live ranges.

    None if the run recorded nothing about expired commits. Raises CorruptFile.
    """
    attempt = committed.span.attempt
    holders = active_commits.read_last_holders(store, plan.run_id, attempt)
    if holders is None:
        return None
    live = tables.read_run_ids(store, plan.run_id, attempt, committed.figures.read_sha256)
    return LiveFiles(store, Namespace.parse(plan.storage_namespace), plan.slice_window), holders, live


LAST_SEEN = pa.schema(
    [
        pa.field("branch", pa.string()),
        pa.field("path", pa.string()),
        pa.field("commit_id", pa.string()),
        pa.field("rule", pa.string()),
        pa.field("last_staged_at", pa.timestamp("us", "UTC")),
    ]
)
"""Places of candidates: branch, path, the newest expired commit that holds them, and the rule that let it expire.

Garbage that no commit held has the start of the newest earlier run that saw it staged (UTC), and branch and path if
that run recorded them. Null is unknown.
"""


@dataclass(frozen=True, slots=True)
class LastSeen:
    """Places of some candidates.

    Attributes:
        rows: a row for each candidate, in their order (LAST_SEEN).
        unknown: the reason why nothing was read; None if it was.
        runs: number of earlier runs whose staged entries were compared.
    """

    rows: pa.Table
    unknown: str | None = None
    runs: int = 0

    @classmethod
    def nowhere(cls, count: int, unknown: str) -> "LastSeen":
        """Unknown places for `count` candidates, with the reason."""
        return cls(pa.table([pa.nulls(count, field.type) for field in LAST_SEEN], schema=LAST_SEEN), unknown)

    def describe_unknown(self) -> Iterator[str]:
        """A line if some paths are unknown."""
        if self.unknown is not None:
            yield f"branches, paths and commits are not known: {self.unknown}"
        elif without := self.rows.column("path").null_count:
            yield (
                f"no path is known for {counted(without, 'objects')} that no commit holds: lakeFS keeps no names of "
                "objects that were never committed. "
                + ("Runs note a few staged paths of each branch." if self.runs else "No earlier run saw them staged.")
            )


def find_last_seen(store: ObjectStore, run_id: str, some: pa.Table, reader: FrameReader[Any], most: int) -> LastSeen:
    """Finds the places of a run's candidates in expired commits and in the uncommitted data of earlier runs.

    Args:
        some: candidates of the run (at least address and size). This process holds them in memory.
        most: maximum entries and candidates to read for commits, and again for earlier runs.
    Raises:
        CollectionError: the run has no plan or no commits, or a file cannot be read.
    """
    if some.num_rows > most:
        return LastSeen.nowhere(some.num_rows, _TOO_MUCH)
    plan, addresses = plans.read(store, run_id), some.column("address")
    columns = {field.name: pa.nulls(some.num_rows, field.type) for field in LAST_SEEN}
    not_committed = some.select(["address", "size"])
    if plan.flow.by_retention:
        expired = _expired_commits(store, plan, read_manifest(store, run_id, COMMITTED_DF))
        held = None if expired is None else find_last_held(*expired, some, most)
        if expired is None or held is None:
            return LastSeen.nowhere(some.num_rows, _NOT_NOTED if expired is None else _TOO_MUCH)
        columns |= {
            name: expired[1].column(name).take(held.column("holder")) for name in ("branch", "commit_id", "rule")
        }
        columns["path"] = _decoded(held.column("folder"))
        not_committed = not_committed.filter(pc.is_null(held.column("holder")))
    total = Amount(not_committed.num_rows, pc.sum(not_committed.column("size")).as_py() or 0)
    past = _past_runs(store, _before(store, plan.previous_run))
    staged = find_last_staged(reader, reader.engine.table(not_committed), total, past, most)
    at = pc.index_in(addresses, value_set=staged.column("address"))
    for name in ("branch", "path"):
        columns[name] = pc.coalesce(columns[name], staged.column(name).take(at))
    columns["last_staged_at"] = staged.column("seen_at").take(at)
    return LastSeen(pa.table(columns, LAST_SEEN), runs=len(past))


def _decoded(paths: pa.ChunkedArray) -> pa.ChunkedArray:
    """Paths as text; bytes that are not UTF-8 are replaced."""
    try:
        return paths.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if path is None else path.decode("utf-8", "replace") for path in paths.to_pylist()]
        return pa.chunked_array([pa.array(texts, pa.string())])


def trace(store: ObjectStore, run_id: str, some: pa.Table, reader: FrameReader[Any]) -> list[tuple[str, str]] | str:
    """The paths and the last holders of candidates, in words; or the reason why they are unknown.

    The holder is an expired commit, or a branch on which an earlier run saw the candidate staged. This reads little, so
    a place may be unknown here although the page of the run shows it.

    Args:
        some: candidates of the run, at least address and size.
    Raises:
        CollectionError: the run has no plan or no commits, or a file cannot be read.
    """
    seen = find_last_seen(store, run_id, some, reader, WITH_A_PREVIEW)
    if seen.unknown == _TOO_MUCH:
        return "too much to read for a preview; the page of the run names branches and folders"
    if seen.unknown is not None:
        return seen.unknown
    rows = seen.rows.to_pylist()
    if not any(row["commit_id"] or row["last_staged_at"] for row in rows):
        return "no commit holds these objects, and lakeFS keeps no names of objects that were never committed"
    return [(row["path"] or "", _in_words(row)) for row in rows]


def _in_words(row: Mapping[str, Any]) -> str:
    """The last holder of a candidate (a row of LAST_SEEN)."""
    branch = "no branch" if row["branch"] is None else f"branch {row['branch']}"
    if row["commit_id"] is not None:
        return f"{row['commit_id'][:_ID_SHOWN]} of {branch}"
    if row["last_staged_at"] is not None:
        where = "" if row["branch"] is None else f" on {branch}"
        return f"staged{where} until the run of {row['last_staged_at']:%F %H:%M}Z"
    return "no commit"


def render(facts: RunFacts) -> bytes:
    """The page that shows the facts: one HTML file, well below 1 MB for a run of any size."""
    report, settings = facts.report, facts.settings
    mark_age = timedelta(hours=settings.max_mark_age_hours)
    return markup.render(
        Path(__file__).with_name("run.html"),
        _mark(report),
        **vars(facts),
        approve_until=facts.listed_at and facts.listed_at + mark_age,
        purge_from=report.ended_at + timedelta(days=settings.quarantine_days),
        storage_classes=_storage_classes(report),
        **(_held(facts.last_held) if facts.last_held else {}),
        staged_entries=sorted(
            facts.last_staged.entries if facts.last_staged else (),
            key=lambda entry: (-entry.size, entry.branch, entry.path),
        ),
        cost=markup.cost,
        cost_of=partial(_cost, facts),
        describe_loosened=describe_loosened,
        AGES=AGES,
        SIZES=SIZES,
        STEPS=STEPS,
    )


def keep(repository: OpenRepository, run_id: str, prices: ReportSettings, engine: Engine[R]) -> None:
    """Makes and stores the page of a finished run, with the figures that take seconds to read.

    Raises CollectionError: as `gather`, or the page cannot be stored.
    """
    store, now = repository.store, repository.clock.now()

    def count(candidates: Manifest[CandidateFigures]) -> Garbage:
        frame = StoredFrame(CANDIDATES_DF, candidates, repository.opener)
        return find_counts(store, candidates) or garbage.count_candidates(store, frame, lambda: engine, now)

    counting = Counting(count, WITH_A_RUN, FrameReader(engine, repository.opener))
    write(store, run_id, render(gather(store, run_id, repository.settings, prices, now, counting)))


def keep_failed(
    store: ObjectStore, run_id: str, settings: CollectionSettings, prices: ReportSettings, now: datetime
) -> None:
    """Makes and stores the page of a failed run, if it had a plan: without one, no command could make a page.

    Raises CollectionError: as `gather`, or the page cannot be stored.
    """

    def count(candidates: Manifest[CandidateFigures]) -> Garbage | None:
        if candidates.rows <= LOCAL_ROWS:
            return count_here(store, candidates, now)
        return find_counts(store, candidates)

    if run_folder.has_plan(store, run_id):
        facts = gather(store, run_id, settings, prices, now, Counting(count, WITH_A_RUN))
        write(store, run_id, render(facts))


def write(store: ObjectStore, run_id: str, page: bytes) -> None:
    """Stores the page of a run, replacing an earlier one."""
    store.put(run_folder.page(run_id), page)


def read(store: ObjectStore, report: Report) -> bytes | None:
    """The stored page of this report; None if there is none, or it shows an earlier report of the run."""
    page = get_if_there(store, run_folder.page(report.run_id))
    return page if page is not None and _mark(report).encode() in page else None


def _mark(report: Report) -> str:
    return hashlib.sha256(report.to_json()).hexdigest()


def _storage_classes(report: Report) -> list[tuple[str, Amount, Amount]]:
    """Each storage class with its listed objects and its garbage."""
    listed, garbage = (report.storage_classes.get(kind, {}) for kind in ("listed", "candidates"))
    names = sorted({*listed, *garbage})
    return [(name, Amount(**listed.get(name, {})), Amount(**garbage.get(name, {}))) for name in names]


def _cost(facts: RunFacts, count: int) -> str:
    """The cost of some bytes of garbage; a part is assumed to have the same mix of storage classes as the whole."""
    garbage = facts.report.object_bytes.get("candidates", 0)
    classes = facts.report.storage_classes.get("candidates", {})
    by_class = {name: amount["bytes"] for name, amount in classes.items()}
    return markup.cost(facts.prices, garbage, by_class, count / garbage if garbage else 0)


def _held(last_held: LastHeld) -> dict[str, Any]:
    """Garbage by the commit that held it last: by branch, rule and folder, and by each part alone, most bytes first."""
    held = [
        replace(kind, branch=kind.branch or _NO_BRANCH, folder=kind.folder or _NO_FOLDER) for kind in last_held.held
    ]
    by_rule, by_folder = dict[str, Amount](), dict[str, Amount]()
    for kind in held:
        for groups, name in ((by_rule, f"{kind.branch}: {kind.rule}"), (by_folder, kind.folder)):
            groups[name] = groups.get(name, Amount()).plus(kind.objects, kind.bytes)
    if last_held.not_committed_objects:
        by_rule[_NOT_COMMITTED] = Amount(last_held.not_committed_objects, last_held.not_committed_bytes)
    return {"held": held, "held_by_rule": _most_first(by_rule), "held_by_folder": _most_first(by_folder)}


def _most_first(groups: dict[str, Amount]) -> list[tuple[str, Amount]]:
    return sorted(groups.items(), key=lambda group: (-group[1].bytes, -group[1].objects, group[0]))
