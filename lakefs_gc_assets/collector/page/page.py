"""The page of a run: one self-contained HTML file, made from the files of the run and stored beside its report.

The page is made after the run has ended; a run does not fail if its page cannot be made. It begins with the facts for a
decision: the garbage, its cost, tripped guards, the deadline for an approval, and the way to undo a deletion.
"""

import hashlib
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from lakefs_gc_assets.collector.frame.frames import STEPS
from lakefs_gc_assets.collector.page import markup
from lakefs_gc_assets.collector.page.garbage import AGES, SIZES, LastHeld
from lakefs_gc_assets.collector.page.run_facts import Counting, RunFacts, gather
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.collector.records.report import Report, describe_loosened
from lakefs_gc_assets.settings import CollectionSettings, ReportSettings
from lakefs_gc_assets.storage.interface import ObjectStore, get_if_there

_NO_BRANCH = "(no branch leads there)"
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
    """The page of a run that left a report: one HTML file, well below 1 MB for a run of any size.

    Args:
        settings: limits for its figures.
        now: UTC.
    Raises:
        CollectionError: there is no such run, it left no report, or its plan or report is damaged.
    """
    return render(gather(store, run_id, settings, prices, now, counting))


def render(facts: RunFacts) -> bytes:
    """The page that shows the facts."""
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
