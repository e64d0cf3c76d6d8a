"""Dagster's pages of runs and assets: Markdown texts, charts, columns of frames, links to the pages of ended runs.

The page of an ended run is stored beside its report; `collector.page` makes it.
"""

import os
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from html import escape
from textwrap import wrap
from typing import Any
from urllib.parse import quote, urlencode

import dagster as dg
import yaml
from pyspark.sql.pandas.types import from_arrow_type

from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import FRAMES, CandidateFigures, Frame
from lakefs_gc_assets.collector.page import garbage, page
from lakefs_gc_assets.collector.page.garbage import AGES, SIZES, Garbage, count_by_month
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.records.figures import Figure
from lakefs_gc_assets.collector.records.outcomes import Amount, size
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.defs.partitions import location_of
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.errors import LogLine, StorageError, counted
from lakefs_gc_assets.lakefs.layout import WindowSize
from lakefs_gc_assets.storage import opening

PAGES_VARIABLE = "LAKEFS_GC_PAGES_URL"
"""Variable with the URL at which `lakefs-gc ui` serves stored pages."""
_MARKED = re.compile(r"[\\|<\[\]`]")
_LINE_ENDS = re.compile(r"[\r\n]+")
_WIDTH, _LENGTH, _HEIGHT = 345, 90, 18
"""Pixels: width of a picture, length of the longest bar, and distance between bars.

In a window of 1,440 pixels, a wider picture pushes the ends of other values out of sight.
"""
_LINE = 34
"""Characters per line; a longer word also pushes values out of sight."""
_COMMENT = 74
"""Characters per line of a comment that the launchpad shows in a window of 1,440 pixels."""
_COLUMN_SOURCES = {"candidates": "store_df", "deleted_report": "candidates"}
"""Frames whose columns come from columns of the same names; addresses also depend on the subtracted frames."""


def plain(text: str) -> str:
    """Escapes a text from outside, and puts it on one line: it makes no link, image, HTML or table cell.

    The reader's browser would request an image from its host.
    """
    return _LINE_ENDS.sub(" ", _MARKED.sub(r"\\\g<0>", text))


def bullets(lines: Iterable[str]) -> dg.MarkdownMetadataValue:
    """A Markdown list of texts from outside; `none` if there are none."""
    return dg.MetadataValue.md("\n".join(f"- {plain(line)}" for line in lines) or "none")


def markdown_table(columns: Mapping[str, str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table of texts from outside; cells with None are empty.

    Args:
        columns: alignment of columns by name, as Markdown writes it.
    """
    cells = (["" if value is None else plain(str(value)) for value in row] for row in rows)
    return "\n".join(f"| {' | '.join(row)} |" for row in ([*columns], [*columns.values()], *cells))


def table(columns: Mapping[str, str], rows: Iterable[Sequence[str | int]]) -> dg.TableMetadataValue:
    """A table for the UI.

    Args:
        columns: types of columns by name: string or int.
    """
    return dg.MetadataValue.table(
        [dg.TableRecord(dict(zip(columns, row, strict=True))) for row in rows],
        schema=dg.TableSchema([dg.TableColumn(name, kind) for name, kind in columns.items()]),
    )


def bars(title: str, rows: Sequence[tuple[str, float]]) -> dg.MarkdownMetadataValue:
    """Bars one below the other, each with its label, as Markdown with an embedded SVG.

    Dagster shows Markdown of less than 1,000 characters in place, and longer texts after a click. Six bars fit.

    Args:
        title: text for readers who do not see the picture.
        rows: labels, and lengths in any unit.
    """
    longest = max((length for _, length in rows), default=0)
    if not longest:
        return dg.MetadataValue.md("none")
    # A small value is still drawn.
    lengths = [max(round(_LENGTH * length / longest), 1 if length else 0) for _, length in rows]
    path = "".join(f"M0 {_HEIGHT * row + 3}h{length}v12H0z" for row, length in enumerate(lengths))
    words = "".join(
        f"<tspan x='{lengths[row] + 5}' y='{_HEIGHT * row + 13}'>{escape(label)}</tspan>"
        for row, (label, _) in enumerate(rows)
    )
    svg = (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{_WIDTH}' height='{_HEIGHT * len(rows)}'>"
        f"<path fill='#4f43dd' d='{path}'/><text font-size='11' font-family='sans-serif'>{words}</text></svg>"
    )
    return dg.MetadataValue.md(f"![{title}](data:image/svg+xml;base64,{b64encode(svg.encode()).decode()})")


def figure_definitions(figures: Mapping[str, Figure]) -> str:
    """Definitions of figures in Markdown, to follow the description of an asset."""
    return "\n\nFigures:\n" + "".join(f"\n- `{name}` ({each.unit}): {each.meaning}" for name, each in figures.items())


def column_schema(frame: Frame[Any]) -> dg.TableSchema:
    """Columns, types and meanings of a frame for the UI, with Spark's names of types."""
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                name=column.name,
                type=from_arrow_type(column.type).simpleString(),
                description=column.description,
                constraints=dg.TableColumnConstraints(nullable=column.nullable),
            )
            for column in frame.columns
        ]
    )


def column_lineage(name: str, prefix: Sequence[str] = ()) -> dg.TableColumnLineage | None:
    """Source columns of a frame's columns in earlier frames; None for frames read from outside.

    Args:
        prefix: prefix of the keys of the assets.
    """
    if (source := _COLUMN_SOURCES.get(name)) is None:
        return None

    def column_of(frame: str, column: str) -> dg.TableColumnDep:
        return dg.TableColumnDep(dg.AssetKey([*prefix, frame]), column)

    shared = set(FRAMES[source].schema.names) & set(FRAMES[name].schema.names)
    deps = {column: [column_of(source, column)] for column in shared}
    if name == "candidates":
        deps["address"] += [column_of(subtracted, "address") for subtracted in ("uncommitted_df", "committed_df")]
        deps["why"] = [*deps["address"]]
    return dg.TableColumnLineage(deps)


def keep(collector: Collector, repository: OpenRepository, run_id: str, warn: LogLine) -> dict[str, Any]:
    """Makes and stores the page of a finished run; returns its metadata for the UI.

    Args:
        warn: called with errors: a run does not fail because of its page.
    """
    with _harmless(run_id, warn):
        page.keep(repository, run_id, collector.configuration.report, collector.engine(repository.settings))
        return shown(collector, repository, run_id)
    return {}


def keep_counted(
    collector: Collector, repository: OpenRepository, frame: StoredFrame[CandidateFigures], now: datetime, warn: LogLine
) -> Garbage:
    """Counts candidates, and stores the counts, so that the page need not count them again.

    Args:
        warn: called if they could not be stored.
    """
    engine = partial(collector.engine, repository.settings)
    counts = garbage.count_candidates(repository.store, frame, engine, now)
    try:
        garbage.keep_counts(repository.store, frame.manifest, counts)
    except StorageError as error:
        warn(f"the counts of candidates could not be stored, so they are counted again for the page: {error}")
    return counts


def keep_failed(collector: Collector, run_id: str, warn: LogLine) -> None:
    """Makes and stores the page of a failed run; asks no server.

    Args:
        warn: called with errors.
    """
    store, configuration = collector.last_opened(), collector.configuration
    if store is not None:
        with _harmless(run_id, warn):
            now = collector.clock.now()
            page.keep_failed(store, run_id, configuration.collection, configuration.report, now)


def shown(collector: Collector, repository: OpenRepository, run_id: str) -> dict[str, Any]:
    """Metadata of a stored page for the UI: its link or its place, and a command to open it."""
    return {
        "page": stored_page(collector, repository.namespace.uri + run_folder.page(run_id), run_id),
        "open_page": f"lakefs-gc report {run_id} --open",
    }


def stored_page(collector: Collector, uri: str, owner: str) -> dg.MarkdownMetadataValue:
    """A link to a stored page, which `lakefs-gc ui` or the cloud's console serves; otherwise its place without a link.

    Args:
        owner: id of the run or forecast that the page shows.
    """
    name = uri.rpartition("/")[2]
    if server := os.environ.get(PAGES_VARIABLE):
        address: str | None = f"{server}/{quote(collector.name, safe='')}/{owner}/{name}"
    else:
        # Only the cloud itself has a console.
        address = None if collector.store.endpoint_url else opening.browser_link(uri)
    return dg.MetadataValue.md(f"[{name}]({address})") if address else place(uri)


def place(uri: str) -> dg.MarkdownMetadataValue:
    """A place in a store, which browsers cannot open, in short lines: Dagster does not break lines at slashes."""
    lines = [""]
    for part in re.findall(r"[^/]*/+|[^/]+", uri):
        if lines[-1] and len(lines[-1] + part) > _LINE:
            lines.append("")
        lines[-1] += part.replace("`", "%60")
    # As code, it is not parsed as Markdown, and an address that begins with https makes no link.
    return dg.MetadataValue.md("  \n".join(f"`{line}`" for line in lines))


def launchpad(
    collector: Collector,
    run: dg.DagsterRun,
    job: str,
    op: str,
    config: Mapping[str, Any],
    comment: str,
    tags: Mapping[str, str],
) -> str | None:
    """Address of a job's launchpad, filled in; None for a Dagster run outside of any code location.

    It is a path in the UI unless the configuration names the UI's address.

    Args:
        run: a Dagster run of the job's code location.
        op: the only op of the job.
        comment: effect of the launch, above the configuration.
        tags: tags of the launched run.
    """
    location = location_of(run)
    if location is None:
        return None
    lines = "".join(f"# {line}\n" for line in wrap(comment, _COMMENT))
    query = {"config": lines + yaml.safe_dump({"ops": {op: {"config": dict(config)}}}, sort_keys=False)}
    for number, (name, value) in enumerate(tags.items()):
        query |= {f"tags[{number}][key]": name, f"tags[{number}][value]": value}
    filled = urlencode(query, quote_via=quote, safe="")
    ui = collector.configuration.notifications.ui_url.rstrip("/")
    return f"{ui}/locations/{quote(location, safe='')}/jobs/{job}/playground/setup?{filled}"


def link(text: str, address: str | None, name: str = "next") -> dict[str, dg.MarkdownMetadataValue]:
    """Metadata of this name with a link; empty without an address."""
    return {} if address is None else {name: dg.MetadataValue.md(f"[{text}]({address})")}


@contextmanager
def _harmless(run_id: str, warn: LogLine) -> Iterator[None]:
    """Turns an error into a warning: a run does not fail because of its page."""
    try:
        yield
    except Exception as error:
        warn(f"the page of run {run_id} was not made; `lakefs-gc report {run_id}` makes it: {error}")


_MONTHS = 6


def garbage_charts(
    frame: StoredFrame[CandidateFigures], counts: Garbage, window_size: WindowSize, now: datetime
) -> dict[str, Any]:
    """Charts for the page of the asset `candidates`: garbage by age, by size, and by the month of its slice."""
    months = count_by_month(frame.manifest, window_size)
    shown: dict[str, Any] = {
        "garbage_by_age": _chart("garbage by age", counts.by_age, AGES),
        "garbage_by_size": _chart("garbage by size", counts.by_size, SIZES),
        "garbage_by_month": _chart("garbage by the month of its slice", months, [*months][-_MONTHS:]),
    }
    if counts.oldest is not None:
        # A text, since Dagster would plot a number of the whole run for each of its windows.
        shown["oldest_garbage_days"] = f"{(now - counts.oldest) / timedelta(days=1):.1f}"
    return shown


def _chart(title: str, groups: Mapping[str, Amount], order: Iterable[str]) -> dg.MarkdownMetadataValue:
    """Bars by bytes, or by objects if all are empty."""
    by_bytes = any(total for _, total in groups.values())
    present = [(name, *groups[name]) for name in order if name in groups]
    words = {name: f"{name}: {counted(objects, 'objects')}, {size(total)}" for name, objects, total in present}
    return bars(title, [(words[name], total if by_bytes else objects) for name, objects, total in present])
