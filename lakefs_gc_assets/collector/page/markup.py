"""Pages, made from templates: those in this folder, and those that extensions keep beside their code.

Headings, sentences, tables and their order are in the templates; `macros.html` has tables with bars. A value never
becomes markup, since other people choose the names of objects and branches. Each value is made printable and escaped.
"""

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakefs_gc_assets.collector.records.outcomes import size
from lakefs_gc_assets.deferred import deferred
from lakefs_gc_assets.errors import counted, printable
from lakefs_gc_assets.settings import ReportSettings

# Most commands make no page and skip this import.
if TYPE_CHECKING:
    import jinja2
else:
    jinja2 = deferred("jinja2")

Length = float | tuple[float, float]

_FOLDER = Path(__file__).parent
_PARTS = ("bar", "kept")
"""CSS classes of the parts of a bar."""
_SHORT = 17
"""Maximum characters of a cell without line breaks, and of a word that is never broken."""


def render(template: Path, digest: str, script: str = "", **values: Any) -> bytes:
    """A page as a file that loads nothing.

    Args:
        digest: digest of the report that the page shows, for programs.
        script: a fixed text that the page runs; no other script can run.
        values: facts that the template uses.
    """
    made = _environment(template.parent)
    policy = f"{made.globals['policy']}" + (f"; script-src 'sha256-{_sha256(script)}'" if script else "")
    page = made.get_template(template.name).render(values, digest=digest, policy=policy, script=script)
    return page.encode()


@cache
def _environment(folder: Path) -> "jinja2.Environment":
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, _FOLDER]),
        autoescape=True,
        finalize=_visible,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {name: _blank_if_none(write) for name, write in _FORMATS.items()}
    made.filters |= {"counted": counted, "kind": _kind, "bars": bars}
    style = made.get_template("style.css").render()
    # This policy keeps even injected content from loading, running or sending anything.
    sources = f"default-src 'none'; style-src 'sha256-{_sha256(style)}'"
    made.globals["policy"] = f"{sources}; base-uri 'none'; form-action 'none'"
    return made


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _visible(value: object) -> object:
    """The text of a value. Output of macros is returned as it is: its values have passed through here before."""
    return value if hasattr(value, "__html__") else shown(str(value))


def shown(text: str, limit: int = 2000) -> str:
    """A text from outside made printable: without line breaks or invisible characters, cut at the limit."""
    return printable(text if len(text) <= limit else f"{text[:limit]}…")


def _duration(seconds: float) -> str:
    """A duration in words, such as 5 min 03 s."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


_FORMATS: Mapping[str, Callable[[Any], str]] = {
    "size": size,
    "signed_size": lambda count: f"-{size(-count)}" if count < 0 else size(count),
    "number": "{:,}".format,
    "tenth": "{:.1f}".format,
    "percent": "{:.0%}".format,
    "duration": _duration,
    "day": "{:%F}".format,
    "minute": "{:%F %H:%M}Z".format,
    "second": "{:%F %T}Z".format,
}


def _blank_if_none(write: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: "" if value is None else write(value)


def _kind(cell: str) -> str:
    """CSS class of a cell: short ones stay on one line, sentences break between words, long names anywhere."""
    if hasattr(cell, "__html__") or any(len(word) > _SHORT for word in cell.split()):
        return "long"
    return "short" if len(cell) <= _SHORT else "words"


def bars(lengths: Sequence[Length], whole: float = 0) -> list[list[tuple[str, str, str]]]:
    """The bars of a table's rows, as the CSS class, start and width of its parts; empty for a single row.

    Args:
        lengths: bar length per row in any unit, or the lengths of its two consecutive parts.
        whole: length that fills the column; a longer bar is drawn as exceeded. 0 stands for the longest bar.
    """
    rows = [length if isinstance(length, tuple) else (length,) for length in lengths]
    full = whole or (max(map(sum, rows)) if len(rows) > 1 else 0)
    return [_bar([part / full for part in row]) for row in rows] if full else []


def _bar(shares: Sequence[float]) -> list[tuple[str, str, str]]:
    parts = []
    start = 0.0
    for share, kind in zip(shares, _PARTS, strict=False):
        # A small value is still drawn.
        width = min(max(100 * share, 1), 100 - start) if share > 0 else 0
        parts.append(("over" if share > 1 else kind, f"{start:.1f}", f"{width:.1f}"))
        start += width
    return parts


def cost(prices: ReportSettings, total: int, by_class: Mapping[str, int], share: float = 1) -> str:
    """The monthly cost of bytes in words; empty without prices.

    Args:
        by_class: bytes of all by storage class.
        share: share of all bytes; its mix of storage classes is assumed to be that of all.
    """
    if not prices.price_per_gb_month:
        return ""
    amount, unpriced = (each * share for each in prices.monthly_cost(total, by_class))
    lacking = f" ({size(round(unpriced))} have no price for their storage class)" if unpriced else ""
    # Cents matter only for small costs.
    return f"{amount:,.{2 if amount < 1000 else 0}f} {prices.currency} a month{lacking}"
