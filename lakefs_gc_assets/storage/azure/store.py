"""A storage namespace in a container of Azure Blob Storage, which is also how Data Lake Storage is read and written.

obstore reads; everything else Azure's own client asks, by the same credentials. Its answers are read here
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
from functools import partial
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
from azure.core import MatchConditions
from azure.core.exceptions import AzureError
from azure.storage.blob import BlobClient, BlobProperties
from obstore.exceptions import BaseError
from obstore.store import AzureStore as Files

from lakefs_gc_assets.errors import ConfigurationError, ObjectNotFound, StorageError, counted
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage import cloud
from lakefs_gc_assets.storage.azure.client import Client, answer_of, authorization
from lakefs_gc_assets.storage.bucket_store import BucketStore, Expected, obstore_can_name
from lakefs_gc_assets.storage.cloud import (
    Answer,
    CloudErrors,
    Meaning,
    ObstoreError,
    code_and_message,
    delete_in_batches,
    outcome_of,
)
from lakefs_gc_assets.storage.interface import (
    LISTING_SCHEMA,
    DeleteOutcome,
    ObjectFacts,
    Page,
    checked_key,
)

BATCH = 256
"""Keys in one batch request, the service's limit."""
PAGE = 5000
"""Blobs on one page of a listing, the service's limit."""
_TIME = "%a, %d %b %Y %H:%M:%S GMT"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
"""Seconds between looks at a copy that is under way."""
_NO_CONTAINER = frozenset({"ContainerNotFound", "ContainerBeingDeleted", "ContainerDisabled"})
_MEANINGS = {
    **dict.fromkeys(_NO_CONTAINER, Meaning.NO_BUCKET),
    "AuthenticationFailed": Meaning.BAD_CREDENTIALS,
    "BlobAlreadyExists": Meaning.OTHER_VERSION,
    "BlobArchived": Meaning.ARCHIVED,
    "BlobBeingRehydrated": Meaning.ARCHIVED,
    "404": Meaning.NO_OBJECT,
    "410": Meaning.NO_OBJECT,
}
_HOST = re.compile(r"^[a-z0-9]+://(?:[^/@]+@)?([^/@]+)/")


class AzureStore(BucketStore[CloudErrors, BlobProperties]):
    """Objects below a prefix of a container; see ObjectStore. Its ETags are no MD5 of the content.

    No ListsInOrder: an account with a hierarchical namespace lists folder by folder, and not every endpoint can begin
    behind a key. So one task lists a slice, whatever its size.
    """

    def __init__(self, settings: StoreSettings, namespace: Namespace) -> None:
        """Binds to a container and prefix; asks the service nothing."""
        account, _, container = namespace.location.bucket.partition("/")
        endpoint = settings.endpoint_url.rstrip("/") or _endpoint(namespace)
        self._path = urlsplit(endpoint).path.strip("/")
        try:
            self._authorization = authorization(settings, account)
            files = Files(
                container,
                account_name=account,
                endpoint=endpoint,
                credential_provider=self._authorization.for_obstore,
                client_options=cloud.obstore_options(settings.ca_bundle),
                retry_config=cloud.obstore_retries(),
            )
            self._client = Client(endpoint, container, self._authorization, settings.ca_bundle)
        except (BaseError, ValueError, OSError) as error:
            raise ConfigurationError(f"cannot open {namespace.uri} with the settings of `store`: {error}") from None
        errors = CloudErrors(f"container {container!r} at {endpoint}", _MEANINGS)
        super().__init__(f"{endpoint}/{container}", namespace.location.key, files, errors, ordered=False)

    def _pages(self, action: str, prefix: str, behind: str, delimiter: str) -> Iterator[Page]:
        container = self._client.container

        def ask(marker: str) -> object:
            # The names alone: the library spends no time on the rest, which is parsed here.
            listed: Any = (
                container.walk_blobs(prefix, results_per_page=PAGE)
                if delimiter
                else container.list_blob_names(name_starts_with=prefix, results_per_page=PAGE)
            )
            return next(listed.by_page(continuation_token=marker), None)

        marker, markers = "", {""}
        while True:
            answer = self._ask(action, partial(ask, marker))
            if answer.status != 200:
                raise self._refused_container(action, answer)
            with self._errors.reading(action):
                page, marker = _listing_page(answer.body, prefix)
            yield page
            if not marker:
                return
            if marker in markers:
                raise self._errors.nonsense(action, "it would go on where it was before")
            markers.add(marker)

    def _read(self, action: str, full: str) -> bytes:
        with self._asking(action):
            return self._client.container.download_blob(full).readall()

    def head(self, key: str) -> ObjectFacts:
        """See ObjectStore.head."""
        full = self._full(key)
        with self._asking(f"look at {full!r}"):
            return _facts(key, self._blob(full).get_blob_properties())

    def _write(self, action: str, full: str, data: bytes, expected: Expected | None) -> str:
        with self._asking(action):
            written = self._blob(full).upload_blob(data, overwrite=True, **_condition(expected))
            return str(written["etag"].strip('"'))

    def _delete(self, full_keys: Sequence[str]) -> Mapping[str, DeleteOutcome]:
        """Outcome of each; a blob with snapshots fails."""
        return delete_in_batches(full_keys, BATCH, self._delete_batch, self._throttle)

    def _delete_batch(self, full_keys: Sequence[str]) -> dict[str, DeleteOutcome]:
        action = f"delete {counted(len(full_keys), 'objects')} such as {full_keys[0]!r}"
        # In a batch the library does not keep the name of a blob in one segment.
        named = [full for full in full_keys if obstore_can_name(full)]
        parts = self._batch(action, named) if named else {}
        for full in set(full_keys).difference(named):
            parts[full] = self._delete_one(full)
        if any(code_and_message(part)[0] in _NO_CONTAINER for part in parts.values()):
            raise self._errors.no_bucket(action)
        return {full: outcome_of(full, parts.get(full), _soft_deleted(parts.get(full))) for full in full_keys}

    def _delete_one(self, full: str) -> Answer:
        """The answer of the blob service itself, that the blob is deleted or why it is not."""
        action = f"delete {full!r}"
        answer = self._ask(action, self._blob(full).delete_blob)
        if answer.status == 202 or (answer.status >= 400 and code_and_message(answer)[0]):
            return answer
        raise self._refused(action, answer)

    def _batch(self, action: str, full_keys: Sequence[str]) -> dict[str, Answer]:
        """Deletes keys by one request; returns the answer for each key that it mentions."""
        container = self._client.container

        def send() -> None:
            # The library gives up where it cannot read the answer; what can be read of it is read below.
            with suppress(ValueError):
                container.delete_blobs(*full_keys, raise_on_any_failure=False, url_prepend=self._path or None)

        answer = self._ask(action, send)
        if answer.status != 202:
            raise self._refused_container(action, answer)
        parts = cloud.batch_answers(answer)
        return {full: parts[number] for number, full in enumerate(full_keys) if number in parts}

    def _content(self, full: str) -> BlobProperties | None:
        try:
            with self._asking(f"look at {full!r}"):
                properties = self._blob(full).get_blob_properties()
                # What is missing or malformed is an error.
                _facts(full, properties)
                return properties
        except ObjectNotFound:
            return None

    def _alike(self, one: BlobProperties, other: BlobProperties) -> bool:
        return _alike(one, other) and _is_whole(other)

    def _copy_content(
        self,
        action: str,
        source: str,
        target: str,
        content: BlobProperties,
        there: BlobProperties | None,
        only_if_absent: bool,
    ) -> BlobProperties | None:
        """Copies within the account, which may take the service longer than its answer; waits for it.

        https://learn.microsoft.com/rest/api/storageservices/copy-blob
        """
        # A shared access signature is part of the URL, for the source as well.
        signature = self._authorization.signature
        url = self._blob(source).url + (f"?{signature}" if signature else "")
        with self._asking(action):
            self._blob(target).start_copy_from_url(
                url,
                source_etag=content.etag,
                source_match_condition=MatchConditions.IfNotModified,
                **_condition(Expected(None if there is None else there.etag.strip('"'))),
            )
        copied, pause = self._content(target), _FIRST_PAUSE
        while copied is not None and copied.copy.status == "pending":
            time.sleep(pause)
            copied, pause = self._content(target), min(pause * 2, _LONGEST_PAUSE)
        return copied

    def _ask(self, action: str, call: Callable[[], object]) -> Answer:
        """The answer as it came, which is read here."""
        with self._asking(action):
            return self._client.ask(call)

    @contextmanager
    def _asking(self, action: str) -> Iterator[None]:
        """Around a call of the library: what it raises becomes a StorageError."""
        with self._errors.reading(action), cloud.waits.shown(action):
            try:
                yield
            except AzureError as error:
                answer = answer_of(error)
                if answer is None:
                    raise self._errors.unreachable(action) from None
                raise self._refused(action, answer) from None

    def _refused(self, action: str, answer: Answer) -> StorageError:
        """The error for an answer about a blob."""
        return self._if_about_blob(action, self._errors.answered(action, answer), code_and_message(answer)[0])

    def _refused_container(self, action: str, answer: Answer) -> StorageError:
        return self._errors.no_bucket(action) if answer.status == 404 else self._errors.answered(action, answer)

    def _explain(self, action: str, error: ObstoreError) -> StorageError:
        code = "BlobNotFound" if "<Code>BlobNotFound</Code>" in str(error) else ""
        return self._if_about_blob(action, self._errors.raised(action, error), code)

    def _if_about_blob(self, action: str, error: StorageError, code: str) -> StorageError:
        """The error, but not ObjectNotFound for a 404 without a code of the service: that may come from a proxy."""
        if isinstance(error, ObjectNotFound) and not code:
            return StorageError(f"cannot {action} in {self._errors.place}: 404 by something that is no blob service")
        return error

    def _full(self, key: str) -> str:
        full = self._root + checked_key(key)
        if full in (".", ".."):
            raise StorageError(f"{full!r} cannot be the key of a blob: in an address it names a folder above")
        return full

    def _blob(self, full: str) -> BlobClient:
        return self._client.container.get_blob_client(full)


def _condition(expected: Expected | None) -> dict[str, Any]:
    """Arguments of which the library makes headers."""
    if expected is None:
        return {}
    if expected.etag is None:
        return {"match_condition": MatchConditions.IfMissing}
    return {"match_condition": MatchConditions.IfNotModified, "etag": f'"{expected.etag}"'}


def _alike(one: BlobProperties, other: BlobProperties) -> bool:
    """Same size, and the same MD5 where both have one."""
    digests = {bytes(digest) for blob in (one, other) if (digest := blob.content_settings.content_md5)}
    return one.size == other.size and len(digests) <= 1


def _is_whole(blob: BlobProperties) -> bool:
    """True if no copy to this blob is under way, was aborted or failed."""
    return blob.copy.status in (None, "success")


def _endpoint(namespace: Namespace) -> str:
    """The blob service of the account that a namespace names, in whichever of Azure's clouds."""
    host = _HOST.match(namespace.uri.lower())
    if host is None or "." not in host[1]:
        raise ConfigurationError(f"{namespace.uri} does not name the host of an account: set store.endpoint_url")
    return f"https://{host[1].replace('.dfs.', '.blob.', 1)}"


def _listing_page(body: bytes, prefix: str) -> tuple[Page, str]:
    """A page of what lies below a prefix, without folders of a hierarchical namespace, and the marker of the next one.

    The marker is empty on the last page. Raises ValueError where it is no page of this listing, or does not say whether
    there is more.
    """
    page = cloud.parse_xml(body)
    if page.tag != "EnumerationResults" or len(page.findall("Blobs")) != 1 or len(page.findall("NextMarker")) != 1:
        raise ValueError("no page of a listing, or one that does not say whether there is more")
    shown = page.find("Prefix")
    if shown is not None and shown.text and _text(shown) != prefix:
        raise ValueError("a page of another listing")
    blobs = [blob for blob in page.iterfind("Blobs/Blob") if blob.findtext("Properties/ResourceType") != "directory"]
    properties = [_properties(blob) for blob in blobs]
    written = pa.array([row["Last-Modified"] for row in properties], pa.string())
    times = pc.strptime(written, format=_TIME, unit="us")
    columns: list[pa.Array[Any]] = [
        pa.array([_name(blob) for blob in blobs], pa.string()),
        pa.array([int(row["Content-Length"]) for row in properties], pa.int64()),
        times.cast(LISTING_SCHEMA.field("last_modified").type),
        pa.array([row.get("Etag", "").strip('"') or None for row in properties], pa.string()),
        pa.array([row.get("AccessTier") or None for row in properties], pa.string()),
    ]
    rows = pa.RecordBatch.from_arrays(columns, schema=LISTING_SCHEMA)
    prefixes = tuple(_name(element) for element in page.iterfind("Blobs/BlobPrefix"))
    return Page(rows, prefixes), page.findtext("NextMarker") or ""


def _properties(blob: xml.Element) -> dict[str, str]:
    element = blob.find("Properties")
    return {} if element is None else {each.tag: each.text or "" for each in element}


def _name(element: xml.Element) -> str:
    name = element.find("Name")
    if name is None or not name.text:
        raise ValueError("something without a name")
    return _text(name)


def _text(name: xml.Element) -> str:
    return unquote(name.text or "") if name.get("Encoded") == "true" else name.text or ""


def _facts(key: str, blob: BlobProperties) -> ObjectFacts:
    return ObjectFacts(key, int(blob.size), blob.last_modified.astimezone(UTC), str(blob.etag.strip('"')))


def _soft_deleted(part: Answer | None) -> bool | None:
    """True if the service keeps the deleted blob for some time; None where it does not say."""
    permanent = part.headers.get("x-ms-delete-type-permanent") if part else None
    return None if permanent is None else permanent == "false"
