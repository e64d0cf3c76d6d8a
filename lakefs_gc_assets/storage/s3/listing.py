"""Pages of a bucket's listing, by boto3's client, each of them checked to be what was asked for."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import cast

from lakefs_gc_assets.storage.interface import ObjectFacts, Page
from lakefs_gc_assets.storage.s3.connection import Connection
from lakefs_gc_assets.storage.s3.errors import FAILURES
from lakefs_gc_assets.storage.s3.pages import PAGE, ListedPage, is_of


def pages(connection: Connection, action: str, prefix: str, behind: str, delimiter: str) -> Iterator[Page]:
    """All pages of what lies below a prefix, with full keys, behind a key; `action` names the listing in errors.

    S3 lists in the order of UTF-8 bytes, but for directory buckets (S3 Express). Raises StorageError, also where an
    answer is no page of this listing, or does not say whether there is more.
    """
    arguments = {name: given for name, given in (("StartAfter", behind), ("Delimiter", delimiter)) if given}
    tokens: set[str] = set()
    while True:
        page = _page(connection, action, prefix, arguments)
        yield Page(page.rows, page.prefixes)
        if page.token is None:
            return
        if page.token in tokens:
            raise connection.errors.nonsense(action, "it would go on where it was before")
        tokens.add(page.token)
        arguments["ContinuationToken"] = page.token


def _page(connection: Connection, action: str, prefix: str, arguments: dict[str, str]) -> ListedPage:
    asked = cast("dict[str, object]", arguments)
    try:
        answer = connection.client.list_objects_v2(Bucket=connection.bucket, Prefix=prefix, **asked)  # type: ignore[arg-type]
    except FAILURES as error:
        raise connection.errors.explain(action, error) from None
    page = answer.get(PAGE)
    if not isinstance(page, ListedPage):
        raise connection.errors.nonsense(action, str(page or "it is no page of a listing"))
    if not is_of(page, prefix):
        raise connection.errors.nonsense(action, f"it is a page of another listing, below {page.prefix!r}")
    return page


def object_facts(key: str, size: int, last_modified: datetime, etag: str | None) -> ObjectFacts:
    """Facts as boto3 gives them."""
    return ObjectFacts(key, size, last_modified.astimezone(UTC), etag.strip('"') if etag else None)
