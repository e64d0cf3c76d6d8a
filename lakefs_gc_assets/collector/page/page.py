"""The page of a run: one self-contained HTML file, made from the files of the run and stored beside its report.

The page is made when the run has ended; a run does not fail if its page cannot be made. It begins with what its reader
has to decide: what would go, what it costs, whether guards object, until when it can be approved, how it is undone.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from xml.etree.ElementTree import Element

from lakefs_gc_assets.collector.frame.frames import STEPS
from lakefs_gc_assets.collector.guards import Gauge
from lakefs_gc_assets.collector.page import markup
from lakefs_gc_assets.collector.page.garbage import AGES, SIZES, LastHolder
from lakefs_gc_assets.collector.page.markup import element, table
from lakefs_gc_assets.collector.page.run_facts import Counting, RunFacts, gather
from lakefs_gc_assets.collector.records.outcomes import Amount, size
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.report import Ending, Report
from lakefs_gc_assets.collector.stored import run_folder
from lakefs_gc_assets.errors import counted
from lakefs_gc_assets.settings import CollectionSettings, ReportSettings
from lakefs_gc_assets.storage.interface import ObjectStore, get_if_there

_MONTHS = 36
"""Maximum months of the chart of garbage."""
_KINDS = 40
"""Maximum lines of the tables of garbage by the commit that held it last."""
_LARGEST = 10
"""Maximum lines of the table of the largest objects."""
_WARNINGS = 50
"""Maximum warnings on the page: the report has all of them."""
_NO_FOLDER = "(in no folder)"
_NOT_COMMITTED = "(no expired commit holds it)"


def make_page(
    store: ObjectStore,
    run_id: str,
    settings: CollectionSettings,
    prices: ReportSettings,
    now: datetime,
    counting: Counting,
) -> bytes:
    """The page of a run that left a report: one HTML file, well below 1 MB however large the run was.

    Args:
        settings: limits for its figures.
        now: UTC.
    Raises:
        CollectionError: there is no such run, it left no report, or plan or report are damaged.
    """
    return render(gather(store, run_id, settings, prices, now, counting))


def render(facts: RunFacts) -> bytes:
    """The page of these facts."""
    title = f"{facts.report.repository}: {facts.report.ending.value}"
    return markup.document(title, _mark(facts.report), sections(facts))


def write(store: ObjectStore, run_id: str, page: bytes) -> None:
    """Stores the page of a run, in place of an earlier one."""
    store.put(run_folder.page(run_id), page)


def read(store: ObjectStore, report: Report) -> bytes | None:
    """The stored page of this report; None if there is none, or it shows an earlier report of the run."""
    page = get_if_there(store, run_folder.page(report.run_id))
    return page if page is not None and _mark(report).encode() in page else None


def _mark(report: Report) -> str:
    return hashlib.sha256(report.to_json()).hexdigest()


def sections(facts: RunFacts) -> Iterator[Element]:
    """All parts of the page, in order."""
    yield from _head(facts)
    yield element("section", *_decision(facts), class_="decision")
    yield from _garbage(facts)
    yield from _guards(facts)
    yield from _earlier(facts)
    yield from _objects(facts)
    yield from _times(facts)
    yield from _run(facts)
    yield element(
        "p",
        f"Made at {facts.made_at:%F %T}Z from the run's files in {facts.report.storage_namespace}; all times are "
        "UTC. report.json beside this page has the same facts for programs; the frames name every object.",
        class_="soft",
    )


def _head(facts: RunFacts) -> Iterator[Element]:
    report = facts.report
    yield element("h1", f"Garbage of {report.repository}")
    ended = f"{_kind(facts)} of {report.started_at:%F}: {report.ending.value}"
    yield element("p", ended, class_="ending" if report.success else "ending bad")
    if report.error:
        yield element("p", report.error, class_="box bad", role="alert")
    for warning in report.warnings[:_WARNINGS]:
        yield element("p", f"Warning: {warning}", class_="box")
    if more := len(report.warnings) - _WARNINGS:
        yield from [element("p", f"{more:,} more warnings are in report.json.", class_="box")] if more > 0 else []


def _run(facts: RunFacts) -> Iterator[Element]:
    report, plan = facts.report, facts.plan
    first, last = plan.windows[:1], plan.windows[-1:]
    yield element("h2", "This run")
    rows: list[tuple[str, str]] = [
        ("Run", report.run_id),
        ("Storage namespace", report.storage_namespace),
        ("Flow", report.flow),
        ("Began", f"{report.started_at:%F %T}Z"),
        *([] if report.statistics.seconds is None else [("Steps took", _duration(report.statistics.seconds))]),
        ("Cutoff", f"{report.cutoff:%F %T}Z: objects written or named later stay"),
        ("Slice windows", " to ".join(dict.fromkeys([*first, *last])) + f", {len(plan.windows):,} in all"),
    ]
    if report.limited_to:
        elsewhere = report.statistics.slices_elsewhere or 0
        rows.append(
            ("Limited to", f"{report.limited_to}: {counted(elsewhere, 'slices of other windows were')} not listed")
        )
    if report.base_run:
        rows.append(("Builds on run", report.base_run))
    if report.why_clean:
        what = "A clean run" if report.flow == Flow.CLEAN else "Builds on no other run"
        rows.append((f"{what}, because", report.why_clean))
    if report.loosened:
        rows.append(("Loosened by its launch", ", ".join(f"{k}={json.dumps(v)}" for k, v in report.loosened.items())))
    if report.approved_by:
        rows.append(("Approved by", report.approved_by))
    if report.commit_source:
        rows.append(("Source of commits", report.commit_source))
    yield table("What it was about, and what it built on", ("Fact", "Value"), rows)


def _kind(facts: RunFacts) -> str:
    if facts.report.dry_run:
        return "Dry run"
    return "Sweep of an earlier dry run" if not facts.plan.sweep else "Sweep"


def _objects(facts: RunFacts) -> Iterator[Element]:
    report, statistics = facts.report, facts.report.statistics
    yield element("h2", "Objects")
    if not report.counts:
        yield element("p", "The run ended before it had counted everything.")
        return
    kinds: list[tuple[str, int | None, int | None]] = [
        ("Stored, as far as the run knows", statistics.stored, None),
        ("Looked at by this run", statistics.listed, statistics.listed_bytes),
        ("Live: something references it", statistics.live, None),
        ("Addresses that live commits hold", statistics.committed, None),
        ("Addresses that are staged or copied", statistics.uncommitted, None),
        ("Garbage: nothing references it", statistics.candidates, statistics.candidates_bytes),
        ("Content unreadable, in an archive tier", statistics.unreadable or None, None),
        *((f"Unreferenced, kept: {why}", count, None) for why, count in sorted(report.kept.items())),
    ]
    if not report.dry_run:
        kinds += [
            ("Deleted", statistics.deleted, statistics.deleted_bytes),
            ("Moved to quarantine", statistics.quarantined, statistics.quarantined_bytes),
            ("Deletions that failed", statistics.failed, None),
            ("Live again at the recheck, kept", statistics.kept_live, None),
            ("In an archive tier, kept", statistics.kept_archived, statistics.kept_archived_bytes),
            ("Deleted by another run since the listing", statistics.deleted_by_another_run, None),
        ]
    known = [(kind, count, total) for kind, count, total in kinds if count is not None]
    rows = [(kind, f"{count:,}", _shown(total)) for kind, count, total in known]
    yield markup.bars("Objects by kind", ("Kind", "Objects", "Bytes"), rows, [count for _, count, _ in known])
    yield from _storage_classes(report, facts.prices)
    if facts.retention:
        yield table(
            "Commits by the reason why they stay",
            ("Reason", "Commits"),
            [(why, f"{count:,}") for why, count in facts.retention.items()],
            numbers=1,
        )


def _storage_classes(report: Report, prices: ReportSettings) -> Iterator[Element]:
    kinds = [report.storage_classes.get(kind, {}) for kind in ("listed", "candidates")]
    rows = []
    for name in sorted({*kinds[0], *kinds[1]}):
        amounts = [Amount(**kind.get(name, {})) for kind in kinds]
        costs = [markup.cost(prices, amount.bytes, {name: amount.bytes}) for amount in amounts]
        shown = [", ".join(filter(None, (size(each.bytes), words))) for each, words in zip(amounts, costs, strict=True)]
        rows.append((name, f"{amounts[0].objects:,}", shown[0], f"{amounts[1].objects:,}", shown[1]))
    if rows:
        heads = ("Class", "Looked at", "Bytes", "Garbage", "Bytes of garbage")
        yield table("Objects by storage class", heads, rows, numbers=4)


def _looked_at(report: Report) -> int:
    statistics = report.statistics
    return (statistics.listed or 0) if statistics.stored is None else statistics.stored


def _of_which_kind(report: Report) -> str:
    held = "that expired commits hold " if report.flow == Flow.COMMITTED else ""
    return held + ("were looked at" if report.statistics.stored is None else "are stored")


def _decision(facts: RunFacts) -> Iterator[Element]:
    """What the reader has to decide or may do, with the figures for it."""
    report, statistics = facts.report, facts.report.statistics
    if report.counts and report.dry_run:
        yield from _of_a_dry_run(facts)
    elif report.counts:
        yield from _of_a_sweep(facts)
    if report.ending is Ending.FAILED:
        yield element("p", "The error above says what to do; then open a new run.")
        if not report.dry_run:
            yield element("p", "Some objects may be gone already. To see those that can be brought back:")
            yield element("pre", f"lakefs-gc restore {report.run_id} --dry-run")
    if statistics.quarantined:
        until = report.ended_at + timedelta(days=facts.settings.quarantine_days)
        yield element("p", f"To undo the move to quarantine. A purge may delete the objects from {until:%F %T}Z on:")
        yield element("pre", f"lakefs-gc restore {report.run_id} --yes")
    if statistics.deleted:
        yield element("p", "To undo deletions in a bucket that keeps versions, as long as it keeps them:")
        yield element("pre", f"lakefs-gc restore {report.run_id} --yes")
        yield element("p", "In a bucket without versions, deleted objects are gone.")
    if statistics.failed:
        yield element("p", "To see what could not be deleted, and why:")
        yield element("pre", f"lakefs-gc deleted {report.run_id}")
    yield element("p", "To see why one object stays or goes:")
    yield element("pre", "lakefs-gc explain ADDRESS")


def _of_a_dry_run(facts: RunFacts) -> Iterator[Element]:
    report, settings = facts.report, facts.settings
    garbage, looked_at = report.statistics.candidates or 0, _looked_at(report)
    if not garbage:
        yield element("p", "There is no garbage, so there is nothing to approve.", class_="figure")
        return
    freed = _worth(facts, report.statistics.candidates_bytes or 0)
    share = f"{garbage:,} of them ({garbage / max(looked_at, 1):.0%})"
    which = f"{counted(looked_at, 'objects')} {_of_which_kind(report)}; {share}"
    yield element("p", f"A sweep would free {freed}.", class_="figure")
    yield element("p", f"{which} are garbage: no commit, branch or tag needs them.")
    if not facts.prices.price_per_gb_month:
        yield element("p", "Set report.price_per_gb_month to see their cost.", class_="soft")
    objections = _objections(facts)
    in_short = " ".join(objections) or _nearest_limit(facts)
    yield element("p", f"Guards: {in_short}", **({"class_": "bad"} if objections else {}))
    until = ""
    if facts.listed_at is not None:
        last = facts.listed_at + timedelta(hours=settings.max_mark_age_hours)
        until = f" until {last:%F %T}Z (collection.max_mark_age_hours)"
    does = "moves the candidates to quarantine" if settings.quarantines else "deletes the candidates"
    yield element(
        "p",
        f"Approve{until} with this command, or with the job approve in the Dagster UI. The run {does}, after checking "
        "again that nothing uses them:",
    )
    yield element("pre", f"lakefs-gc approve {report.run_id}")
    undo = "There is no undo, unless the bucket keeps versions."
    if settings.quarantines:
        undo = (
            f"Undo it with lakefs-gc restore for at least {counted(settings.quarantine_days, 'days')} after the sweep. "
            "Then a purge frees the bytes."
        )
    yield element("p", undo)
    yield element("p", "To see each object:")
    yield element("pre", f"lakefs-gc candidates {report.run_id}")


def _of_a_sweep(facts: RunFacts) -> Iterator[Element]:
    statistics = facts.report.statistics
    moved = _worth(facts, statistics.quarantined_bytes or 0)
    if facts.report.moved and not statistics.deleted:
        yield element("p", f"The run moved {moved} to quarantine.", class_="figure")
    else:
        yield element("p", f"The run freed {_worth(facts, statistics.deleted_bytes or 0)}.", class_="figure")
    gone = [f"{statistics.deleted or 0:,} were deleted", f"{statistics.quarantined or 0:,} moved to quarantine"]
    live = f", {statistics.kept_live:,} live again at the recheck and kept" if statistics.kept_live else ""
    yield element("p", f"Of {counted(statistics.candidates or 0, 'candidates')}, {' and '.join(gone)}{live}.")
    if facts.report.moved:
        yield element("p", f"Moved to quarantine, where a purge frees it: {moved}.")


def _objections(facts: RunFacts) -> list[str]:
    """Guards that refuse a sweep of this mark, in words."""
    refusing = [
        f"a sweep is refused: the {gauge.guard} is {_figure(gauge.figure, gauge.is_share)}, and "
        f"collection.{gauge.setting} is {_figure(gauge.limit, gauge.is_share)}."
        for gauge in facts.gauges
        if gauge.is_exceeded
    ]
    if facts.mark is None:
        return refusing
    refusing += [str(guard) for guard in facts.mark.retention]
    if facts.mark.nested:
        refusing.append(f"other repositories lie inside or around this namespace: {', '.join(facts.mark.nested)}.")
    if facts.mark.repositories_unknown:
        refusing.append(f"the server does not list its repositories: {facts.mark.repositories_unknown}.")
    return refusing


def _nearest_limit(facts: RunFacts) -> str:
    if not facts.gauges:
        return "their figures are no longer stored."
    nearest = max(facts.gauges, key=_used)
    return f"none refuses a sweep; nearest is {nearest.setting}, {_used(nearest):.0%} of which is used."


def _worth(facts: RunFacts, count: int) -> str:
    """Bytes of garbage, or of some of it, and their cost: what class each of some is of is not known."""
    if not facts.prices.price_per_gb_month:
        return size(count)
    garbage = facts.report.object_bytes.get("candidates", 0)
    classes = facts.report.storage_classes.get("candidates", {})
    by_class = {name: amount["bytes"] for name, amount in classes.items()}
    share = count / garbage if garbage else 0
    return f"{size(count)}, which cost {markup.cost(facts.prices, garbage, by_class, share)}"


def _garbage(facts: RunFacts) -> Iterator[Element]:
    if facts.report.statistics.candidates == 0:
        return
    yield element("h2", "What the garbage is")
    garbage = facts.garbage
    if facts.months:
        newest = dict([*facts.months.items()][-_MONTHS:])
        dropped = len(facts.months) - len(newest)
        title = f"Garbage by the month of its slice{f', the newest {_MONTHS}' if dropped else ''}"
        by_month = [*_chart(title, "Month", newest, newest)]
    else:
        by_month = []
    yield from _last_held(facts)
    yield from _last_staged(facts)
    if garbage is None:
        yield element("p", f"Ages, sizes and the largest objects are not known: {facts.uncounted}.")
        yield from by_month
        return
    yield from _chart("Garbage by why it is garbage", "Reason", garbage.by_why, sorted(garbage.by_why))
    yield from by_month
    yield from _chart("Garbage by age", "Age", garbage.by_age, AGES)
    yield from _chart("Garbage by size", "Size of an object", garbage.by_size, SIZES)
    yield table(
        "The largest objects",
        ("Address", "Last modified", "Size"),
        [
            (element("code", large_object.address), f"{large_object.last_modified:%F %T}Z", size(large_object.size))
            for large_object in garbage.largest[:_LARGEST]
        ],
        numbers=2,
    )


def _last_held(facts: RunFacts) -> Iterator[Element]:
    """Garbage by the commit that held it last, for runs by retention rules."""
    if facts.held_unknown:
        yield element("p", f"Which commits held it last is not known: {facts.held_unknown}.")
    last_held = facts.last_held
    if last_held is None:
        return
    by_rule, by_folder = dict[str, Amount](), dict[str, Amount]()
    for kind in last_held.held:
        for groups, name in ((by_rule, f"{_branch(kind)}: {kind.rule}"), (by_folder, kind.folder or _NO_FOLDER)):
            groups[name] = groups.get(name, Amount()).plus(kind.objects, kind.bytes)
    last = "the commit that held it last"
    if last_held.not_committed_objects:
        by_rule[_NOT_COMMITTED] = Amount(last_held.not_committed_objects, last_held.not_committed_bytes)
    yield from _chart(f"Garbage by branch and rule of {last}", "Branch and rule", by_rule, _most(by_rule))
    yield from _chart(f"Garbage by top-level path in {last}", "Path", by_folder, _most(by_folder))
    yield table(
        f"Garbage by branch, rule and top-level path of {last}{_limited(len(last_held.held))}",
        ("Branch", "Rule", "Path", "Objects", "Bytes"),
        [
            (_branch(kind), kind.rule, kind.folder or _NO_FOLDER, f"{kind.objects:,}", size(kind.bytes))
            for kind in last_held.held[:_KINDS]
        ],
        numbers=2,
    )
    yield element(
        "p",
        "The branch and its rule are those by which that commit would have stayed longest: the newest of the expired "
        "commits that have the object.",
        class_="soft",
    )


def _last_staged(facts: RunFacts) -> Iterator[Element]:
    """Garbage that no commit held by the run that saw it staged last, and its branches and paths as far as known."""
    last_staged = facts.last_staged
    if last_staged is None:
        return
    groups = {f"staged until the run of {began:%F %H:%M}Z": amount for began, amount in last_staged.until.items()}
    if last_staged.unseen.objects:
        groups[f"not staged in any run since {last_staged.since:%F %H:%M}Z"] = last_staged.unseen
    yield from _chart("Garbage by the last run that saw it staged", "Last seen", groups, groups)
    entries = sorted(last_staged.entries, key=lambda entry: (-entry.size, entry.branch, entry.path))
    if entries:
        yield table(
            "Where some of it was staged: runs note a few paths of each branch",
            ("Branch", "Path", "Staged until the run of", "Size"),
            [
                (
                    f"{entry.branch} (deleted since)" if entry.branch in facts.gone_branches else entry.branch,
                    entry.path,
                    f"{entry.seen_at:%F %H:%M}Z",
                    size(entry.size),
                )
                for entry in entries[:_LARGEST]
            ],
            numbers=1,
        )


def _branch(holder: LastHolder) -> str:
    return "(no branch leads there)" if holder.branch is None else holder.branch


def _limited(count: int) -> str:
    return f", the largest {_KINDS} of {count:,}" if count > _KINDS else ""


def _most(groups: Mapping[str, Amount]) -> list[str]:
    """Names of the groups with the most bytes."""
    return sorted(groups, key=lambda name: (-groups[name][1], -groups[name][0], name))[:_KINDS]


def _chart(title: str, what: str, groups: Mapping[str, Amount], order: Iterable[str]) -> Iterator[Element]:
    """A table with bars by bytes, or by objects if all are empty; a sentence for a single group."""
    present = [(name, *groups[name]) for name in order if name in groups]
    if len(present) == 1:
        yield element("p", f"{what}: {present[0][0]} (all of the garbage)")
        return
    by_bytes = any(total for _, _, total in present)
    rows = [(name, f"{objects:,}", size(total)) for name, objects, total in present]
    yield markup.bars(
        title, (what, "Objects", "Bytes"), rows, [total if by_bytes else objects for _, objects, total in present]
    )


def _guards(facts: RunFacts) -> Iterator[Element]:
    yield element("h2", "Guards")
    if facts.mark is None:
        yield element("p", "The frames that guards look at are not there: the run ended before, or they were removed.")
        return
    rows = [
        (
            gauge.guard,
            _figure(gauge.figure, gauge.is_share),
            _figure(gauge.limit, gauge.is_share),
            element("code", "collection.", element("wbr"), gauge.setting, class_="setting"),
            f"ignored for {gauge.floor:,} or fewer" if gauge.floor else "",
        )
        for gauge in facts.gauges
    ]
    yield markup.bars(
        "A sweep is refused above the limit; a bar is the share of it that is used",
        ("Guard", "Figure", "Limit", "Setting", "Note"),
        rows,
        [_used(gauge) for gauge in facts.gauges],
        whole=1,
        words=2,
    )
    for words in _objections(facts):
        yield element("p", words, class_="box")
    yield element("p", "Right before it deletes, a sweep reads branches and uncommitted data again.")


def _earlier(facts: RunFacts) -> Iterator[Element]:
    if not facts.earlier:
        return
    yield element("h2", "Beside earlier runs")
    reports = [facts.report, *facts.earlier]
    yield markup.bars(
        "This run first; a bar is the garbage that was found",
        ("Began", "Stored", "Garbage", "Bytes", "Deleted or moved", "Ending"),
        [_beside(report) for report in reports],
        [report.statistics.candidates_bytes or 0 for report in reports],
        words=1,
    )


def _beside(report: Report) -> tuple[str, ...]:
    statistics = report.statistics
    counts = statistics.stored, statistics.candidates, statistics.candidates_bytes
    stored, garbage, total = counts
    gone = None if report.dry_run else (statistics.deleted or 0) + (statistics.quarantined or 0)
    return (
        f"{report.started_at:%F %H:%M}Z",
        *("" if count is None else f"{count:,}" for count in (stored, garbage)),
        _shown(total),
        "" if gone is None else f"{gone:,}",
        f"{'dry run: ' if report.dry_run else ''}{report.ending.value}",
    )


def _used(gauge: Gauge) -> float:
    if not gauge.limit:
        return 2.0 if gauge.figure else 0.0
    return gauge.figure / gauge.limit


def _figure(value: float, is_share: bool) -> str:
    return f"{value:.2%}" if is_share else f"{value:,.0f}"


def _times(facts: RunFacts) -> Iterator[Element]:
    yield element("h2", "Duration")
    seconds, waited = facts.report.worked_seconds, facts.report.waited_seconds
    if not seconds:
        yield element("p", "No step came to its end, or an earlier version made the run.")
        return
    steps = [step for step in STEPS if step in seconds]
    yield markup.bars(
        "Seconds of work of each step",
        ("Step", "Work", "Waiting"),
        [(name, _duration(seconds[name]), _duration(waited.get(name, 0))) for name in steps],
        [seconds[name] for name in steps],
    )
    if waited:
        yield element(
            "p",
            "A step waits before it reads live commits, and again before the recheck, since a server may show new "
            "data with a delay.",
            class_="soft",
        )


def _shown(count: int | None) -> str:
    return "" if count is None else size(count)


def _duration(seconds: float) -> str:
    """A duration in words, such as 5 min 03 s."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
