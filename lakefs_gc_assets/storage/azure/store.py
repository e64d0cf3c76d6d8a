"""A storage namespace in a container of Azure Blob Storage, which is also how Data Lake Storage is read and written.

obstore lists and reads; everything else Azure's own client asks, by the same credentials. Its answers are read here
where that has to be done more closely: parts of a batch are told by their Content-ID and not by their order, a page of
a listing that does not say whether there is more is none, and folders are no blobs.
API: https://learn.microsoft.com/rest/api/storageservices/blob-service-rest-api
"""

import re
import time
import xml.etree.ElementTree as xml
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TypedDict
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from azure.core import MatchConditions
from azure.storage.blob import BlobClient
from obstore.exceptions import BaseError
from obstore.store import AzureStore as Files

from lakefs_gc_assets.errors import ConfigurationError, ObjectNotFound, PreconditionFailed, StorageError
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage import http_service, multipart, obstore_listing, safe_xml
from lakefs_gc_assets.storage.azure.client import Client
from lakefs_gc_assets.storage.azure.credentials import authorization
from lakefs_gc_assets.storage.cloud_deletes import delete_in_batches, outcome_of
from lakefs_gc_assets.storage.cloud_errors import CloudErrors, said
from lakefs_gc_assets.storage.http_service import Answer, Unreachable
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


class _Condition(TypedDict, total=False):
    """What the library makes headers of: whether there is a blob, and of which version."""

    match_condition: MatchConditions
    etag: str


_ABSENT: _Condition = {"match_condition": MatchConditions.IfMissing}


def _version(etag: str) -> _Condition:
    return {"match_condition": MatchConditions.IfNotModified, "etag": etag}


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
        self._url = f"{endpoint}/{container}"
        self._path = urlsplit(endpoint).path.strip("/")
        self._errors = CloudErrors(f"container {container!r} at {endpoint}", _NO_CONTAINER)
        try:
            self._authorization = authorization(settings, account)
            options = client_options(settings.ca_bundle)
            self._client = Client(endpoint, container, self._authorization, settings.ca_bundle)
            self._files = Files(
                container,
                account_name=account,
                endpoint=endpoint,
                credential_provider=self._authorization.for_obstore,
                client_options=options,
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
        pages = self._client.container.list_blobs(prefix, results_per_page=PAGE).by_page()
        for page in self._xml_pages(action, pages):
            with self._errors.reading(action):
                batch = _as_batch([_facts(_name(blob), blob) for blob in _blobs(page)])
            yield batch

    def list_level(self, prefix: str) -> Level:
        """See ObjectStore.list_level."""
        full = self._root + checked_prefix(prefix)
        action = f"list directly below {full!r}"
        prefixes: list[str] = []
        objects: list[ObjectFacts] = []
        pages = self._client.container.walk_blobs(full, results_per_page=PAGE).by_page()
        for page in self._xml_pages(action, pages):
            with self._errors.reading(action):
                prefixes += (below(full, _name(found), self._root) for found in page.iterfind("Blobs/BlobPrefix"))
                objects += (
                    _facts(below(full, _name(blob), self._root), blob) for blob in _blobs(page) if _name(blob) != full
                )
        return Level(
            tuple(sorted(set(prefixes), key=str.encode)), tuple(sorted(objects, key=lambda facts: facts.key.encode()))
        )

    def _xml_pages(self, action: str, pages: Iterator[Iterator[object]]) -> Iterator[xml.Element]:
        """Pages as the service wrote them, while the library turns them over."""
        while True:
            answer = self._ask(action, lambda: next(pages))
            if answer.status != 200:
                raise self._refused_container(action, answer)
            with self._errors.reading(action):
                page = _listing_page(answer.body)
            yield page
            if not page.findtext("NextMarker"):
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
        with self._reaching(action):
            answer = self._client.read(full)
        if answer.status != 200:
            raise self._refused(action, answer)
        return answer.body

    def head(self, key: str) -> ObjectFacts:
        """See ObjectStore.head."""
        full = self._full(key)
        action = f"look at {full!r}"
        answer = self._ask(action, self._blob(full).get_blob_properties)
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
            return self._upload(action, full, data, _ABSENT)
        except PreconditionFailed:
            raise self._errors.already_exists(action) from None

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """See ObjectStore.put_if_match."""
        full = self._full(key)
        try:
            return self._upload(f"replace {full!r}", full, data, _version(f'"{etag}"'))
        except ObjectNotFound:
            raise PreconditionFailed(f"cannot replace {full!r}: it is gone") from None

    def _upload(self, action: str, full: str, data: bytes, condition: _Condition) -> str:
        blob = self._blob(full)
        answer = self._ask(action, lambda: blob.upload_blob(data, overwrite=True, **condition))
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
        # In a batch the library does not keep the name of a blob in one segment.
        named = [full for full in full_keys if obstore_can_name(full)]
        parts = self._batch(action, named) if named else {}
        for full in set(full_keys).difference(named):
            parts[full] = self._delete_one(full)
        if any(said(part)[0] in _NO_CONTAINER for part in parts.values()):
            raise self._errors.no_container(action)
        return {full: outcome_of(full, parts.get(full), _soft_deleted(parts.get(full))) for full in full_keys}

    def _delete_one(self, full: str) -> Answer:
        """The answer of the blob service itself, that the blob is deleted or why it is not."""
        action = f"delete {full!r}"
        answer = self._ask(action, self._blob(full).delete_blob)
        if answer.status == 202 or (answer.status >= 400 and said(answer)[0]):
            return answer
        raise self._refused(action, answer)

    def _batch(self, action: str, full_keys: Sequence[str]) -> dict[str, Answer]:
        """What one request that deletes keys was answered, for each key that the answer mentions."""
        container = self._client.container

        def send() -> None:
            # The library gives up where it cannot read the answer; what can be read of it is read below.
            with suppress(ValueError):
                container.delete_blobs(*full_keys, raise_on_any_failure=False, url_prepend=self._path or None)

        answer = self._ask(action, send)
        if answer.status != 202:
            raise self._refused_container(action, answer)
        parts = multipart.answers(answer)
        return {full: parts[number] for number, full in enumerate(full_keys) if number in parts}

    def copy(self, source: str, target: str) -> None:
        """See CopiesObjects.copy. Content is compared by MD5, where the service has it of both."""
        facts, there = self._contents(source), self._contents(target)
        if facts is None:
            raise self._errors.answered(f"copy {self._full(source)!r}", Answer(404, {}, b""))
        if there is None:
            self._copy(source, target, facts, _ABSENT)
        elif not _alike(facts, there) or not _is_whole(there):
            self._copy(source, target, facts, _version(there["etag"]))

    def copy_if_absent(self, source: str, target: str) -> None:
        """See CopiesObjects.copy_if_absent."""
        facts = self._contents(source)
        if facts is None:
            raise self._errors.answered(f"copy {self._full(source)!r}", Answer(404, {}, b""))
        try:
            self._copy(source, target, facts, _ABSENT)
        except PreconditionFailed:
            raise self._errors.already_exists(f"copy {self._full(source)!r} to {self._full(target)!r}") from None

    def _copy(self, source: str, target: str, facts: Mapping[str, str], condition: _Condition) -> None:
        """Copies within the account, which may take the service longer than its answer; waits for it.

        https://learn.microsoft.com/rest/api/storageservices/copy-blob
        """
        action = f"copy {self._full(source)!r} to {self._full(target)!r}"
        # A shared access signature is part of the URL, for the source as well.
        signature = self._authorization.signature
        url = self._blob(self._full(source)).url + (f"?{signature}" if signature else "")
        made = self._blob(self._full(target))
        answer = self._ask(
            action,
            lambda: made.start_copy_from_url(
                url,
                source_etag=facts["etag"],
                source_match_condition=MatchConditions.IfNotModified,
                **condition,
            ),
        )
        if answer.status == 409 and said(answer)[0] == "BlobAlreadyExists":
            raise PreconditionFailed(f"cannot {action}: another version is there; read it again")
        if answer.status != 202:
            raise self._refused(action, answer)
        copied, pause = self._contents(target), _FIRST_PAUSE
        while copied is not None and copied.get("x-ms-copy-status") == "pending":
            time.sleep(pause)
            copied, pause = self._contents(target), min(pause * 2, _LONGEST_PAUSE)
        if copied is None or not _is_whole(copied) or not _alike(facts, copied):
            raise StorageError(f"cannot {action} in {self._errors.place}: the copy has another size or MD5, or failed")

    def _contents(self, key: str) -> Mapping[str, str] | None:
        """The headers of a blob that tell of its content; None where there is none."""
        full = self._full(key)
        action = f"look at {full!r}"
        answer = self._ask(action, self._blob(full).get_blob_properties)
        if answer.status == 200:
            with self._errors.reading(action):
                return {"etag": answer.headers["etag"], "content-length": answer.headers["content-length"]} | {
                    name: answer.headers[name] for name in _CONTENT if name in answer.headers
                }
        refused = self._refused(action, answer)
        if isinstance(refused, ObjectNotFound):
            return None
        raise refused

    def _ask(self, action: str, call: Callable[[], object]) -> Answer:
        with self._reaching(action):
            return self._client.ask(call)

    @contextmanager
    def _reaching(self, action: str) -> Iterator[None]:
        with self._errors.reading(action):
            try:
                yield
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
        """The error, but not ObjectNotFound for a 404 without a code of the service: that may come from a proxy."""
        if isinstance(error, ObjectNotFound) and not code:
            return StorageError(f"cannot {action} in {self._errors.place}: 404 by something that is no blob service")
        return error

    def _not_listed(self, action: str, error: Exception) -> StorageError:
        explained = self._explained(action, error)
        return self._errors.no_container(action) if isinstance(explained, ObjectNotFound) else explained

    def _full(self, key: str) -> str:
        full = self._root + checked_key(key)
        if full in (".", ".."):
            raise StorageError(f"{full!r} cannot be the key of a blob: in an address it names a folder above")
        return full

    def _blob(self, full: str) -> BlobClient:
        return self._client.container.get_blob_client(full)


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
