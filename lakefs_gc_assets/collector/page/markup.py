"""Elements of a page. A text never becomes markup: other people choose the names of objects and branches.

A page is a tree of elements and not a concatenated text, so every text is escaped. A chart is a table with a bar of
embedded SVG in each row, so its figures can be read, copied and heard.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from xml.etree.ElementTree import Element, tostring

from lakefs_gc_assets.collector.records.outcomes import size
from lakefs_gc_assets.settings import ReportSettings

Child = Element | str
Length = float | tuple[float, float]


def cost(prices: ReportSettings, total: int, by_class: Mapping[str, int], share: float = 1) -> str:
    """The cost of bytes for a month in words; empty where there are no prices.

    Args:
        by_class: bytes of all by storage class.
        share: of all bytes, whose classes are taken for those of all.
    """
    if not prices.price_per_gb_month:
        return ""
    amount, unpriced = (each * share for each in prices.monthly_cost(total, by_class))
    lacking = f" ({size(round(unpriced))} have no price for their storage class)" if unpriced else ""
    # Cents matter for small costs only.
    return f"{amount:,.{2 if amount < 1000 else 0}f} {prices.currency} a month{lacking}"


_STYLE = Path(__file__).with_name("style.css").read_text(encoding="utf-8")

_PARTS = ("bar", "kept")
"""CSS classes of the parts of a bar."""
_SHORT = 17
"""Maximum characters of a cell without line breaks, and of a word that is never broken."""
_STYLE_DIGEST = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY = f"default-src 'none'; style-src 'sha256-{_STYLE_DIGEST}'; base-uri 'none'; form-action 'none'"
"""Policy by which injected content could still load, run and send nothing."""


def shown(text: str, limit: int = 2000) -> str:
    """A text from outside made visible: no line breaks, no invisible characters, and cut at the limit."""
    cut = text if len(text) <= limit else f"{text[:limit]}…"
    if cut.isprintable():
        return cut
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in cut)


def element(tag: str, *children: Child, **attributes: str) -> Element:
    """An element; `class_`, `aria_label` and `data_column` stand for `class`, `aria-label` and `data-column`."""
    names = {name: name.rstrip("_").replace("_", "-") for name in attributes}
    result = Element(tag, {names[name]: shown(value) for name, value in attributes.items()})
    last: Element | None = None
    for child in children:
        if isinstance(child, Element):
            result.append(child)
            last = child
        elif last is None:
            result.text = (result.text or "") + shown(child)
        else:
            last.tail = (last.tail or "") + shown(child)
    return result


def table(
    caption: str, heads: Sequence[str], rows: Iterable[Sequence[Child]], numbers: int = 0, words: int = 0
) -> Element:
    """A table whose first column names the row.

    Args:
        numbers: number of last columns with numbers, which are aligned to the right.
        words: number of columns behind those, with words again.
    """
    aligned = range(len(heads) - words - numbers, len(heads) - words)
    kinds = [{"class_": "number"} if place in aligned else {} for place in range(len(heads))]
    head = element("tr", *(element("th", name, scope="col", **kind) for name, kind in zip(heads, kinds, strict=True)))
    body = element("tbody")
    # A phone shows the words below two figures. More figures do not fit: each has a line, with the name of its column.
    in_lines = numbers > 2
    kind_of_table = {"class_": "lines"} if in_lines else {"class_": "stacked"} if words and numbers == 2 else {}
    for name, *values in rows:
        cells = (
            element("td", value, **(kind or _kind(value)), **({"data_column": column} if in_lines else {}))
            for value, kind, column in zip(values, kinds[1:], heads[1:], strict=True)
        )
        body.append(element("tr", element("th", name, scope="row", **_kind(name)), *cells))
    return element("table", element("caption", caption), element("thead", head), body, **kind_of_table)


def _kind(value: Child) -> dict[str, str]:
    """CSS class of a cell: short ones stay on one line, sentences break between words, long names anywhere."""
    if isinstance(value, Element) and value.tag == "svg":
        return {"class_": "drawn"}
    if not isinstance(value, str) or any(len(word) > _SHORT for word in value.split()):
        return {"class_": "long"}
    return {"class_": "short" if len(value) <= _SHORT else "words"}


def bars(
    caption: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[Child]],
    lengths: Sequence[Length],
    whole: float | None = None,
    words: int = 0,
) -> Element:
    """A table with a bar in each row, behind its name; a single row needs none.

    Args:
        heads: of the columns: name, figures, and words.
        lengths: of each row's bar in any unit, or of its two parts, one behind the other.
        whole: length that fills the column, and from which on a bar is drawn as exceeded; by default that of the
            longest bar.
        words: number of last columns that have words and no figures.
    """
    parts = [length if isinstance(length, tuple) else (length,) for length in lengths]
    full = whole if whole is not None else max((sum(row) for row in parts), default=0)
    figures = len(heads) - 1 - words
    if not full or (len(rows) == 1 and whole is None):
        return table(caption, heads, rows, figures, words)
    drawn = [_bar([part / full for part in row]) for row in parts]
    with_bars = [(name, bar, *values) for (name, *values), bar in zip(rows, drawn, strict=True)]
    return table(caption, (heads[0], "", *heads[1:]), with_bars, figures, words)


def _bar(shares: Sequence[float]) -> Element:
    drawing = element("svg", class_="rail", viewBox="0 0 100 10", preserveAspectRatio="none", aria_hidden="true")
    start = 0.0
    for share, kind in zip(shares, _PARTS, strict=False):
        # A small value is still drawn.
        width = min(max(100 * share, 1), 100 - start) if share > 0 else 0
        drawn = {"x": f"{start:.1f}", "width": f"{width:.1f}", "height": "10"}
        drawing.append(element("rect", class_="over" if share > 1 else kind, **drawn))
        start += width
    return drawing


def document(title: str, mark: str, parts: Iterable[Element]) -> bytes:
    """A page as a file.

    Args:
        mark: digest of the report that this page shows, for programs.
    """
    style = Element("style")
    style.text = _STYLE
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("meta", name="lakefs-gc-report", content=mark),
        element("title", title),
        style,
    )
    body = element("body", element("main", *parts))
    page: bytes = tostring(element("html", head, body, lang="en"), encoding="utf-8", method="html")
    return b"<!DOCTYPE html>\n" + page
