"""Pictures: what is drawn, and that Dagster shows them without a click."""

import re
from base64 import b64decode
from xml.etree import ElementTree

import dagster as dg

from lakefs_gc_assets.defs.pictures import bars

SHOWN_AT_ONCE = 1000
"""Dagster shows shorter Markdown where it stands."""


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

    assert lengths == [160, 1, 0]
    assert words == ["a <b> & c", "little", "none"]


def test_six_bars_are_shown_without_a_click() -> None:
    picture = bars("garbage by the month of its slice", [(f"91 to 365 days: {10**9:,}, 999.9 GiB", 1)] * 6)

    assert len(picture.md_str or "") < SHOWN_AT_ONCE


def test_nothing_is_said_to_be_nothing() -> None:
    assert bars("title", []).md_str == bars("title", [("a", 0)]).md_str == "none"
