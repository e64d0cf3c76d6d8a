"""Reading XML that comes over the network, without whatever a document can do by its DOCTYPE.

Entities can grow without bound and name files and hosts; they are declared in a DOCTYPE, which neither the S3 API nor
Azure's ever sends. So a document with one is refused before anything of it is read.
"""

from xml.etree.ElementTree import Element, ParseError, TreeBuilder
from xml.parsers import expat

_NAMESPACE_END = "}"


def parse(body: bytes) -> Element:
    """The root of a document; names with a namespace are written `{namespace}name`, as ElementTree does.

    Raises ParseError where it is no XML, or has a DOCTYPE.
    """
    builder = TreeBuilder()
    parser = expat.ParserCreate(namespace_separator=_NAMESPACE_END)
    parser.buffer_text = True

    def refuse(*_: object) -> None:
        raise ParseError("the document has a DOCTYPE, which may declare entities: it is not read")

    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler = lambda name, attributes: builder.start(
        _qualified(name), {_qualified(each): value for each, value in attributes.items()}
    )
    parser.EndElementHandler = lambda name: builder.end(_qualified(name))
    parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(body, True)
    except expat.ExpatError as error:
        raise ParseError(str(error)) from None
    return builder.close()


def _qualified(name: str) -> str:
    return f"{{{name}" if _NAMESPACE_END in name else name
