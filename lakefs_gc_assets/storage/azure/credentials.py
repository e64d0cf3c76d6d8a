"""Who signs requests to Azure Blob Storage: an account's key, a shared access signature, or tokens of an identity.

The usual chain, first found first: settings; the environment variables that Azure's own tools read; the token file of a
workload identity; the managed identity of the machine; whoever is logged in to the Azure command line. Azure's
libraries sign and fetch tokens; obstore is handed the same key, signature or tokens.
"""

import base64
import binascii
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential, TokenCredential
from azure.core.exceptions import AzureError
from azure.identity import ClientSecretCredential, DefaultAzureCredential, WorkloadIdentityCredential

from lakefs_gc_assets.errors import ConfigurationError, StorageError
from lakefs_gc_assets.settings import StoreSettings

if TYPE_CHECKING:
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
