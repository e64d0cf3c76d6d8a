"""Templates of pages: any name of an object is escaped text."""

import base64
import hashlib
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest import mock

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakefs_gc_assets.collector.page import markup
from lakefs_gc_assets.collector.page.markup import Length, bars, render, shown
from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.extensions import check

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
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

PAGES = Path(markup.__file__).parent


class Reader(HTMLParser):
    """Reads a page as a browser would, as far as tags, attributes and text go."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self.cells: list[str | None] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag in {"th", "td"}:
            self.cells.append(dict(attrs).get("class"))

    def handle_data(self, data: str) -> None:
        if words := " ".join(data.split()):
            self.text.append(words)


def read(page: bytes) -> Reader:
    reader = Reader()
    reader.feed(page.decode())
    reader.close()
    return reader


def made(template: str, **values: Any) -> Reader:
    """A page with this template as its main part."""
    around = '{% extends "layout.html" %}{% from "macros.html" import chart, table %}{% block title %}{{ title }}'
    source = f"{around}{{% endblock %}}{{% block main %}}{template}{{% endblock %}}"
    loaders = [jinja2.DictLoader({"made.html": source}), jinja2.FileSystemLoader(PAGES)]
    environment = markup._environment(PAGES).overlay(loader=jinja2.ChoiceLoader(loaders))
    with mock.patch.object(markup, "_environment", lambda folder: environment):
        return read(render(PAGES / "made.html", "0" * 64, **{"title": "title", **values}))


def table(
    heads: Sequence[str], rows: Sequence[tuple[Sequence[str], Length]], numbers: int = 0, words: int = 0, whole: int = 0
) -> Reader:
    return made(
        "{% call(row) table('By age', heads, numbers=numbers, words=words, whole=whole) %}"
        "{% for cells, length in rows %}{{ row(*cells, bar=length) }}{% endfor %}{% endcall %}",
        heads=heads,
        rows=rows,
        numbers=numbers,
        words=words,
        whole=whole,
    )


def page_of(text: str) -> Reader:
    """A page with the text at every place of a template, including a macro's result and an attribute."""
    return made(
        "{% macro said(words) %}{{ words }}{% endmacro %}{% set heads = [text, text, text, text] %}"
        '<p class="soft" aria-label="{{ text }}">{{ text }}</p><p>{{ said(text) }}</p>'
        "{% call(row) table(text, heads, numbers=3) %}{% for _ in (1, 2) %}"
        "{{ row(text, said(text), text, text, bar=(1, 2)) }}{% endfor %}{% endcall %}"
        "{% for amounts in ([amount], [amount, amount]) %}{% call(group) chart(text, text) %}"
        "{% for amount in amounts %}{{ group(text, amount) }}{% endfor %}{% endcall %}{% endfor %}",
        title=text,
        text=text,
        amount=Amount(1, 1),
    )


@pytest.fixture(scope="module")
def plain() -> Reader:
    return page_of("plain")


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_are_text(plain: Reader, text: str) -> None:
    hostile = page_of(text)

    assert hostile.tags == plain.tags
    assert [name for name, _ in hostile.attributes] == [name for name, _ in plain.attributes]
    assert hostile.text.count(" ".join(shown(text).split())) >= 15
    assert all(words.isprintable() for words in hostile.text)


def test_a_name_that_the_facts_lack_is_an_error_and_no_blank() -> None:
    with pytest.raises(jinja2.UndefinedError, match="nothing"):
        made("{{ nothing }}")


@settings(max_examples=30)
@given(st.text(st.characters(), max_size=40))
def test_any_name_is_text(plain: Reader, text: str) -> None:
    named = page_of(text)

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
    checkup = mock.Mock(findings=(), unchecked=(), ended_at=NOW)
    page = render(Path(check.__path__[0]) / "fsck.html", "0" * 64, scope="", checkup=checkup).decode()
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
    drawn = table(("Age", "n"), [(("old", "2"), 2), (("new", "0"), 0)], numbers=1)
    assert drawn.attributes.count(("scope", "col")) == 3 and drawn.attributes.count(("scope", "row")) == 2
    assert drawn.attributes.count(("aria-hidden", "true")) == 2 and "caption" in drawn.tags
    assert "By age|Age|n|old|2|new|0" in "|".join(drawn.text)
    assert drawn.attributes.count(("width", "100.0")) == 1 and drawn.attributes.count(("class", "drawn")) == 2


def test_the_phone_gets_a_line_for_each_of_many_figures() -> None:
    wide = table(("Age", "a", "b", "c"), [(("old", "1", "2", "3"), 0)], numbers=3)
    assert ("class", "lines") in wide.attributes
    assert [value for name, value in wide.attributes if name == "data-column"] == ["a", "b", "c"]
    assert ("class", "stacked") in table(("n", "a", "b", "c"), [("1234", 0)], numbers=2, words=1).attributes


def widths(*lengths: Length, whole: float = 0) -> list[list[float]]:
    return [[float(width) for _, _, width in bar] for bar in bars(lengths, whole)]


def test_what_is_there_is_not_drawn_as_nothing() -> None:
    assert widths(10**9, 1, 0) == [[100], [1], [0]]


def test_a_bar_that_exceeds_its_whole_ends_there_and_is_marked() -> None:
    assert bars([0.5, 7], whole=1) == [[("bar", "0.0", "50.0")], [("over", "0.0", "100.0")]]


def test_parts_of_a_bar_stand_one_behind_the_other() -> None:
    drawn = bars([(3.0, 1.0), (1.0, 0.0)])
    assert drawn == [
        [("bar", "0.0", "75.0"), ("kept", "75.0", "25.0")],
        [("bar", "0.0", "25.0"), ("kept", "25.0", "0.0")],
    ]


def test_a_single_row_needs_no_bar_but_for_a_limit() -> None:
    assert not widths(5) and not widths(0, 0) and not widths()
    assert widths(0.5, whole=1) == [[50]]


def test_words_behind_numbers_are_not_aligned_with_them() -> None:
    drawn = table(("a", "b", "c"), [(("x", "1", "two"), 0)], numbers=1, words=1)
    assert drawn.cells == [None, "number", None, "short", "number", "short"]


def test_short_words_stay_in_one_line_sentences_break_between_words_and_long_names_anywhere() -> None:
    drawn = table(("name", "size"), [(("data/" * 20, "8.8 MiB"), 0), (("models/", "a, b, " * 9), 0)])
    assert drawn.cells[2:] == ["long", "short", "short", "words"]
