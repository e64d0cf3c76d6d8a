"""Metadata that Dagster's pages show: texts in Markdown, bar charts, and the columns of frames."""

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import dagster as dg
from pyspark.sql.pandas.types import from_arrow_type

from lakefs_gc_assets.collector.frame.frames import FRAMES, Frame

_MARKED = re.compile(r"[\\|<\[\]`]")
_LINE_ENDS = re.compile(r"[\r\n]+")
_LENGTH, _HEIGHT = 160, 18
"""Pixels: length of the longest bar, and distance from one bar to the next."""
_COLUMN_SOURCES: Mapping[str, tuple[str, ...]] = {
    "candidates": ("store_df",),
    "deleted_report": ("candidates",),
}
"""Frames whose columns come from a column of the same name; addresses also depend on what is subtracted."""


def plain(text: str) -> str:
    """Escapes a text that somebody else chose, and puts it on one line: it makes no link, image, HTML or table cell.

    An image would make the reader's browser ask its host.
    """
    return _LINE_ENDS.sub(" ", _MARKED.sub(r"\\\g<0>", text))


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
        f"<svg xmlns='http://www.w3.org/2000/svg' width='420' height='{_HEIGHT * len(rows)}'>"
        f"<path fill='#4f43dd' d='{path}'/><text font-size='11' font-family='sans-serif'>{words}</text></svg>"
    )
    return dg.MetadataValue.md(f"![{title}](data:image/svg+xml;base64,{b64encode(svg.encode()).decode()})")


def column_schema(frame: Frame[Any]) -> dg.TableSchema:
    """Columns, types and meanings of a frame, for the UI; types are named as Spark names them."""
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
    """Columns of earlier frames from which each column comes; None for frames read from outside.

    Args:
        prefix: prefix of the keys of the assets.
    """
    if name not in _COLUMN_SOURCES:
        return None
    deps: dict[str, list[dg.TableColumnDep]] = {}
    for source in _COLUMN_SOURCES[name]:
        shared = set(FRAMES[source].schema.names) & set(FRAMES[name].schema.names)
        for column in shared:
            deps.setdefault(column, []).append(dg.TableColumnDep(dg.AssetKey([*prefix, source]), column))
    if name == "candidates":
        for subtracted in ("uncommitted_df", "committed_df"):
            deps["address"].append(dg.TableColumnDep(dg.AssetKey([*prefix, subtracted]), "address"))
        deps["why"] = [*deps["address"]]
    return dg.TableColumnLineage(deps)
