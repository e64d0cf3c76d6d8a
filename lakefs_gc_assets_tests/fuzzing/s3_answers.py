"""Listings and bulk deletes as an S3 service answers them: XML that is damaged, false, or about other keys."""

import random
from collections.abc import Iterator
from functools import cache
from typing import Any
from unittest import mock
from urllib.parse import quote, unquote_plus
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from botocore.awsrequest import AWSRequest, AWSResponse
from botocore.compat import HTTPHeaders

from lakefs_gc_assets.lakefs.addresses import Location
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage.interface import DeleteOutcome, DeleteResult, Level
from lakefs_gc_assets.storage.s3.store import S3Store
from lakefs_gc_assets_tests.fuzzing.fuzzer import Case, Target, hostile_text, mutated, outcome

_ROOT = "repo/"
_CLASSES = ("STANDARD", "GLACIER", "")
_WORDS = (
    b"true",
    b"false",
    b"1",
    b"-1",
    b"99999999999999999999",
    b"2026-01-01T00:00:00Z",
    b"never",
    b"<Key/>",
    b"&#0;",
)


_SETTINGS = StoreSettings(
    endpoint_url="http://127.0.0.1:9",
    region="us-east-1",
    access_key_id="key",
    secret_access_key="secret",
    path_style=True,
)


class _Body:
    def __init__(self, content: bytes) -> None:
        self._content = content

    def stream(self, **_: object) -> Iterator[bytes]:
        yield self._content


class Service:
    """A store whose requests never leave the process; each gets the same answer."""

    def __init__(self, settings: StoreSettings = _SETTINGS) -> None:
        self.store = S3Store(settings, Location("s3", "bucket", _ROOT))
        self.status = 200
        self.answer = b""
        self.bodies: list[bytes] = []
        self.store._client.meta.events.register("before-send.s3", self._answered)  # type: ignore[arg-type]

    def _answered(self, request: AWSRequest, **_: object) -> AWSResponse:
        body = request.body
        self.bodies.append(body if isinstance(body, bytes) else str(body or "").encode())
        headers = HTTPHeaders.from_pairs([("Content-Type", "application/xml")])
        return AWSResponse(str(request.url), self.status, headers, _Body(self.answer))


@cache
def _service() -> Service:
    return Service()


def _tag(name: str, content: str) -> str:
    return f"<{name}>{content}</{name}>"


def _listing(rng: random.Random, keys: list[str]) -> bytes:
    encoded = rng.random() < 0.7
    rows = "".join(
        _tag(
            "Contents",
            _tag("Key", quote(key, safe="/") if encoded else escape(key))
            + _tag("LastModified", "2026-01-01T00:00:00.000Z")
            + _tag("ETag", "&quot;d41d8cd98f00b204e9800998ecf8427e&quot;")
            + _tag("Size", str(len(key)))
            + rng.choice(("", *(_tag("StorageClass", name) for name in _CLASSES), _tag("Owner", _tag("ID", "owner")))),
        )
        for key in keys
    )
    head = (_tag("EncodingType", "url") if encoded else "") + _tag("Prefix", "repo/data/")
    head += _tag("IsTruncated", rng.choice(("false", "false", "true")))
    if rng.random() < 0.3:
        head += _tag("NextContinuationToken", "token")
    prefixes = "".join(_tag("CommonPrefixes", _tag("Prefix", f"repo/data/{number}/")) for number in range(2))
    body = _tag("ListBucketResult", head + rows + (prefixes if rng.random() < 0.3 else ""))
    return f'<?xml version="1.0" encoding="UTF-8"?>{body}'.encode()


def _keys(rng: random.Random) -> list[str]:
    keys = {f"repo/data/{hostile_text(rng, f'slice{number}/object')}" for number in range(rng.randrange(6))}
    known = [
        key for key in keys if all(character >= " " or character in "\t" for character in key) and key.isprintable()
    ]
    ordered = sorted(known, key=str.encode)
    if rng.random() < 0.1:
        rng.shuffle(ordered)
    return ordered


def _damaged(rng: random.Random, body: bytes) -> bytes:
    match rng.randrange(4):
        case 0:
            return body
        case 1:
            at = rng.randrange(len(body))
            changed = body[:at] + rng.choice(_WORDS) + body[at + rng.choice((0, 4, 8)) :]
        case _:
            changed = mutated(rng, body, body)
    return body if _is_error(changed) else changed


def _root(body: bytes) -> ElementTree.Element:
    """The document, read as UTF-8 against any declared encoding, as boto3 does."""
    return ElementTree.fromstring(body, ElementTree.XMLParser(encoding="utf-8"))


def _is_error(body: bytes) -> bool:
    """True if boto3 takes it for a failure of the service: boto3 would then retry, and slow down later requests."""
    try:
        return _root(body).tag == "Error"
    except ElementTree.ParseError:
        return False


def _plainly(body: bytes) -> dict[str, Any]:
    """Reads a listing with another reader: rows, and whether there are more."""
    root = _root(body)
    encoded = root.findtext("EncodingType") == "url"
    rows = []
    for row in root.findall("Contents"):
        key = row.findtext("Key") or ""
        name = unquote_plus(key) if encoded else key
        rows.append((name, int(row.findtext("Size") or 0), row.findtext("StorageClass") or "STANDARD"))
    return {"rows": rows, "more": root.findtext("IsTruncated") == "true"}


def _listing_case(rng: random.Random) -> Case:
    """Reads all rows of the answer in order, or raises; never only a part."""
    service, body = _service(), _damaged(rng, _listing(rng, _keys(rng)))

    def read() -> list[tuple[str, int, str]]:
        service.answer = body
        found: list[tuple[str, int, str]] = []
        for batch in service.store.list("data/"):
            batch.validate(full=True)
            found += zip(*(batch[name].to_pylist() for name in ("key", "size", "storage_class")), strict=True)
        return found

    def right(found: list[tuple[str, int, str]]) -> None:
        plainly = _plainly(body)
        assert not plainly["more"], "there is more"
        assert [(_ROOT + key, *more) for key, *more in found] == [
            row for row in plainly["rows"] if row[0] != "repo/data/"
        ]
        keys = [key.encode() for key, *_ in found]
        assert keys == sorted(set(keys))

    return Case(len(body), lambda: outcome(read, right))


def _level_case(rng: random.Random) -> Case:
    """The same for one level."""
    service, body = _service(), _damaged(rng, _listing(rng, _keys(rng)))

    def read() -> Level:
        service.answer = body
        return service.store.list_level("data/")

    def right(found: Level) -> None:
        plainly = _plainly(body)
        assert not plainly["more"], "there is more"
        rows = [row for row in plainly["rows"] if row[0] != "repo/data/"]
        assert [(_ROOT + facts.key, facts.size, facts.storage_class) for facts in found.objects] == sorted(
            rows, key=lambda row: row[0].encode()
        )
        assert all(prefix.endswith("/") and prefix.startswith("data/") for prefix in found.prefixes)

    return Case(len(body), lambda: outcome(read, right))


def _delete_case(rng: random.Random) -> Case:
    """Deletes only requested keys, and reports none as accepted that the answer does not list as deleted."""
    service, keys = _service(), [key.removeprefix(_ROOT) for key in _keys(rng)] or ["data/x"]
    reported = [_ROOT + rng.choice((*keys, *keys, "data/another")) for _ in range(rng.randrange(6))]
    rows = [
        _tag("Deleted", _tag("Key", escape(key)))
        if rng.random() < 0.5
        else _tag("Error", _tag("Key", escape(key)) + _tag("Code", rng.choice(("SlowDown", "AccessDenied"))))
        for key in reported
    ]
    body = _damaged(rng, _tag("DeleteResult", "".join(rows)).encode())

    def read() -> list[DeleteOutcome]:
        service.answer = body
        service.bodies.clear()
        found = list(service.store.delete(keys))
        asked = {_ROOT + key for key in keys}
        for request in service.bodies:
            namespace = "{http://s3.amazonaws.com/doc/2006-03-01/}"
            sent = {each.text for each in ElementTree.fromstring(request).iter(f"{namespace}Key")}
            assert sent <= asked, f"deletes {sent - asked}, which nobody asked for"
        return found

    def right(found: list[DeleteOutcome]) -> None:
        assert [each.key for each in found] == keys
        deleted = {row.findtext("Key") for row in _root(body or b"<none/>").findall("Deleted")}
        for each in found:
            assert each.result is DeleteResult.FAILED or _ROOT + each.key in deleted

    return Case(len(body), lambda: outcome(read, right))


def _case(rng: random.Random) -> Case:
    case = rng.choice((_listing_case, _listing_case, _level_case, _level_case, _delete_case))(rng)

    def run() -> str:
        with mock.patch("time.sleep"):  # boto3 retries if XML is cut short.
            return case.run()

    return Case(case.size, run)


TARGETS = (Target("s3-answers", _case, base_lines=400_000),)
