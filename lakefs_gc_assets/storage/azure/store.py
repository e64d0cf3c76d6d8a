"""A storage namespace in a container of Azure Blob Storage, which is also how Data Lake Storage is read and written.

obstore lists and reads; everything else goes to the service's own interface, signed by the same credentials.
API: https://learn.microsoft.com/rest/api/storageservices/blob-service-rest-api
"""

import re
import time
import xml.etree.ElementTree as xml
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from urllib.parse import unquote, urlencode, urlsplit

import pyarrow as pa
from obstore.exceptions import BaseError
from obstore.store import AzureStore as Files

from lakefs_gc_assets.errors import ConfigurationError, ObjectNotFound, PreconditionFailed, StorageError
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage import http_service, multipart, obstore_listing, safe_xml
from lakefs_gc_assets.storage.azure.credentials import VERSION, authorization
from lakefs_gc_assets.storage.cloud_deletes import delete_in_batches, outcome_of
from lakefs_gc_assets.storage.cloud_errors import CloudErrors, said
from lakefs_gc_assets.storage.http_service import Answer, HttpService, Unreachable, quoted
from lakefs_gc_assets.storage.interface import (
    LISTING_SCHEMA,
    DeleteOutcome,
    Level,
    ObjectFacts,
    below,
    checked_key,
    checked_prefix,
)
from lakefs_gc_assets.storage.obstore_clients import client_options, retry_config
from lakefs_gc_assets.storage.obstore_listing import Listable, obstore_can_name

BATCH = 256
"""Keys in one batch request, the service's limit."""
PAGE = 5000
"""Blobs on one page of a listing, the service's limit."""
_CONTENT = ("content-md5", "x-ms-copy-status")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
"""Seconds between looks at a copy that is under way."""
_NO_CONTAINER = frozenset({"ContainerNotFound", "ContainerBeingDeleted", "ContainerDisabled"})
_HOST = re.compile(r"^[a-z0-9]+://(?:[^/@]+@)?([^/@]+)/")


class AzureStore:
    """Objects below a prefix of a container; see ObjectStore. Its ETags are no MD5 of the content.

    No ListsInOrder: an account with a hierarchical namespace lists in another order, and not every endpoint can begin
    behind a key. So one task lists a slice, whatever its size.
    """

    delete_limit = 1000

    def __init__(self, settings: StoreSettings, namespace: Namespace) -> None:
        """Binds to a container and prefix; asks the service nothing."""
        account, _, container = namespace.location.bucket.partition("/")
        endpoint = settings.endpoint_url.rstrip("/") or _endpoint(namespace)
        self._root = namespace.location.key
        self._url = f"{endpoint}/{quoted(container)}"
        self._errors = CloudErrors(f"container {container!r} at {endpoint}", _NO_CONTAINER)
        try:
            self._authorization = authorization(settings, account)
            self._service = HttpService(settings.ca_bundle)
            self._files = Files(
                container,
                account_name=account,
                endpoint=endpoint,
                credential_provider=self._authorization.for_obstore,
                client_options=client_options(settings.ca_bundle),
                retry_config=retry_config(http_service.ATTEMPTS),
            )
        except (BaseError, ValueError, OSError) as error:
            raise ConfigurationError(f"cannot open {namespace.uri} with the settings of `store`: {error}") from None
        # Accounts with a hierarchical namespace list folder by folder, which is another order.
        self._listable = Listable(self._url, self._files, self._pages, self._not_listed, ordered=False)

    def list(self, prefix: str) -> Iterator[pa.RecordBatch]:
        """See ObjectStore.list."""
        return obstore_listing.batches(self._listable, self._root, checked_prefix(prefix))

    def _pages(self, prefix: str, behind: str) -> Iterator[pa.RecordBatch]:
        action = f"list below {prefix!r}"
        for page in self._xml_pages(action, prefix=prefix):
            with self._errors.reading(action):
                batch = _as_batch([_facts(_name(blob), blob) for blob in _blobs(page)])
            yield batch

    def list_level(self, prefix: str) -> Level:
        """See ObjectStore.list_level."""
        full = self._root + checked_prefix(prefix)
        action = f"list directly below {full!r}"
        prefixes: list[str] = []
        objects: list[ObjectFacts] = []
        for page in self._xml_pages(action, prefix=full, delimiter="/"):
            with self._errors.reading(action):
                prefixes += (below(full, _name(found), self._root) for found in page.iterfind("Blobs/BlobPrefix"))
                objects += (
                    _facts(below(full, _name(blob), self._root), blob) for blob in _blobs(page) if _name(blob) != full
                )
        return Level(
            tuple(sorted(set(prefixes), key=str.encode)), tuple(sorted(objects, key=lambda facts: facts.key.encode()))
        )

    def _xml_pages(self, action: str, **query: str) -> Iterator[xml.Element]:
        marker = ""
        while True:
            asked = {"restype": "container", "comp": "list", "maxresults": str(PAGE), "marker": marker, **query}
            target = urlencode({name: value for name, value in asked.items() if value})
            answer = self._ask(action, "GET", f"{self._url}?{target}")
            if answer.status != 200:
                raise self._refused_container(action, answer)
            with self._errors.reading(action):
                page = _listing_page(answer.body)
            yield page
            marker = page.findtext("NextMarker") or ""
            if not marker:
                return

    def get(self, key: str) -> bytes:
        """See ObjectStore.get."""
        full = self._full(key)
        action = f"read {full!r}"
        if obstore_can_name(full):
            try:
                return bytes(self._files.get(full).bytes())
            except (BaseError, FileNotFoundError) as error:
                raise self._explained(action, error) from None
        answer = self._ask(action, "GET", self._blob(full))
        if answer.status != 200:
            raise self._refused(action, answer)
        return answer.body

    def head(self, key: str) -> ObjectFacts:
        """See ObjectStore.head."""
        full = self._full(key)
        action = f"look at {full!r}"
        answer = self._ask(action, "HEAD", self._blob(full))
        if answer.status != 200:
            raise self._refused(action, answer)
        with self._errors.reading(action):
            modified = parsedate_to_datetime(answer.headers["last-modified"]).astimezone(UTC)
            return ObjectFacts(key, int(answer.headers["content-length"]), modified, answer.headers["etag"].strip('"'))

    def put(self, key: str, data: bytes) -> str:
        """See ObjectStore.put."""
        full = self._full(key)
        return self._upload(f"write {full!r}", full, data, {})

    def put_if_absent(self, key: str, data: bytes) -> str:
        """See ObjectStore.put_if_absent."""
        full = self._full(key)
        action = f"create {full!r}"
        try:
            return self._upload(action, full, data, {"if-none-match": "*"})
        except PreconditionFailed:
            raise self._errors.already_exists(action) from None

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """See ObjectStore.put_if_match."""
        full = self._full(key)
        try:
            return self._upload(f"replace {full!r}", full, data, {"if-match": f'"{etag}"'})
        except ObjectNotFound:
            raise PreconditionFailed(f"cannot replace {full!r}: it is gone") from None

    def _upload(self, action: str, full: str, data: bytes, condition: Mapping[str, str]) -> str:
        headers = {"x-ms-blob-type": "BlockBlob", "content-type": "application/octet-stream", **condition}
        answer = self._ask(action, "PUT", self._blob(full), headers, data)
        if answer.status == 409 and said(answer)[0] == "BlobAlreadyExists":
            raise self._errors.already_exists(action)
        if answer.status != 201:
            raise self._refused(action, answer)
        with self._errors.reading(action):
            return answer.headers["etag"].strip('"')

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteOutcome]:
        """See ObjectStore.delete. A key that the answer does not mention has failed, and so has one with snapshots."""
        if len(keys) > self.delete_limit:
            raise ValueError(f"{len(keys)} keys in one delete, at most {self.delete_limit} are taken")
        return delete_in_batches({self._full(key): key for key in keys}, BATCH, self._delete_batch)

    def _delete_batch(self, full_keys: Sequence[str]) -> dict[str, DeleteOutcome]:
        action = f"delete {len(full_keys)} objects such as {full_keys[0]!r}"
        signed = [self._authorization.sign("DELETE", self._blob(full), {}) for full in full_keys]
        content_type, body = multipart.composed([_target(url) for url, _ in signed], [fields for _, fields in signed])
        batch = f"{self._url}?restype=container&comp=batch"
        answer = self._ask(action, "POST", batch, {"content-type": content_type}, body)
        if answer.status != 202:
            raise self._refused_container(action, answer)
        parts = multipart.answers(answer)
        if any(said(part)[0] in _NO_CONTAINER for part in parts.values()):
            raise self._errors.no_container(action)
        return {
            full: outcome_of(full, parts.get(number), _soft_deleted(parts.get(number)))
            for number, full in enumerate(full_keys)
        }

    def copy(self, source: str, target: str) -> None:
        """See CopiesObjects.copy. Content is compared by MD5, where the service has it of both."""
        facts, there = self._contents(source), self._contents(target)
        if facts is None:
            raise self._errors.answered(f"copy {self._full(source)!r}", Answer(404, {}, b""))
        if there is None:
            self._copy(source, target, facts, {"if-none-match": "*"})
        elif not _alike(facts, there) or not _is_whole(there):
            self._copy(source, target, facts, {"if-match": there["etag"]})

    def copy_if_absent(self, source: str, target: str) -> None:
        """See CopiesObjects.copy_if_absent."""
        facts = self._contents(source)
        if facts is None:
            raise self._errors.answered(f"copy {self._full(source)!r}", Answer(404, {}, b""))
        try:
            self._copy(source, target, facts, {"if-none-match": "*"})
        except PreconditionFailed:
            raise self._errors.already_exists(f"copy {self._full(source)!r} to {self._full(target)!r}") from None

    def _copy(self, source: str, target: str, facts: Mapping[str, str], condition: Mapping[str, str]) -> None:
        """Copies within the account, which may take the service longer than its answer; waits for it.

        https://learn.microsoft.com/rest/api/storageservices/copy-blob
        """
        action = f"copy {self._full(source)!r} to {self._full(target)!r}"
        # A shared access signature is part of the URL, for the source as well.
        url, _ = self._authorization.sign("GET", self._blob(self._full(source)), {})
        headers = {"x-ms-copy-source": url, "x-ms-source-if-match": facts["etag"], **condition}
        answer = self._ask(action, "PUT", self._blob(self._full(target)), headers)
        if answer.status == 409 and said(answer)[0] == "BlobAlreadyExists":
            raise PreconditionFailed(f"cannot {action}: another version is there; read it again")
        if answer.status != 202:
            raise self._refused(action, answer)
        made, pause = self._contents(target), _FIRST_PAUSE
        while made is not None and made.get("x-ms-copy-status") == "pending":
            time.sleep(pause)
            made, pause = self._contents(target), min(pause * 2, _LONGEST_PAUSE)
        if made is None or not _is_whole(made) or not _alike(facts, made):
            raise StorageError(f"cannot {action} in {self._errors.place}: the copy has another size or MD5, or failed")

    def _contents(self, key: str) -> Mapping[str, str] | None:
        """The headers of a blob that tell of its content; None where there is none."""
        full = self._full(key)
        action = f"look at {full!r}"
        answer = self._ask(action, "HEAD", self._blob(full))
        if answer.status == 200:
            with self._errors.reading(action):
                return {"etag": answer.headers["etag"], "content-length": answer.headers["content-length"]} | {
                    name: answer.headers[name] for name in _CONTENT if name in answer.headers
                }
        refused = self._refused(action, answer)
        if isinstance(refused, ObjectNotFound):
            return None
        raise refused

    def _ask(
        self, action: str, method: str, url: str, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> Answer:
        sent = {"x-ms-version": VERSION, **(headers or {})}
        if body:
            sent["content-length"] = str(len(body))
        elif method == "PUT":
            sent["content-length"] = "0"
        try:
            return self._service.ask(method, lambda: self._authorization.sign(method, url, sent), body)
        except Unreachable:
            raise self._errors.unreachable(action) from None

    def _refused(self, action: str, answer: Answer) -> StorageError:
        """The error for an answer about a blob."""
        return self._if_about_blob(action, self._errors.answered(action, answer), said(answer)[0])

    def _refused_container(self, action: str, answer: Answer) -> StorageError:
        return self._errors.no_container(action) if answer.status == 404 else self._errors.answered(action, answer)

    def _explained(self, action: str, error: Exception) -> StorageError:
        if not isinstance(error, BaseError | FileNotFoundError):
            return StorageError(f"cannot {action} in {self._errors.place}: {type(error).__name__}")
        found = "BlobNotFound" if "<Code>BlobNotFound</Code>" in str(error) else ""
        return self._if_about_blob(action, self._errors.raised(action, error), found)

    def _if_about_blob(self, action: str, error: StorageError, code: str) -> StorageError:
        """A 404 without a code of the service is no word on a blob: a proxy may have said it."""
        if isinstance(error, ObjectNotFound) and not code:
            return StorageError(f"cannot {action} in {self._errors.place}: 404 by something that is no blob service")
        return error

    def _not_listed(self, action: str, error: Exception) -> StorageError:
        explained = self._explained(action, error)
        return self._errors.no_container(action) if isinstance(explained, ObjectNotFound) else explained

    def _full(self, key: str) -> str:
        return self._root + checked_key(key)

    def _blob(self, full: str) -> str:
        return f"{self._url}/{quoted(full)}"


def _alike(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Same size, and the same MD5 where both have one."""
    digests = {found["content-md5"] for found in (one, other) if "content-md5" in found}
    return one["content-length"] == other["content-length"] and len(digests) <= 1


def _is_whole(found: Mapping[str, str]) -> bool:
    """Whether no copy to this blob is under way, was aborted or failed."""
    return found.get("x-ms-copy-status", "success") == "success"


def _endpoint(namespace: Namespace) -> str:
    """The blob service of the account that a namespace names, in whichever of Azure's clouds."""
    host = _HOST.match(namespace.uri.lower())
    if host is None or "." not in host[1]:
        raise ConfigurationError(f"{namespace.uri} does not name the host of an account: set store.endpoint_url")
    return f"https://{host[1].replace('.dfs.', '.blob.', 1)}"


def _target(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.path}?{parts.query}" if parts.query else parts.path


def _listing_page(body: bytes) -> xml.Element:
    page = safe_xml.parse(body)
    if page.tag != "EnumerationResults" or page.find("Blobs") is None or page.find("NextMarker") is None:
        raise ValueError("no page of a listing, or one that does not say whether there is more")
    return page


def _blobs(page: xml.Element) -> Iterator[xml.Element]:
    """Blobs of a page; folders of a hierarchical namespace are none."""
    for blob in page.iterfind("Blobs/Blob"):
        if blob.findtext("Properties/ResourceType") != "directory":
            yield blob


def _name(found: xml.Element) -> str:
    name = found.find("Name")
    if name is None or name.text is None:
        raise ValueError("something without a name")
    return unquote(name.text) if name.get("Encoded") == "true" else name.text


def _facts(key: str, blob: xml.Element) -> ObjectFacts:
    size, modified = blob.findtext("Properties/Content-Length"), blob.findtext("Properties/Last-Modified")
    if size is None or modified is None:
        raise ValueError(f"{key!r} without size or time")
    etag = (blob.findtext("Properties/Etag") or "").strip('"')
    return ObjectFacts(key, int(size), parsedate_to_datetime(modified).astimezone(UTC), etag or None)


def _as_batch(objects: Sequence[ObjectFacts]) -> pa.RecordBatch:
    columns = [
        [facts.key for facts in objects],
        [facts.size for facts in objects],
        [facts.last_modified for facts in objects],
        [facts.etag for facts in objects],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, LISTING_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=LISTING_SCHEMA)


def _soft_deleted(part: Answer | None) -> bool | None:
    """What the service says of a blob that it deleted: whether for ever."""
    permanent = part.headers.get("x-ms-delete-type-permanent") if part else None
    return None if permanent is None else permanent == "false"
