import re
from base64 import b64decode
from xml.etree import ElementTree

import dagster as dg
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from lakefs_gc_assets.defs.pages import bars, plain

_READER = MarkdownIt("commonmark").enable("table")
_NAMES = st.text(st.sampled_from("![]()<>|`\\\n\r:/=ax ")) | st.sampled_from(
    [
        "![x](https://elsewhere.example/x.png)",
        "[x](https://elsewhere.example)",
        "<img src=https://elsewhere.example>",
        "<https://elsewhere.example>",
        "`<b>`",
        "\\[x](https://elsewhere.example)",
        "a\n\n![x](https://elsewhere.example/x.png)",
    ]
)


@given(_NAMES)
def test_no_link_image_html_or_code_comes_of_a_name(name: str) -> None:
    for written in (f"- {plain(name)}", f"| a | b |\n|---|---|\n| {plain(name)} | {plain(name)} |"):
        tokens = [inner for token in _READER.parse(written) for inner in (token, *(token.children or ()))]

        assert {token.type for token in tokens}.isdisjoint(
            {"image", "link_open", "html_inline", "html_block", "code_inline"}
        )
        assert sum(token.type == "td_open" for token in tokens) in (0, 2)


def test_a_name_is_shown_as_it_is() -> None:
    (paragraph,) = [token for token in _READER.parse(plain("a|b\\c[d]<e>`f`")) if token.type == "inline"]

    assert "".join(token.content for token in paragraph.children or ()) == "a|b\\c[d]<e>`f`"


SHOWN_AT_ONCE = 1000
"""Dagster shows shorter Markdown inline."""


def drawn(picture: dg.MarkdownMetadataValue) -> tuple[list[int], list[str]]:
    """Lengths of the bars, and the words beside them."""
    found = re.fullmatch(r"!\[[^]]*\]\(data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)\)", picture.md_str or "")
    assert found is not None, picture
    svg = ElementTree.fromstring(b64decode(found[1]))
    path, text = svg
    lengths = [int(length) for length in re.findall(r"h(\d+)", path.attrib["d"])]
    return lengths, [each.text or "" for each in text]


def test_bars_have_their_lengths_and_words() -> None:
    lengths, words = drawn(bars("title", [("a <b> & c", 8), ("little", 0.001), ("none", 0)]))

    assert lengths == [90, 1, 0]
    assert words == ["a <b> & c", "little", "none"]


def test_six_bars_are_shown_without_a_click() -> None:
    picture = bars("garbage by the month of its slice", [(f"91 to 365 days: {10**9:,}, 999.9 GiB", 1)] * 6)

    assert len(picture.md_str or "") < SHOWN_AT_ONCE


def test_nothing_is_said_to_be_nothing() -> None:
    assert bars("title", []).md_str == bars("title", [("a", 0)]).md_str == "none"
