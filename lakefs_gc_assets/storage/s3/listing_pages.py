"""Pages of a bucket's listing, read from the XML as the service sent it.

Neither library reads them as needed. obstore takes any XML without NextContinuationToken for the last page, such as an
error or a proxy's; boto3 takes 70 ms for a page of a thousand objects. Here the rows of a page, which are alike, are
matched by one regular expression, and everything around them is parsed as XML. A page whose rows differ from each other
is parsed as a whole, five times slower.
Format: https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any, TypeGuard
from urllib.parse import unquote_plus
from xml.etree.ElementTree import Element, ParseError

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.storage import cloud
from lakefs_gc_assets.storage.interface import LISTING_SCHEMA

EVENT = "before-parse.*.ListObjectsV2"
"""Handlers with a wildcard here are called before boto3's own one, which parses the whole page to look for an error."""
PAGE = "Page"
"""Key of the page in the answer of boto3's client."""
_NEEDED = ("Key", "Size", "LastModified", "ETag")
_CLASS = "StorageClass"
_COLUMNS = (*_NEEDED, _CLASS)
_STANDARD = "STANDARD"
"""Class of an object whose row names none: some services leave it out where it is the usual one."""
_TEXT = r"[^<&\x00-\x1f\x7f]*+"
_NAME = "[A-Za-z][A-Za-z0-9]*+"
_ODD = ("<!", "\ufffe", "\uffff")
"""Texts behind which a row could hide something, or which no XML has."""
_Rows = list[list[str | None]]
"""Texts of each of the columns."""
_TIME = LISTING_SCHEMA.field("last_modified").type


class _AnotherDocument(ValueError):
    """XML that is no page of a listing, such as an error."""


@dataclass(frozen=True, slots=True)
class ListedPage:
    """One page of a listing.

    Attributes:
        rows: LISTING_SCHEMA with full keys.
        prefixes: what the page has of deeper levels, with full keys.
        token: where the next page begins; None on the last one.
        prefix: the one that the page says it was asked for; None where it does not say.
    """

    rows: pa.RecordBatch
    prefixes: tuple[str, ...]
    token: str | None
    prefix: str | None


def read_page(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object) -> None:
    """Handler of boto3's client: adds the page to the answer, as PAGE, in place of what boto3 would parse.

    Another document, or none, is left to boto3, which asks again where it is an error or no XML.
    """
    if response_dict["status_code"] != 200:
        return
    try:
        customized_response_dict[PAGE] = parsed(response_dict["body"])
    except (_AnotherDocument, ParseError) as reason:
        customized_response_dict[PAGE] = reason
        return
    except ValueError as reason:
        customized_response_dict[PAGE] = reason
    response_dict["body"] = b""


def parsed(body: bytes) -> ListedPage:
    """A page. Raises ValueError or ParseError where it is none, or does not say whether there is more.

    KeyCount is not compared: Ceph counts objects alone, others leave it out or count the whole bucket.
    """
    fast = _fast(body)
    root = fast[0] if fast else cloud.parse_xml(body)
    if _local(root) != "ListBucketResult":
        raise _AnotherDocument("it is no page of a listing")
    truncated = _only(root, "IsTruncated")
    if truncated not in ("true", "false"):
        raise ValueError("it does not say whether there is more")
    token = _only(root, "NextContinuationToken") or None
    if truncated == "true" and token is None:
        raise ValueError("there is more to list, but not where to go on")
    encoding = _only(root, "EncodingType")
    prefix, shown_prefixes = _only(root, "Prefix"), [_only(each, "Prefix") for each in _all(root, "CommonPrefixes")]
    prefixes = [shown for shown in shown_prefixes if shown is not None]
    if len(prefixes) != len(shown_prefixes):
        raise ValueError("it lists a prefix without a name")
    if encoding == "url":
        prefixes = _decoded(prefixes)
    return ListedPage(_batch(fast[1] if fast else _slow(root), encoding == "url"), tuple(prefixes), token, prefix)


def is_of(page: ListedPage, prefix: str) -> bool:
    """True if a page may answer a listing below a prefix.

    A page without rows must say what it was asked for, as the service always does: others show it by their keys. Some
    services do not encode the prefix as they encode keys.
    """
    if page.prefix is None:
        return not prefix or page.rows.num_rows > 0 or bool(page.prefixes)
    return prefix in (page.prefix, unquote_plus(page.prefix))


def _fast(body: bytes) -> tuple[Element, _Rows] | None:
    """The page without its rows, and these; None where they do not follow each other, or some cannot be matched.

    What is matched is well-formed, and in place of all rows an element is left that must be a child of the root: so
    this is what a parser of XML would read.
    """
    text = body.decode()
    a_class = text.find(f"<{_CLASS}>")
    # The first row that names a class: others may lack it.
    begin = text.find("<Contents>") if a_class < 0 else text.rfind("<Contents>", 0, a_class)
    sample = text[begin : text.find("</Contents>", begin)]
    names = _NEEDED if a_class < 0 else _COLUMNS
    places = {name: sample.find(f"<{name}>") for name in names}
    if begin < 0 or min(places.values()) < 0 or text.rfind("<?") > 0 or any(odd in text for odd in _ODD):
        return None
    row = _row(tuple(sorted(names, key=places.__getitem__)))
    parts, width = row.split(text), row.groups + 1
    if len(parts) == 1 or any(parts[width:-1:width]):
        return None
    root = cloud.parse_xml(f"{parts[0]}<R/>{parts[-1]}".encode())
    if len(_all(root, "R")) != 1 or _all(root, "Contents"):
        return None
    rows = [parts[row.groupindex[name] :: width] for name in names]
    return root, rows if names is _COLUMNS else [*rows, [None] * len(rows[0])]


@lru_cache
def _row(order: tuple[str, ...]) -> re.Pattern[str]:
    """Matches one object whose elements of these names come in this order, with any others between them."""
    needed = "|".join((*_COLUMNS, "Contents"))
    parts = []
    for number, name in enumerate(order):
        parts += [_others(needed, f"o{number}"), _element(name)]
    return re.compile(f"<Contents>{''.join(parts)}{_others(needed, 'o')}</Contents>")


def _element(name: str) -> str:
    quote, text = ('(?:&quot;|")?', _TEXT.replace("&", '&"')) if name == "ETag" else ("", _TEXT)
    element = f"<{name}>{quote}(?P<{name}>{text}){quote}</{name}>"
    return f"(?:{element})?+" if name == _CLASS else element


def _others(needed: str, group: str) -> str:
    """Any other elements, with texts or with elements that have texts."""
    inner = f"<(?P<{group}i>{_NAME})>{_TEXT}</(?P={group}i)>"
    return f"(?:<(?!(?:{needed})>)(?P<{group}>{_NAME})>(?:{_TEXT}|(?:{inner})+)</(?P={group})>)*"


def _slow(root: Element) -> _Rows:
    rows = [{name: _only(row, name) for name in _COLUMNS} for row in _all(root, "Contents")]
    return [[row[name] for row in rows] for name in _COLUMNS]


def _batch(rows: _Rows, encoded: bool) -> pa.RecordBatch:
    keys, sizes, times, etags, classes = rows
    if not (_are_texts(keys) and _are_texts(sizes) and _are_texts(times)):
        raise ValueError("it lists an object without key, size or time")
    columns = [
        pa.array(_decoded(keys) if encoded else keys, pa.string()),
        pa.array(sizes, pa.string()).cast(pa.int64()),
        _times(times),
        pc.utf8_trim(pa.array(etags, pa.string()), '"'),
        pa.array([each or _STANDARD for each in classes], pa.string()),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=LISTING_SCHEMA)
    if batch.num_rows and pc.min(batch["size"]).as_py() < 0:
        raise ValueError("it lists an object of a negative size")
    return batch


def _are_texts(column: list[str | None]) -> TypeGuard[list[str]]:
    return None not in column


def _times(texts: list[str]) -> "pa.Array[Any]":
    """Instants: written in ISO 8601 as by S3, or as in headers; without a zone they are UTC."""
    try:
        return pa.array(texts, pa.string()).cast(_TIME)
    except pa.ArrowInvalid:
        return pa.array([_time(text) for text in texts], _TIME)


def _time(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = parsedate_to_datetime(text)
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def _decoded(names: list[str]) -> list[str]:
    """Names without the service's URL encoding, all at once. Raises UnicodeDecodeError where they are not UTF-8."""
    joined = "\n".join(names)
    if "%" not in joined and "+" not in joined:
        return names
    decoded = unquote_plus(joined, errors="strict").split("\n")
    return decoded if len(decoded) == len(names) else [unquote_plus(name, errors="strict") for name in names]


def _local(element: Element) -> str:
    """The name of an element without its namespace: services differ in it."""
    return element.tag.rpartition("}")[2]


def _all(element: Element, name: str) -> list[Element]:
    return [child for child in element if child.tag.endswith(name) and _local(child) == name]


def _only(element: Element, name: str) -> str | None:
    """The text of the one child with a name; None where there is none. Raises ValueError where there are several."""
    children = _all(element, name)
    if len(children) > 1:
        raise ValueError(f"it says more than once what {name} is")
    return (children[0].text or "") if children else None
