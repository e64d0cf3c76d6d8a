"""A storage namespace in a container of Azure Blob Storage; Data Lake Storage is accessed the same way.

obstore reads. Azure's own client makes all other requests, with the same credentials. This module parses some answers
more strictly than the client does:
- Parts of a batch are matched by Content-ID, not by order.
- A page of a listing must say whether there is more.
- Folders are not blobs.

API: https://learn.microsoft.com/rest/api/storageservices/blob-service-rest-api
"""

import base64
import binascii
import os
import re
import threading
import time
import xml.etree.ElementTree as xml
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
from azure.core import MatchConditions
from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential, TokenCredential
from azure.core.exceptions import AzureError, DecodeError, HttpResponseError, ServiceResponseError
from azure.core.pipeline.transport import HttpRequest, RequestsTransport
from azure.identity import (
    AzureCliCredential,
    ChainedTokenCredential,
    ClientSecretCredential,
    ManagedIdentityCredential,
    WorkloadIdentityCredential,
)
from azure.storage.blob import BlobClient, BlobProperties, ContainerClient, ExponentialRetry
from obstore.exceptions import BaseError
from obstore.store import AzureStore as Files
from requests.adapters import HTTPAdapter

from lakefs_gc_assets.errors import ConfigurationError, ObjectNotFound, StorageError, counted
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage import cloud, traffic
from lakefs_gc_assets.storage.bucket_store import BucketStore, Expected, obstore_can_name
from lakefs_gc_assets.storage.cloud import (
    CloudErrors,
    Meaning,
    ObstoreError,
    StoreAnswer,
    code_and_message,
    delete_in_batches,
    outcome_of,
)
from lakefs_gc_assets.storage.interface import LISTING_SCHEMA, DeleteOutcome, ObjectFacts, Page, checked_key

if TYPE_CHECKING:
    from azure.core.pipeline import PipelineRequest
    from obstore.store import AzureCredential

_SCOPE = "https://storage.azure.com/.default"
_CODE = re.compile(r"\bAADSTS\d+\b")


class Identity:
    """Tokens of an identity, for both clients; thread-safe, as the source is."""

    def __init__(self, source: TokenCredential) -> None:
        self._source = source

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        """See TokenCredential. Raises StorageError if there is no token; the library does not retry that error."""
        try:
            return self._source.get_token(*scopes, **options)
        except OSError as error:
            raise StorageError(f"cannot read AZURE_FEDERATED_TOKEN_FILE {error.filename}: {error.strerror}") from None
        except AzureError as error:
            # The rest of its message may repeat the request.
            code = _CODE.search(str(error))
            raise StorageError(
                f"Azure hands out no access token ({code[0] if code else type(error).__name__}): no credentials for "
                "Azure were found, or they were refused; set store.account_key, store.sas_token or "
                "store.client_secret, check the identity of this machine, or log in with `az login`"
            ) from None

    def for_obstore(self) -> "AzureCredential":
        """The access token in obstore's format."""
        token = self.get_token(_SCOPE)
        return {"token": token.token, "expires_at": datetime.fromtimestamp(token.expires_on, UTC)}


@dataclass(frozen=True, repr=False)
class Authorization:
    """Credentials in the formats of both clients.

    Attributes:
        signature: the shared access signature, which the URL of a copy's source must contain; empty with other
            credentials.
    """

    for_library: AzureNamedKeyCredential | AzureSasCredential | Identity
    for_obstore: "Callable[[], AzureCredential]"
    signature: str = ""


def authorization(settings: StoreSettings, account: str) -> Authorization:
    """The first configured credentials of a chain; sends no request. Raises ConfigurationError, ValueError.

    Credentials are an account's key, a shared access signature, or tokens of an identity. The chain: settings, the
    environment variables of Azure's own tools, the token file of a workload identity, the managed identity of the
    machine, the user who is logged in to the Azure command line.
    """
    environment = os.environ.get
    tenant = settings.tenant_id or environment("AZURE_TENANT_ID", "")
    client = settings.client_id or environment("AZURE_CLIENT_ID", "")
    if settings.account_key:
        return _by_key(account, settings.account_key)
    if settings.sas_token:
        return _by_signature(settings.sas_token)
    if settings.client_secret:
        if not tenant or not client:
            raise ConfigurationError("store.client_secret goes with store.tenant_id and store.client_id: set all three")
        return _by_identity(_identity(settings, tenant, client))
    if key := environment("AZURE_STORAGE_ACCOUNT_KEY") or environment("AZURE_STORAGE_KEY"):
        return _by_key(account, key)
    if token := environment("AZURE_STORAGE_SAS_TOKEN"):
        return _by_signature(token)
    return _by_identity(_identity(settings, tenant, client))


def _by_key(account: str, key: str) -> Authorization:
    try:
        base64.b64decode(key, validate=True)
    except binascii.Error:
        raise ConfigurationError("store.account_key is not the key of a storage account: it is no base64") from None
    return Authorization(AzureNamedKeyCredential(account, key), lambda: {"access_key": key, "expires_at": None})


def _by_signature(token: str) -> Authorization:
    signature = token.removeprefix("?")
    return Authorization(AzureSasCredential(signature), lambda: {"sas_token": signature, "expires_at": None}, signature)


def _by_identity(source: TokenCredential) -> Authorization:
    identity = Identity(source)
    return Authorization(identity, identity.for_obstore)


def _identity(settings: StoreSettings, tenant: str, client: str) -> TokenCredential:
    """An application with a secret, a workload identity, the machine's managed identity, or the logged-in user."""
    # A configured authority is private: Azure's discovery does not know it, and it may have its own certificates.
    own = "AZURE_AUTHORITY_HOST" in os.environ
    verify = settings.ca_bundle if own and settings.ca_bundle else True
    authority: dict[str, Any] = {"disable_instance_discovery": own, "connection_verify": verify}
    secret = settings.client_secret or os.environ.get("AZURE_CLIENT_SECRET")
    if tenant and client and secret:
        return ClientSecretCredential(tenant, client, secret, **authority)
    if tenant and client and (file := os.environ.get("AZURE_FEDERATED_TOKEN_FILE")):
        return WorkloadIdentityCredential(tenant_id=tenant, client_id=client, token_file_path=file, **authority)
    return ChainedTokenCredential(ManagedIdentityCredential(client_id=client or None), AzureCliCredential())


VERSION = "2021-12-02"
"""Version of the service's API. Since 2021-02-12, listings mark encoded names, which XML cannot hold."""
LARGEST_PUT = 5000 * 1024 * 1024
"""Maximum bytes per write request, the service's limit. Objects are written by one request, so atomically."""
_SOURCE = "x-ms-copy-source"


class _Retries(ExponentialRetry):
    """Retries with the attempts and pauses that all clouds share."""

    def __init__(self) -> None:
        left = cloud.attempts() - 1
        super().__init__(retry_total=left, retry_connect=left, retry_read=left, retry_status=left)

    def get_backoff_time(self, settings: dict[str, Any]) -> float:
        """Seconds to wait before the next attempt; `count` is the number of failed attempts."""
        traffic.count(retries=1)
        return cloud.pause_after(settings["count"])


class _AzureConnections(cloud.LimitedAdapter, HTTPAdapter):
    """See `cloud.LimitedAdapter`."""


class _Transport(RequestsTransport):  # type: ignore[misc]
    """The library's HTTP transport, which also retries 429 and refuses XML with a DOCTYPE."""

    def __init__(self, ca_bundle: str) -> None:
        super().__init__(
            connection_timeout=cloud.connect_timeout().total_seconds(),
            read_timeout=cloud.read_timeout().total_seconds(),
            connection_verify=ca_bundle or True,
        )
        self.last = threading.local()
        """The last `response` per thread. The library's response hook loses it after a failed attempt."""

    def _init_session(self, session: Any) -> None:
        super()._init_session(session)
        for scheme, adapter in [*session.adapters.items()]:
            session.mount(scheme, _AzureConnections(max_retries=adapter.max_retries))

    def send(self, request: Any, *, proxies: Any = None, **kwargs: Any) -> Any:
        """See HttpTransport.send. Raises HttpResponseError for 429, ParseError for XML with a DOCTYPE, DeletesOver."""
        cloud.require_time_to_delete()
        response = super().send(request, proxies=proxies, **kwargs)
        if response.status_code == 429:
            raise HttpResponseError(response=response)
        if not kwargs.get("stream") and b"<!DOCTYPE" in response.body():
            cloud.parse_xml(response.body())
        self.last.response = response
        return response


def _keep_names(root: str) -> "Callable[[PipelineRequest[HttpRequest]], None]":
    """Hook that makes a blob's name one segment of the path, before the request is signed.

    Otherwise HTTP libraries and services would resolve `a/../b` to `b`, which is another blob.
    """

    def keep(request: "PipelineRequest[HttpRequest]") -> None:
        asked = request.http_request
        asked.url = _one_segment(asked.url, root)
        if _SOURCE in asked.headers:
            asked.headers[_SOURCE] = _one_segment(asked.headers[_SOURCE], root)

    return keep


def _one_segment(url: str, root: str) -> str:
    parts = urlsplit(url)
    if not parts.path.startswith(root):
        return url
    return parts._replace(path=root + parts.path.removeprefix(root).replace("/", "%2F")).geturl()


def _answer(response: Any) -> StoreAnswer:
    return StoreAnswer.from_headers(response.status_code, response.headers, response.body())


BATCH = 256
"""Keys in one batch request, the service's limit."""
PAGE = 5000
"""Blobs per page of a listing, the service's limit."""
_TIME = "%a, %d %b %Y %H:%M:%S GMT"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
"""Seconds between polls of a pending copy."""
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
    """Objects below a prefix of a container; see ObjectStore. Its ETags are not MD5s of the content.

    It does not implement ListsInOrder: an account with a hierarchical namespace lists folder by folder, and not every
    endpoint can begin after a key. So one task lists a whole slice, whatever its size.
    """

    def __init__(self, settings: StoreSettings, namespace: Namespace) -> None:
        """Binds to a container and prefix; sends no request."""
        account, _, container = namespace.location.bucket.partition("/")
        endpoint = settings.endpoint_url.rstrip("/") or _endpoint(namespace)
        self._path = urlsplit(endpoint).path.strip("/")
        self._with_snapshots: dict[str, Any] = {"delete_snapshots": "include"} if settings.delete_snapshots else {}
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
            self._transport = _Transport(settings.ca_bundle)
            self._container = ContainerClient(
                endpoint,
                container,
                credential=self._authorization.for_library,
                api_version=VERSION,
                retry_policy=_Retries(),
                transport=self._transport,
                max_single_put_size=LARGEST_PUT,
                permit_redirects=False,
                raw_request_hook=_keep_names(f"{urlsplit(endpoint).path.rstrip('/')}/{container}/"),
            )
        except (BaseError, ValueError, OSError) as error:
            raise ConfigurationError(f"cannot open {namespace.uri} with the settings of `store`: {error}") from None
        errors = CloudErrors(f"container {container!r} at {endpoint}", _MEANINGS)
        super().__init__(namespace.location.key, files, errors, ordered=False)

    def _page(self, action: str, prefix: str, behind: str, delimiter: str, token: str | None) -> Page:
        # Names only: the library then parses nothing else. The rest of the page is parsed here.
        list_blobs: Any = self._container.walk_blobs if delimiter else self._container.list_blob_names
        listed = list_blobs(name_starts_with=prefix, results_per_page=PAGE)
        answer = self._ask(action, lambda: next(listed.by_page(continuation_token=token), None))
        if answer.status != 200:
            raise self._refused_container(action, answer)
        with self._errors.reading(action):
            return _listing_page(answer.body, prefix)

    def _read(self, action: str, full: str) -> bytes:
        with self._asking(action):
            return self._container.download_blob(full).readall()

    def _write(self, action: str, full: str, data: bytes, expected: Expected | None) -> str:
        with self._asking(action):
            written = self._blob(full).upload_blob(data, overwrite=True, **_condition(expected))
            return str(written["etag"].strip('"'))

    def _delete(self, full_keys: Sequence[str]) -> Mapping[str, DeleteOutcome]:
        """Deletes blobs in batches; a blob with snapshots fails unless `store.delete_snapshots` is set."""
        return delete_in_batches(full_keys, BATCH, self._delete_batch, self._throttle)

    def _delete_batch(self, full_keys: Sequence[str]) -> dict[str, DeleteOutcome]:
        action = f"delete {counted(len(full_keys), 'objects')} such as {full_keys[0]!r}"
        # In a batch, the library does not keep a blob's name in one path segment, so odd names go by themselves.
        named = [full for full in full_keys if obstore_can_name(full)]
        parts = self._batch(action, named) if named else {}
        for full in set(full_keys).difference(named):
            parts[full] = self._delete_one(full)
        if any(code_and_message(part)[0] in _NO_CONTAINER for part in parts.values()):
            raise self._errors.no_bucket(action)
        return {full: _outcome(full, parts.get(full)) for full in full_keys}

    def _delete_one(self, full: str) -> StoreAnswer:
        """The blob service's own answer: the blob is deleted, or an error with the service's code."""
        action = f"delete {full!r}"
        answer = self._ask(action, lambda: self._blob(full).delete_blob(**self._with_snapshots))
        if answer.status == 202 or (answer.status >= 400 and code_and_message(answer)[0]):
            return answer
        raise self._refused(action, answer)

    def _batch(self, action: str, full_keys: Sequence[str]) -> dict[str, StoreAnswer]:
        """Deletes keys by one request; returns the answer for each mentioned key."""

        def send() -> None:
            # The library raises ValueError for a malformed answer. Its readable parts are parsed below.
            with suppress(ValueError):
                self._container.delete_blobs(
                    *full_keys, raise_on_any_failure=False, url_prepend=self._path or None, **self._with_snapshots
                )

        answer = self._ask(action, send)
        if answer.status != 202:
            raise self._refused_container(action, answer)
        parts = cloud.batch_answers(answer)
        return {full: parts[number] for number, full in enumerate(full_keys) if number in parts}

    def _look(self, full: str) -> BlobProperties:
        with self._asking(f"look at {full!r}"):
            properties = self._blob(full).get_blob_properties()
            # Raises if a field is missing or malformed.
            self._facts(full, properties)
        return properties

    def _facts(self, key: str, content: BlobProperties) -> ObjectFacts:
        modified = content.last_modified.astimezone(UTC)
        return ObjectFacts(key, int(content.size), modified, str(content.etag.strip('"')))

    def _alike(self, one: BlobProperties, other: BlobProperties) -> bool:
        """True if sizes are equal, MD5s are equal if both exist, and no copy to `other` is pending or failed."""
        digests = {bytes(digest) for blob in (one, other) if (digest := blob.content_settings.content_md5)}
        return one.size == other.size and len(digests) <= 1 and other.copy.status in (None, "success")

    def _copy_content(
        self,
        action: str,
        source: str,
        target: str,
        content: BlobProperties,
        there: BlobProperties | None,
        only_if_absent: bool,
    ) -> BlobProperties | None:
        """Copies within the account, and waits for the copy, which may finish after the service's answer.

        https://learn.microsoft.com/rest/api/storageservices/copy-blob
        """
        # The source's URL needs the shared access signature too.
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

    def _ask(self, action: str, call: Callable[[], object]) -> StoreAnswer:
        """The raw last answer of a library call, including errors."""
        self._transport.last.response = None
        with self._asking(action):
            try:
                call()
            except AzureError as error:
                if not isinstance(error, HttpResponseError) or error.response is None:
                    raise
                return _answer(error.response)
            if self._transport.last.response is None:
                raise ServiceResponseError("no answer")
            return _answer(self._transport.last.response)

    @contextmanager
    def _asking(self, action: str) -> Iterator[None]:
        """Context for a call of the library: exceptions become StorageError."""
        with self._errors.reading(action), cloud.waits.shown(action):
            try:
                yield
            except AzureError as error:
                # Without an answer, or with an incomplete one, the service was not reached.
                if not isinstance(error, HttpResponseError) or isinstance(error, DecodeError) or error.response is None:
                    raise self._errors.unreachable(action) from None
                raise self._refused(action, _answer(error.response)) from None

    def _refused(self, action: str, answer: StoreAnswer) -> StorageError:
        """The error for an answer about a blob."""
        return self._if_about_blob(action, self._errors.answered(action, answer), code_and_message(answer)[0])

    def _refused_container(self, action: str, answer: StoreAnswer) -> StorageError:
        return self._errors.no_bucket(action) if answer.status == 404 else self._errors.answered(action, answer)

    def _explain(self, action: str, error: ObstoreError) -> StorageError:
        code = "BlobNotFound" if "<Code>BlobNotFound</Code>" in str(error) else ""
        return self._if_about_blob(action, self._errors.raised(action, error), code)

    def _if_about_blob(self, action: str, error: StorageError, code: str) -> StorageError:
        """The error, but StorageError instead of ObjectNotFound for a 404 without a service code, as from a proxy."""
        if isinstance(error, ObjectNotFound) and not code:
            return StorageError(f"cannot {action} in {self._errors.place}: 404 by something that is no blob service")
        return error

    def _full(self, key: str) -> str:
        full = self._root + checked_key(key)
        if full in (".", ".."):
            raise StorageError(f"{full!r} cannot be the key of a blob: in an address it names a folder above")
        return full

    def _blob(self, full: str) -> BlobClient:
        return self._container.get_blob_client(full)


def _condition(expected: Expected | None) -> dict[str, Any]:
    """Arguments of the library for a conditional write."""
    if expected is None:
        return {}
    if expected.etag is None:
        return {"match_condition": MatchConditions.IfMissing}
    return {"match_condition": MatchConditions.IfNotModified, "etag": f'"{expected.etag}"'}


def _endpoint(namespace: Namespace) -> str:
    """The blob endpoint of a namespace's account, in any of Azure's clouds."""
    host = _HOST.match(namespace.uri.lower())
    if host is None or "." not in host[1]:
        raise ConfigurationError(f"{namespace.uri} does not name the host of an account: set store.endpoint_url")
    return f"https://{host[1].replace('.dfs.', '.blob.', 1)}"


def _listing_page(body: bytes, prefix: str) -> Page:
    """Parses a page of a listing below a prefix, without folders of a hierarchical namespace.

    Raises ValueError if it is not a page of this listing, or does not say whether there is more.
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
    return Page(rows, prefixes, page.findtext("NextMarker") or None)


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


def _outcome(full: str, part: StoreAnswer | None) -> DeleteOutcome:
    """The outcome for one blob. If snapshots prevent the delete, the error names the setting that deletes them."""
    # The service says if it keeps the deleted blob for some time.
    permanent = part.headers.get("x-ms-delete-type-permanent") if part else None
    outcome = outcome_of(full, part, None if permanent is None else permanent == "false")
    if part is None or code_and_message(part)[0] != "SnapshotsPresent":
        return outcome
    advice = "the blob has snapshots: set store.delete_snapshots to delete them with it, or delete them first"
    return replace(outcome, error=f"{outcome.error}; {advice}")
