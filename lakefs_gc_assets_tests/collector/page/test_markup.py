"""Elements of a page: whatever somebody calls an object, it is a text there and nothing else."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from xml.etree.ElementTree import Element

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.collector.page.markup import bars, document, element, shown, table

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
        bars(text, (text, "n"), [(text, text), (text, text)], [0.5, 1], whole=1),
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
    ("text", "reported"),
    [("data/ä b", "data/ä b"), ("a\nb\x00", "a\\nb\\x00"), ("\u202eb", "\\u202eb"), ("\ud800", "\\ud800")],
)
def test_what_cannot_be_seen_is_shown(text: str, reported: str) -> None:
    assert shown(text) == reported


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


def test_tables_name_their_columns_and_hide_bars_from_readers_of_text() -> None:
    drawn = read(document("title", "", [bars("By age", ("Age", "n"), [("old", "2"), ("new", "0")], [2, 0])]))
    assert drawn.attributes.count(("scope", "col")) == 3 and drawn.attributes.count(("scope", "row")) == 2
    assert drawn.attributes.count(("aria-hidden", "true")) == 2 and "caption" in drawn.tags
    assert "By age|Age|n|old|2|new|0" in "|".join(drawn.text)


def widths(drawn: Element) -> list[float]:
    return [float(rect.get("width") or "") for rect in drawn.iter("rect")]


def test_what_is_there_is_not_drawn_as_nothing() -> None:
    rows = [("a", ""), ("b", ""), ("c", "")]
    assert widths(bars("t", ("n", "v"), rows, [10**9, 1, 0])) == [100, 1, 0]


def test_a_bar_that_exceeds_its_whole_ends_there_and_is_marked() -> None:
    drawn = bars("t", ("n", "v"), [("a", ""), ("b", "")], [0.5, 7], whole=1)
    assert widths(drawn) == [50, 100]
    assert [rect.get("class") for rect in drawn.iter("rect")] == ["bar", "over"]


def test_parts_of_a_bar_stand_one_behind_the_other() -> None:
    drawn = bars("t", ("n", "v"), [("a", ""), ("b", "")], [(3.0, 1.0), (1.0, 0.0)])
    assert [(rect.get("x"), rect.get("width")) for rect in drawn.iter("rect")] == [
        ("0.0", "75.0"),
        ("75.0", "25.0"),
        ("0.0", "25.0"),
        ("25.0", "0.0"),
    ]


def test_a_single_row_needs_no_bar_but_for_a_limit() -> None:
    assert not widths(bars("t", ("n", "v"), [("a", "")], [5]))
    assert widths(bars("t", ("n", "v"), [("a", "")], [0.5], whole=1)) == [50]


def test_words_behind_numbers_are_not_aligned_with_them() -> None:
    (_, row) = table("t", ("a", "b", "c"), [("x", "1", "two")], numbers=1, words=1).findall(".//tr")
    assert [cell.get("class") for cell in row] == ["short", "number", "short"]


def test_short_words_stay_in_one_line_sentences_break_between_words_and_long_names_anywhere() -> None:
    made = table("caption", ("name", "size"), [("data/" * 20, "8.8 MiB"), ("models/", "a, b, " * 9)])

    classes = [[cell.get("class") for cell in cells] for cells in made.findall(".//tr")[1:]]
    assert classes == [["long", "short"], ["short", "words"]]
