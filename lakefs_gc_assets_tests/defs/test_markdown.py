from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from lakefs_gc_assets.defs.markdown import plain

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
