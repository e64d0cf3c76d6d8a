"""What a person wants to know of a run that came to its end."""

import json
from collections.abc import Mapping

from lakefs_gc_assets.collector.amount import size
from lakefs_gc_assets.collector.records.outcomes import Kept
from lakefs_gc_assets.collector.records.report import Report


def describe(found: Report) -> list[str]:
    """The report of a run, in lines; of one that failed, why."""
    counts, sizes = found.counts, found.object_bytes
    first = f"run {found.run_id} of {found.repository}, {found.flow}: {found.ending.value}"
    if not counts:
        return [first, *([f"  {found.error}"] if found.error else [])]
    lines = [
        first,
        *([f"  a clean run, because {found.why_clean}"] if found.why_clean else []),
        *([f"  loosened by its launch: {describe_loosened(found.loosened)}"] if found.loosened else []),
        f"  listed      {counts['listed']:>12,} objects, {size(sizes['listed'])}, "
        f"{counts['slices_listed']:,} slices, cutoff {found.cutoff:%F %T}Z",
        f"  uncommitted {counts['uncommitted']:>12,} addresses",
        f"  committed   {counts['committed']:>12,} addresses in {counts['commits']:,} commits, "
        f"by the {found.commit_source}, {counts['ranges_read']:,} ranges read",
        *_describe_unnamed(counts.get("unnamed_ranges", 0)),
        *_describe_provisional(counts.get("provisional_ranges", 0), counts.get("compacted_bases", 0)),
        f"  candidates  {counts['candidates']:>12,} objects, {size(sizes['candidates'])}",
        *(f"  kept        {count:>12,} objects: {_explain(why)}" for why, count in sorted(found.kept.items())),
    ]
    if found.moved:
        lines.append(
            f"  quarantined {counts['quarantined']:>12,} objects, {size(sizes['quarantined'])}: moved, not freed"
        )
    if not found.dry_run and (counts["deleted"] or not found.moved):
        lines.append(f"  deleted     {counts['deleted']:>12,} objects, {size(sizes['deleted'])}")
    if not found.dry_run:
        lines.append(
            f"  not gone    {counts['failed']:>12,} failed, {counts['kept_live']:,} kept as live at the recheck"
        )
    if elsewhere := counts.get("deleted_by_another_run", 0):
        lines.append(f"  gone before {elsewhere:>12,} deleted by another run after this run listed them")
    if waited := sum(found.waited_seconds.values()):
        worked = (found.ended_at - found.started_at).total_seconds() - waited
        lines.append(f"  took        {worked:>12,.1f} s, and {waited:,.1f} s of waits that protect")
    lines += [f"  warning: {warning}" for warning in found.warnings]
    if found.dry_run and counts["candidates"]:
        lines.append(f"  a dry run deletes nothing; what it found is deleted by: lakefs-gc approve {found.run_id}")
    return lines


def describe_loosened(loosened: Mapping[str, bool | int | float]) -> str:
    """Settings that a launch changed, in one line."""
    return ", ".join(f"{name}={json.dumps(value)}" for name, value in loosened.items())


def _explain(why: str) -> str:
    """A reason to keep objects, and what a person can do about it where that is not plain."""
    if why == Kept.MULTIPART:
        return f"{why}: the first run to list them an hour or more after this one can collect them, a dry run counts"
    if why == Kept.UNCERTAIN:
        return f"{why}; collection.hidden_suspect_limit says how many"
    return why


def _describe_provisional(ranges: int, bases: int) -> list[str]:
    """Says what is kept only as long as it is staged or young; reports of older versions do not know."""
    if not ranges:
        return []
    return [
        f"  provisional {ranges:>12,} ranges are of {bases:,} compacted bases of branches, or young and named by "
        "nothing: what they hold is kept for now"
    ]


def _describe_unnamed(ranges: int) -> list[str]:
    """Says what is kept although no commit of the repository holds it; reports of older versions do not know."""
    if not ranges:
        return []
    return [
        f"  unnamed     {ranges:>12,} ranges that no commit names were read: what they hold is kept, since another "
        "repository may be on this storage namespace; where they are known to be orphans, turn off "
        "collection.keep_unnamed_ranges"
    ]
