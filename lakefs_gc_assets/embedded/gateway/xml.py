"""XML as the S3 API speaks it."""

from collections.abc import Iterable
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from lakefs_gc_assets.embedded.http import Response
from lakefs_gc_assets.storage import cloud

_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"

_LINE_ENDS = {"\r": "&#13;"}
"""Readers take a bare carriage return for a line feed."""

Element = tuple[str, "str | int | Iterable[Element]"]
"""A name, and text or further elements."""


def document(name: str, content: Iterable[Element], status: int = 200) -> Response:
    """An answer whose root element has this name."""
    body = "".join(_render(child) for child in content)
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<{name} xmlns="{_NAMESPACE}">{body}</{name}>'
    return Response(status, text.encode("utf-8", "surrogateescape"), "application/xml")


def failure(status: int, code: str, message: str) -> Response:
    """An error."""
    content = f"<Code>{code}</Code><Message>{escape(message)}</Message>"
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error>{content}</Error>'
    return Response(status, text.encode("utf-8", "surrogateescape"), "application/xml")


def _render(element: Element) -> str:
    name, content = element
    if isinstance(content, str | int):
        return f"<{name}>{escape(str(content), _LINE_ENDS)}</{name}>"
    return f"<{name}>{''.join(_render(child) for child in content)}</{name}>"


def parse(body: bytes) -> ElementTree.Element:
    """The root of a request's body, namespaces taken off its names.

    Raises ElementTree.ParseError, also for a document with a DOCTYPE.
    """
    root = cloud.parse_xml(body)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    return root
