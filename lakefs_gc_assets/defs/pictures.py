"""Pictures of figures, as Markdown with an embedded SVG.

Dagster shows Markdown of less than 1,000 characters where it stands, and longer texts after a click. Six bars fit.
"""

from base64 import b64encode
from collections.abc import Sequence
from html import escape

import dagster as dg

_LENGTH, _HEIGHT = 160, 18


def bars(title: str, rows: Sequence[tuple[str, float]]) -> dg.MarkdownMetadataValue:
    """Bars one below the other, each with what it stands for beside it.

    Args:
        title: what somebody is told who does not see it.
        rows: words, and the length in any unit.
    """
    longest = max((length for _, length in rows), default=0)
    if not longest:
        return dg.MetadataValue.md("none")
    # What is there is not drawn as nothing.
    lengths = [max(round(_LENGTH * length / longest), 1 if length else 0) for _, length in rows]
    path = "".join(f"M0 {_HEIGHT * row + 3}h{length}v12H0z" for row, length in enumerate(lengths))
    words = "".join(
        f"<tspan x='{lengths[row] + 5}' y='{_HEIGHT * row + 13}'>{escape(told)}</tspan>"
        for row, (told, _) in enumerate(rows)
    )
    svg = (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='420' height='{_HEIGHT * len(rows)}'>"
        f"<path fill='#4f43dd' d='{path}'/><text font-size='11' font-family='sans-serif'>{words}</text></svg>"
    )
    return dg.MetadataValue.md(f"![{title}](data:image/svg+xml;base64,{b64encode(svg.encode()).decode()})")
