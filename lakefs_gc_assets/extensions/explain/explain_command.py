"""`lakefs-gc explain`: why an object is kept or deleted."""

from collections.abc import Iterator
from dataclasses import asdict

import click

from lakefs_gc_assets.cli.common import (
    JSON,
    QUIET,
    Target,
    on_repository,
    print_answer,
    progress_unless,
    show_progress,
)
from lakefs_gc_assets.cli.progress import shown_bar
from lakefs_gc_assets.collector.frame.receipts import GONE
from lakefs_gc_assets.collector.records.outcomes import Kept, Outcome, Why
from lakefs_gc_assets.errors import counted
from lakefs_gc_assets.extensions.explain import explain as explaining
from lakefs_gc_assets.extensions.explain.explain import Explanation, Holder
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.layout import Layout

_SHOWN = 5
_DECIDED = {
    Outcome.ACCEPTED: "deleted",
    Outcome.FAILED: "tried to delete, and failed",
    Outcome.KEPT_LIVE: "kept as live at the recheck",
    Outcome.KEPT_ARCHIVED: "kept, since quarantine cannot copy objects in an archive tier",
    Outcome.COPIED: "copied to quarantine",
    Outcome.QUARANTINED: "moved to quarantine",
    Outcome.RESTORED: "restored it",
    Outcome.PURGED: "purged its copy from quarantine",
    Outcome.DELETED_BY_ANOTHER_RUN: "found it deleted by another run",
    Outcome.DRY_RUN: "found it to be a candidate, in a dry run",
}


@click.command()
@on_repository
@QUIET
@click.option("--verbose", is_flag=True, help="Also print each file and answer that is read.")
@JSON
@click.argument("address")
def explain(target: Target, quiet: bool, verbose: bool, as_json: bool, address: str) -> None:
    """Explains why a run keeps or deletes the object at ADDRESS.

    ADDRESS is relative to the storage namespace (data/…), a physical address in full, or lakefs://REPOSITORY/REF/PATH.
    If the newest run examined the object and no live commit referenced it, the command reads only ranges that this run
    did not read. Otherwise it reads every range of the repository, except ranges without this address by the facts of
    earlier runs of flow unified.
    """
    opened = target.open_to_look()
    with shown_bar("looking for the object", quiet, "ranges") as (say, count):
        note = say if verbose else progress_unless(quiet=True)
        warn = show_progress if quiet else say
        explanation = explaining.explain(opened, address, note, warn, count)
    print_answer(as_json, lambda: {"verdict": verdict(explanation), **asdict(explanation)}, describe(explanation))


def describe(explanation: Explanation) -> Iterator[str]:
    """Lines of an explanation, the verdict first."""
    yield f"{explanation.address}: {verdict(explanation)}"
    name = layout.parse(explanation.address)
    issued = "" if name.issued_at is None else f", issued {layout.as_datetime(name.issued_at):%F %T}Z"
    yield f"  name: {name.layout.value}{issued}"
    if explanation.stored is None:
        yield "  stored: no"
    else:
        stored = explanation.stored
        yield f"  stored: {counted(stored.size, 'bytes')}, last modified {stored.last_modified:%F %T}Z"
    yield from _holders("active", explanation.active)
    yield from _holders("expired", tuple(holder for holder in explanation.holders if not holder.why))
    for unnamed in explanation.unnamed[:_SHOWN]:
        yield f"  in range {unnamed.range_id}, which belongs to no commit, at {', '.join(unnamed.paths[:_SHOWN])}"
    if len(explanation.unnamed) > _SHOWN:
        yield f"  … and in {counted(len(explanation.unnamed) - _SHOWN, 'more ranges')} of no commit"
    if explanation.uncommitted and not explanation.staged:
        yield "  staged: yes, by the server's uncommitted data; its branch is unknown"
    for place in explanation.compacted:
        yield f"  compacted: staged or held on {place.repository}, branch {place.branch}, path {place.path}"
    for place in explanation.staged:
        yield f"  staged: {place.repository}, branch {place.branch}, path {place.path}"
    for decision in explanation.decisions:
        error = f": {decision.error}" if decision.error else ""
        yield f"  run {decision.run_id}, {decision.decided_at:%F %T}Z: {_DECIDED[Outcome(decision.outcome)]}{error}"


def verdict(explanation: Explanation) -> str:
    """One line with the verdict: a run would keep or delete the object now."""
    if layout.parse(explanation.address).layout is Layout.SPECIAL:
        return "stays: it belongs to lakeFS itself"
    referenced = _referenced(explanation)
    if explanation.stored is None:
        return f"{_gone(explanation)}{f', although {referenced}: reading it fails' if referenced else ''}"
    if referenced:
        return f"stays: {referenced}"
    if explanation.kept_when_old or explanation.kept not in (None, Kept.YOUNG):
        return f"stays: {explanation.kept_when_old or explanation.kept}"
    when = ", once it is old enough" if explanation.kept else ""
    listed = f"; run {explanation.listed_by} lists it as a candidate" if explanation.listed_by else ""
    if explanation.holders:
        return f"goes by retention rules{when} (flows committed, unified): {Why.EXPIRED}{listed}"
    return f"goes{when}: {Why.NO_COMMIT}, and it is not staged{listed}"


def _referenced(explanation: Explanation) -> str | None:
    """Text about the references to the object; None if there are none."""
    if explanation.active:
        return f"{counted(len(explanation.active), 'active commits hold')} it"
    if explanation.uncommitted:
        return "it is staged"
    if explanation.compacted:
        bases = len({(place.repository, place.branch) for place in explanation.compacted})
        return (
            f"the compacted staging of {counted(bases, 'branches')} references it, until compacted again or committed"
        )
    if explanation.unnamed:
        return (
            f"{counted(len(explanation.unnamed), 'ranges of no commit hold')} it, and may belong to another "
            "repository; collection.keep_unnamed_ranges decides whether they count"
        )
    return None


def _gone(explanation: Explanation) -> str:
    """Text about an object that is not stored, with the run that deleted it, if any."""
    gone = next((decision for decision in explanation.decisions if decision.outcome in GONE), None)
    if gone is None:
        return "is not stored: no run deleted it; perhaps it was never stored"
    if gone.outcome == Outcome.ACCEPTED:
        return f"is gone: run {gone.run_id} deleted it"
    purged = any(
        decision.outcome == Outcome.PURGED and decision.run_id == gone.run_id for decision in explanation.decisions
    )
    return f"is gone: run {gone.run_id} moved it to quarantine{', and later purged it' if purged else ''}"


def _holders(kind: str, holders: tuple[Holder, ...]) -> Iterator[str]:
    if not holders:
        return
    yield f"  in {counted(len(holders), f'{kind} commits')}"
    for holder in holders[:_SHOWN]:
        why = f": {'; '.join(holder.why)}" if holder.why else ""
        yield f"    {holder.commit_id} at {', '.join(holder.paths[:_SHOWN])}{why}"
    if len(holders) > _SHOWN:
        yield f"    … and {len(holders) - _SHOWN:,} more"
