"""`lakefs-gc holdings`: who holds which bytes after the newest run, and what changed since a day."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from lakefs_gc_assets.cli.common import JSON, QUIET, Target, on_repository, print_answer
from lakefs_gc_assets.cli.progress import shown_bar
from lakefs_gc_assets.collector.records.outcomes import size
from lakefs_gc_assets.errors import CollectionError, counted
from lakefs_gc_assets.extensions.holdings import growth, holdings_files, known_heads
from lakefs_gc_assets.extensions.holdings.definitions import holdings_now
from lakefs_gc_assets.extensions.holdings.growth import Growth
from lakefs_gc_assets.extensions.holdings.holdings_files import (
    METADATA_DIMENSION,
    Dimension,
    Holdings,
    HoldingsRow,
)
from lakefs_gc_assets.storage.interface import ObjectStore

_SHOWN = 20
"""Maximum lines for each dimension; `--json` has all."""
_UNTIL = timedelta(days=1)


@click.command()
@on_repository
@click.option(
    "--by",
    "dimensions",
    multiple=True,
    metavar="DIMENSION",
    default=(Dimension.BRANCH.value, Dimension.PATH.value),
    help="state, branch, path, storage_class, committer, commit, age, or metadata:KEY for a key in "
    "holdings.lens_metadata. May be given again. By default branch and path.",
)
@click.option(
    "--since",
    metavar="DAY",
    type=click.DateTime(["%Y-%m-%d"]),
    help="Also show what changed since the last run of this day (UTC), and the commits that brought it.",
)
@QUIET
@JSON
def holdings(target: Target, dimensions: tuple[str, ...], since: datetime | None, quiet: bool, as_json: bool) -> None:
    """Shows who holds which bytes after the newest run, and what changed since a day.

    Objects have one state each. Objects of branch heads are also added up by branch, path, month of upload and the
    commit that brought them: alone if one branch holds them, shared if several do. Nothing is deleted, and no lock is
    taken. The first call reads all ranges of branch heads, later ones only what changed.
    """
    for name in dimensions:
        if name not in [*Dimension] and not name.startswith(METADATA_DIMENSION):
            raise click.BadParameter(f"{name!r} is no dimension.", param_hint="--by")
    collector = target.collector()
    with shown_bar("adding up", quiet) as (say, _):
        store, found = holdings_now(collector, say, say)
    changes = None if since is None else grown_since(store, found, since.replace(tzinfo=UTC))
    print_answer(as_json, lambda: encode(found, changes), describe(found, dimensions, changes))


def grown_since(store: ObjectStore, after: Holdings, day: datetime) -> Growth:
    """Changes since the last run of a day. Raises CollectionError if no holdings of that day or before are stored."""
    for before in holdings_files.history(store, after.repository):
        if before.time < day + _UNTIL and before.run_id != after.run_id:
            known = known_heads.read_usable(store, after.repository, lambda line: None)
            return growth.compare(before, after, known.commits if known else ())
    raise CollectionError(
        f"no holdings of {after.repository} are stored for {day:%F} or earlier, except those of the newest run: "
        "choose a later day, or compare after the next run"
    )


def describe(found: Holdings, dimensions: Iterable[str], changes: Growth | None) -> Iterator[str]:
    """Holdings as lines."""
    yield f"{found.repository} after run {found.run_id}, {found.time:%F %T}Z:"
    for row in found.of(Dimension.STATE):
        yield f"  {row.key:<12}{_size(row.bytes):>12}  {counted(row.objects, 'objects')}"
    for dimension in dimensions:
        if dimension != Dimension.STATE:
            yield from _describe_holders(dimension, [*found.of(dimension)])
    if changes is not None:
        yield from growth.describe(changes, [*dimensions], _SHOWN)


def _describe_holders(dimension: str, rows: list[HoldingsRow]) -> Iterator[str]:
    holders: dict[str, list[HoldingsRow]] = {}
    for row in rows:
        holders.setdefault(row.key, []).append(row)
    ordered = sorted(holders.items(), key=lambda item: (-sum(each.bytes or 0 for each in item[1]), item[0]))
    yield f"by {dimension}:" if ordered else f"by {dimension}: nothing is known"
    for key, parts in ordered[:_SHOWN]:
        shown = [f"{_size(row.bytes)}{_part(row)}, {counted(row.objects, 'objects')}" for row in parts]
        yield f"  {key or '(top level)'}: {'; '.join(shown)}"
    if len(ordered) > _SHOWN:
        yield f"  and {counted(len(ordered) - _SHOWN, 'more')}; --json has all"


def _part(row: HoldingsRow) -> str:
    """The objects of a holder that a row is about, if it has several rows."""
    if row.dimension == Dimension.STORAGE_CLASS:
        return f" {row.state or 'in commits'}"
    return f" {row.held}" if row.held else ""


def _size(amount: int | None) -> str:
    return "size unknown" if amount is None else size(amount)


def encode(found: Holdings, changes: Growth | None) -> dict[str, Any]:
    """Holdings as JSON."""
    return {
        "repository": found.repository,
        "storage_namespace": found.namespace,
        "run_id": found.run_id,
        "time": found.time.isoformat(),
        "rules": found.rules,
        "rows": [asdict(row) for row in found.rows],
        **({"since": _encode_growth(changes)} if changes is not None else {}),
    }


def _encode_growth(changes: Growth) -> dict[str, Any]:
    return {
        "run_id": changes.before.run_id,
        "time": changes.before.time.isoformat(),
        "changes": [asdict(change) for change in changes.changes],
        "commits": [asdict(each) for each in changes.commits],
    }
