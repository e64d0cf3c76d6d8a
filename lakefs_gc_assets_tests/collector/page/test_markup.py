"""Elements of a page: whatever somebody calls an object, it is a text there and nothing else."""

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.collector.page import markup
from lakefs_gc_assets.collector.page.markup import document, element, shown, table

HOSTILE = (
    "<script>alert(1)</script>",
    "</style><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "<svg/onload=alert(1)>",
    "]]><!--",
    "&lt;b&gt;&#0;",
    "javascript:alert(1)",
    "data/\x00\x1b[2J\r\n\u202etxt.exe\ud800",
    "</title><base href=//evil>",
)


class Reader(HTMLParser):
    """Reads a page as a browser would, as far as tags, attributes and text go."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(page: bytes) -> Reader:
    reader = Reader()
    reader.feed(page.decode())
    reader.close()
    return reader


def page_of(text: str) -> Reader:
    parts = [
        element("p", text, class_="soft", aria_label=text),
        table(text, (text, "n"), [(text, text)], numbers=1),
        markup.bars(text, [(text, 1, text)]),
        markup.gauges(text, [(text, 0.5, text)]),
    ]
    return read(document(text, "0" * 64, parts))


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_are_text(text: str) -> None:
    plain, hostile = page_of("plain"), page_of(text)

    assert hostile.tags == plain.tags
    assert [name for name, _ in hostile.attributes] == [name for name, _ in plain.attributes]
    assert shown(text) in hostile.text


@given(st.text(st.characters(), max_size=40))
def test_any_name_is_text(text: str) -> None:
    plain, named = page_of("plain"), page_of(text)

    assert named.tags == plain.tags
    assert [name for name, _ in named.attributes] == [name for name, _ in plain.attributes]


@pytest.mark.parametrize(
    ("text", "told"),
    [("data/ä b", "data/ä b"), ("a\nb\x00", "a\\nb\\x00"), ("\u202eb", "\\u202eb"), ("\ud800", "\\ud800")],
)
def test_what_cannot_be_seen_is_shown(text: str, told: str) -> None:
    assert shown(text) == told


def test_long_texts_are_cut() -> None:
    assert shown("a" * 50, 10) == "a" * 10 + "…"


def test_the_page_loads_and_runs_nothing_and_its_own_style_is_the_only_one() -> None:
    page = document("title", "0" * 64, [element("p", "text")]).decode()
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    reader = read(page.encode())
    (policy,) = (value for _, value in reader.attributes if value and value.startswith("default-src"))

    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert "url(" not in style[1] and "@import" not in style[1]
    assert not {"script", "link", "img", "iframe", "object"} & reader.tags
    assert not {"src", "href", "style"} & {name for name, _ in reader.attributes}
    assert "prefers-color-scheme:dark" in style[1] and "@media print" in style[1]


def test_drawings_say_what_they_show_and_tables_name_their_columns() -> None:
    drawing = read(document("title", "", [markup.bars("By age", [("old", 2, "2 objects"), ("new", 0, "none")])]))
    assert ("aria-label", "By age. old: 2 objects; new: none") in drawing.attributes
    assert ("role", "img") in drawing.attributes

    named = read(document("title", "", [table("caption", ("a", "b"), [("c", "d")])]))
    assert named.attributes.count(("scope", "col")) == 2 and named.attributes.count(("scope", "row")) == 1
    assert "caption" in named.tags


def test_what_is_there_is_not_drawn_as_nothing() -> None:
    page = document("title", "", [markup.bars("t", [("a", 10**9, ""), ("b", 1, ""), ("c", 0, "")])]).decode()
    widths = [int(width) for width in re.findall(r'<rect[^>]* width="(\d+)"', page)]
    assert widths[0] > widths[1] > widths[2] == 0


def test_a_gauge_ends_where_its_rail_does() -> None:
    page = document("title", "", [markup.gauges("t", [("a", 0.5, ""), ("b", 7, "")])]).decode()
    rail, half, _, whole = (int(width) for width in re.findall(r'<rect[^>]* width="(\d+)"', page))
    assert (half, whole) == (rail // 2, rail)
    assert 'class="over"' in page


def test_short_words_and_sizes_stay_in_one_line_and_long_names_do_not() -> None:
    row = table("caption", ("name", "size"), [("data/" * 20, "8.8 MiB"), ("models/", "a, b, " * 9)]).findall(".//tr")

    assert [[cell.get("class") for cell in cells] for cells in row[1:]] == [["long", "short"], ["short", "long"]]
