"""Elements of a page. A text never becomes markup: other people choose the names of objects and branches.

A page is a tree of elements and not a concatenated text, so every text is escaped. Charts are embedded SVG of plain
shapes; a table beside each chart has the same figures.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from xml.etree.ElementTree import Element, tostring

from lakefs_gc_assets.collector.records.outcomes import size
from lakefs_gc_assets.settings import ReportSettings

Child = Element | str


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


_STYLE = """
:root{color-scheme:light dark;--ink:#1b1b1f;--soft:#5a5a66;--paper:#fff;--box:#f4f4f7;--line:#d5d5de;--bar:#4f43dd;
--live:#2e7d4f;--kept:#b36b00;--bad:#b3261e}
@media (prefers-color-scheme:dark){:root{--ink:#ececf1;--soft:#a9a9b6;--paper:#16161a;--box:#212127;--line:#3a3a44;
--bar:#9d95ff;--live:#6fcf97;--kept:#f2b14b;--bad:#ff8a80}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main{max-width:62rem;margin:0 auto;padding:1.5rem}
h1{font-size:1.6rem;margin:0 0 .25rem;overflow-wrap:anywhere}
h2{font-size:1.2rem;margin:2.2rem 0 .6rem;border-bottom:1px solid var(--line)}
p{margin:.4rem 0;overflow-wrap:anywhere}
.soft,caption,figcaption{color:var(--soft)}
.ending{font-weight:600;font-size:1.15rem}
.bad{color:var(--bad)}
.box{background:var(--box);border-left:4px solid var(--kept);padding:.5rem .9rem;margin:.6rem 0}
.box.bad{border-color:var(--bad);color:inherit}
table{border-collapse:collapse;width:100%;margin:.5rem 0;font-variant-numeric:tabular-nums}
caption{text-align:left;padding:.2rem 0}
th,td{text-align:left;padding:.25rem .6rem .25rem 0;border-bottom:1px solid var(--line);vertical-align:top;
overflow-wrap:anywhere}
thead th{color:var(--soft);font-weight:600;overflow-wrap:normal}
tbody th{font-weight:400}
.number{text-align:right}
.number,.short{white-space:nowrap}
code,pre{font:.9em ui-monospace,monospace;background:var(--box);overflow-wrap:anywhere}
pre{padding:.5rem .9rem;white-space:pre-wrap}
figure{margin:.8rem 0}
svg{display:block;width:100%;max-width:44rem;height:auto}
svg text{fill:var(--ink);font:12px system-ui,sans-serif}
.bar{fill:var(--bar)}.live{fill:var(--live)}.kept{fill:var(--kept)}.over{fill:var(--bad)}.rail{fill:var(--line)}
.curve{fill:none;stroke:var(--bar);stroke-width:2}.grid{stroke:var(--line)}.now{stroke:var(--kept);stroke-dasharray:5 4}
@media print{:root{--ink:#000;--soft:#333;--paper:#fff;--box:#fff;--line:#999;--bar:#4f43dd;--live:#2e7d4f;
--kept:#b36b00;--bad:#b3261e}
main{max-width:none;padding:0}h2{break-after:avoid}figure,tr,.box{break-inside:avoid}
svg{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""

_SHORT = 16
"""Maximum characters of a cell without line breaks."""
_STYLE_DIGEST = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY = f"default-src 'none'; style-src 'sha256-{_STYLE_DIGEST}'; base-uri 'none'; form-action 'none'"
"""Policy by which injected content could still load, run and send nothing."""

_WIDTH, _ROW, _NAMES, _BEHIND = 700, 22, 250, 190
_BAR = _WIDTH - _NAMES - _BEHIND
_NAME_LENGTH = 38
"""Maximum characters of a name before a bar; the table beside it shows the whole name."""


def shown(text: str, limit: int = 2000) -> str:
    """A text from outside made visible: no line breaks, no invisible characters, and cut at the limit."""
    cut = text if len(text) <= limit else f"{text[:limit]}…"
    if cut.isprintable():
        return cut
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in cut)


def element(tag: str, *children: Child, **attributes: str) -> Element:
    """An element; `class_` and `aria_label` stand for `class` and `aria-label`."""
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


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[Child]], numbers: int = 0) -> Element:
    """A table whose first column names the row.

    Args:
        numbers: number of last columns with numbers, which are aligned to the right.
    """
    first_number = len(heads) - numbers
    kinds = [{"class_": "number"} if place >= first_number else {} for place in range(len(heads))]
    head = element("tr", *(element("th", name, scope="col", **kind) for name, kind in zip(heads, kinds, strict=True)))
    body = element("tbody")
    for name, *values in rows:
        cells = (element("td", value, **(kind or _kind(value))) for value, kind in zip(values, kinds[1:], strict=True))
        body.append(element("tr", element("th", name, scope="row", **_kind(name)), *cells))
    return element("table", element("caption", caption), element("thead", head), body)


def _kind(value: Child) -> dict[str, str]:
    """CSS class of a cell: short words and sizes stay on one line, long names may break anywhere."""
    return {"class_": "short" if isinstance(value, str) and len(value) <= _SHORT else "long"}


def bars(title: str, rows: Sequence[tuple[str, float, str]], classes: Sequence[str] = ()) -> Element:
    """A figure of bars, one below the other, with a name before and words behind each bar.

    Args:
        rows: name, length in any unit, and words for it.
        classes: CSS class of each bar; by default all have the same.
    """
    longest = max((length for _, length, _ in rows), default=0)
    drawing = element(
        "svg", role="img", viewBox=f"0 0 {_WIDTH} {max(len(rows), 1) * _ROW}", aria_label=_spoken(title, rows)
    )
    for place, (name, length, words) in enumerate(rows):
        top = place * _ROW
        # A small value is still drawn.
        width = max(round(_BAR * length / longest), 2) if length > 0 else 0
        kind = classes[place] if classes else "bar"
        drawing.append(_name(name, top))
        drawing.append(
            element("rect", class_=kind, x=str(_NAMES), y=str(top + 4), width=str(width), height=str(_ROW - 8))
        )
        drawing.append(element("text", words, x=str(_NAMES + width + 6), y=str(top + 15)))
    return element("figure", element("figcaption", title), drawing)


def gauges(title: str, rows: Sequence[tuple[str, float, str]]) -> Element:
    """A figure of bars on rails: a bar fills its rail if a figure has reached its limit.

    Args:
        rows: name, share of the limit, and words for it.
    """
    drawing = element(
        "svg", role="img", viewBox=f"0 0 {_WIDTH} {max(len(rows), 1) * _ROW}", aria_label=_spoken(title, rows)
    )
    for place, (name, share, words) in enumerate(rows):
        top = place * _ROW
        box = {"x": str(_NAMES), "y": str(top + 4), "height": str(_ROW - 8)}
        width = max(round(_BAR * min(share, 1)), 2) if share > 0 else 0
        drawing.append(_name(name, top))
        drawing.append(element("rect", class_="rail", width=str(_BAR), **box))
        drawing.append(element("rect", class_="over" if share > 1 else "bar", width=str(width), **box))
        drawing.append(element("text", words, x=str(_NAMES + _BAR + 6), y=str(top + 15)))
    return element("figure", element("figcaption", title), drawing)


def _name(name: str, top: int) -> Element:
    return element("text", shown(name, _NAME_LENGTH), x=str(_NAMES - 8), y=str(top + 15), text_anchor="end")


def _spoken(title: str, rows: Sequence[tuple[str, float, str]]) -> str:
    return f"{title}. {'; '.join(f'{name}: {words}' for name, _, words in rows)}"


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
