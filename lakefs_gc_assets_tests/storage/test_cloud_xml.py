import time
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.storage import cloud

_TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="\ufffe\uffff"))
_Node = tuple[str, str, list[Any]]
_ELEMENTS: st.SearchStrategy[_Node] = st.recursive(
    st.builds(lambda text: ("Key", text, []), _TEXTS),
    lambda inner: st.builds(lambda text, more: ("Blob", text, more), _TEXTS, st.lists(inner, max_size=4)),
    max_leaves=8,
)
_LAUGHS = "".join(f'<!ENTITY l{level} "{f"&l{level - 1};" * 10}">' for level in range(1, 10))
_FILE = '<!ENTITY l9 SYSTEM "file:///etc/passwd">'
_HOST = '<!ENTITY % l SYSTEM "http://127.0.0.1:9/x"> %l;'


def written(element: _Node, namespace: str) -> bytes:
    """The document with this root."""

    def node(name: str, text: str, inner: list[_Node]) -> ElementTree.Element:
        made = ElementTree.Element(f"{{{namespace}}}{name}" if namespace else name, {"Encoded": text})
        made.text = text
        made.extend(node(*each) for each in inner)
        return made

    body: bytes = ElementTree.tostring(node(*element), encoding="utf-8", xml_declaration=True)
    return body


@given(_ELEMENTS, st.sampled_from(["", "http://s3.amazonaws.com/doc/2006-03-01/"]))
def test_documents_are_read_as_by_the_library(element: _Node, namespace: str) -> None:
    body = written(element, namespace)

    assert ElementTree.tostring(cloud.parse_xml(body)) == ElementTree.tostring(ElementTree.fromstring(body))


def test_a_byte_order_mark_is_none_of_the_document() -> None:
    assert cloud.parse_xml(b"\xef\xbb\xbf<a>\xc3\xbc</a>").text == "ü"


@pytest.mark.parametrize("declared", [f'<!ENTITY l0 "ha">{_LAUGHS}', _FILE, _HOST, ""])
def test_a_document_that_declares_anything_is_refused_at_once(declared: str) -> None:
    body = f"<?xml version='1.0'?><!DOCTYPE a [{declared}]><a>&l9;</a>".encode()
    began = time.thread_time()

    with pytest.raises(ElementTree.ParseError, match="has a DOCTYPE"):
        cloud.parse_xml(body)

    assert time.thread_time() - began < 1


@pytest.mark.parametrize("body", [b"", b"<a>", b"<a></b>", b"<a/><b/>", b"text", b"<a>&l9;</a>", b"<a>\xff</a>"])
def test_what_is_no_xml_is_refused(body: bytes) -> None:
    with pytest.raises(ElementTree.ParseError):
        cloud.parse_xml(body)
