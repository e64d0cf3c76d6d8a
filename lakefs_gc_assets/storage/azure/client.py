"""Azure's own client of a container, and the credentials that sign its requests.

Credentials are an account's key, a shared access signature, or tokens of an identity. The first of these counts:
settings; the environment variables that Azure's own tools read; the token file of a workload identity; the managed
identity of the machine; whoever is logged in to the Azure command line. Azure's libraries sign and fetch tokens;
obstore gets the same key, signature or tokens.
"""

import base64
import binascii
import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential, TokenCredential
from azure.core.exceptions import AzureError, DecodeError, HttpResponseError, ServiceResponseError
from azure.core.pipeline.transport import HttpRequest, RequestsTransport
from azure.identity import ClientSecretCredential, DefaultAzureCredential, WorkloadIdentityCredential
from azure.storage.blob import ContainerClient, ExponentialRetry

from lakefs_gc_assets.errors import ConfigurationError, StorageError
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage import cloud
from lakefs_gc_assets.storage.cloud import Answer

if TYPE_CHECKING:
    from azure.core.pipeline import PipelineRequest
    from obstore.store import AzureCredential

_SCOPE = "https://storage.azure.com/.default"
_CODE = re.compile(r"\bAADSTS\d+\b")


class Identity:
    """Tokens of an identity, for both clients; safe to use from several threads, as the source is."""

    def __init__(self, source: TokenCredential) -> None:
        self._source = source

    def get_token(
        self,
        *scopes: str,
        claims: str | None = None,
        tenant_id: str | None = None,
        enable_cae: bool = False,
        **kwargs: Any,
    ) -> AccessToken:
        """See TokenCredential. Raises StorageError where there is none, which no retry takes for a busy service."""
        try:
            return self._source.get_token(*scopes, claims=claims, tenant_id=tenant_id, enable_cae=enable_cae, **kwargs)
        except OSError as error:
            raise StorageError(f"cannot read AZURE_FEDERATED_TOKEN_FILE {error.filename}: {error.strerror}") from None
        except AzureError as error:
            # The rest of what it says may repeat the request.
            code = _CODE.search(str(error))
            raise StorageError(
                f"Azure hands out no access token ({code[0] if code else type(error).__name__}): no credentials for "
                "Azure were found, or they were refused; set store.account_key, store.sas_token or "
                "store.client_secret, see to the identity of this machine, or log in with `az login`"
            ) from None

    def for_obstore(self) -> "AzureCredential":
        """The access token, in the form that obstore asks for."""
        token = self.get_token(_SCOPE)
        return {"token": token.token, "expires_at": datetime.fromtimestamp(token.expires_on, UTC)}


@dataclass(frozen=True, repr=False)
class Authorization:
    """Credentials in the forms that both clients take.

    Attributes:
        signature: what the address of a source has to carry, where others than headers authorize; may be empty.
    """

    for_library: AzureNamedKeyCredential | AzureSasCredential | Identity
    for_obstore: "Callable[[], AzureCredential]"
    signature: str = ""


def authorization(settings: StoreSettings, account: str) -> Authorization:
    """The first of the chain that is configured; asks nobody yet. Raises ConfigurationError, ValueError."""
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
    """An application with a secret, a workload whose cluster vouches for it, this machine, or whoever is logged in."""
    # An authority that somebody names is his own: Azure does not know it, and it may have certificates of its own.
    own = "AZURE_AUTHORITY_HOST" in os.environ
    verify = settings.ca_bundle if own and settings.ca_bundle else True
    secret = settings.client_secret or os.environ.get("AZURE_CLIENT_SECRET")
    if tenant and client and secret:
        return ClientSecretCredential(tenant, client, secret, disable_instance_discovery=own, connection_verify=verify)
    if tenant and client and (file := os.environ.get("AZURE_FEDERATED_TOKEN_FILE")):
        return WorkloadIdentityCredential(
            tenant_id=tenant,
            client_id=client,
            token_file_path=file,
            disable_instance_discovery=own,
            connection_verify=verify,
        )
    return DefaultAzureCredential(
        managed_identity_client_id=client or None,
        exclude_environment_credential=True,
        exclude_workload_identity_credential=True,
        exclude_shared_token_cache_credential=True,
        exclude_visual_studio_code_credential=True,
        exclude_powershell_credential=True,
        exclude_developer_cli_credential=True,
        exclude_broker_credential=True,
    )


VERSION = "2021-12-02"
"""The version of the service's interface. From 2021-02-12 on, listings mark names that XML cannot hold."""
LARGEST_PUT = 5000 * 1024 * 1024
"""Bytes that one request can write, the service's limit: an object is written whole, or not at all."""
_SOURCE = "x-ms-copy-source"


class _Retries(ExponentialRetry):
    """Retries as often, and with the same pauses, as requests to every other cloud."""

    def __init__(self) -> None:
        left = cloud.attempts() - 1
        super().__init__(retry_total=left, retry_connect=left, retry_read=left, retry_status=left)

    def get_backoff_time(self, settings: dict[str, Any]) -> float:
        """Seconds to wait before the next attempt; `count` is how many have failed."""
        return cloud.pause_after(settings["count"])


class _Transport(RequestsTransport):  # type: ignore[misc]
    """HTTP as the library does it, but 429 is a failure that is retried, and XML with a DOCTYPE is not read."""

    def __init__(self, ca_bundle: str) -> None:
        super().__init__(
            connection_timeout=cloud.connect_timeout().total_seconds(),
            read_timeout=cloud.read_timeout().total_seconds(),
            connection_verify=ca_bundle or True,
        )
        self.last = threading.local()
        """The `response` that came last in a thread; the library's hook loses it where an attempt before it failed."""

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


class Client:
    """The library's client of a container, and the answers as they came. Safe to use from several threads."""

    def __init__(self, endpoint: str, container: str, authorization: Authorization, ca_bundle: str) -> None:
        """Asks nothing. Raises ValueError for tokens without TLS."""
        self._transport = _Transport(ca_bundle)
        self.container = ContainerClient(
            endpoint,
            container,
            credential=authorization.for_library,
            api_version=VERSION,
            retry_policy=_Retries(),
            transport=self._transport,
            max_single_put_size=LARGEST_PUT,
            permit_redirects=False,
            raw_request_hook=_keep_names(f"{urlsplit(endpoint).path.rstrip('/')}/{container}/"),
        )

    def ask(self, call: Callable[[], object]) -> Answer:
        """The answer that a call of the library ended with, also where it is an error.

        Raises AzureError where none came.
        """
        self._transport.last.response = None
        try:
            call()
        except AzureError as error:
            if not isinstance(error, HttpResponseError) or error.response is None:
                raise
            return _answer(error.response)
        if self._transport.last.response is None:
            raise ServiceResponseError("no answer")
        return _answer(self._transport.last.response)


def answer_of(error: AzureError) -> Answer | None:
    """The answer for which the library raised an error; None where there was none, or it did not come whole."""
    if not isinstance(error, HttpResponseError) or isinstance(error, DecodeError) or error.response is None:
        return None
    return _answer(error.response)


def _keep_names(root: str) -> "Callable[[PipelineRequest[HttpRequest]], None]":
    """Changes each request before it is signed, so that the name of a blob is one segment of the path.

    Otherwise HTTP libraries and services take `a/../b` for `b`, which is another blob.
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


def _answer(response: Any) -> Answer:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Answer(response.status_code, headers, response.body())
