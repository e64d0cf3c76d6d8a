"""One set of credentials and one address for the two clients of Google Cloud Storage: obstore lists and reads.

Everything else goes to the JSON API, which knows generations and batches. Both are handed the same access tokens; those
come from google-auth, by its application default credentials or a service account's key.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import google.auth
import urllib3
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
from google.auth.transport.urllib3 import Request
from google.oauth2.service_account import Credentials as ServiceAccount
from obstore.exceptions import BaseError
from obstore.store import GCSStore as Files

from lakefs_gc_assets.errors import ConfigurationError, StorageError
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage import http_service
from lakefs_gc_assets.storage.cloud_errors import CloudErrors
from lakefs_gc_assets.storage.http_service import HttpService
from lakefs_gc_assets.storage.obstore_clients import client_options, retry_config

if TYPE_CHECKING:
    from obstore.store import GCSCredential

ENDPOINT = "https://storage.googleapis.com"
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"


class Tokens:
    """Access tokens, each used until it is about to expire. Safe to use from several threads."""

    def __init__(self, credentials: Any) -> None:
        """Takes credentials of google-auth, whose methods have no types."""
        self._credentials = credentials
        self._request = Request(urllib3.PoolManager())  # type: ignore[no-untyped-call]
        self._renewing = threading.Lock()

    def header(self) -> Mapping[str, str]:
        """The header Authorization. Raises StorageError where Google hands out no token."""
        return {"Authorization": f"Bearer {self._renewed()[0]}"}

    def for_obstore(self) -> "GCSCredential":
        """The access token, in the form that obstore asks for."""
        token, expires_at = self._renewed()
        return {"token": token, "expires_at": expires_at}

    def _renewed(self) -> tuple[str, datetime | None]:
        with self._renewing:
            if not self._credentials.valid:
                try:
                    self._credentials.refresh(self._request)
                except GoogleAuthError as error:
                    raise StorageError(
                        f"Google hands out no access token ({type(error).__name__}): see to the credentials of `store`"
                    ) from None
            expiry = self._credentials.expiry
            return self._credentials.token, expiry.replace(tzinfo=UTC) if expiry else None


@dataclass(frozen=True)
class Connection:
    """Both clients of one bucket; safe to use from several threads."""

    bucket: str
    endpoint: str
    service: HttpService
    tokens: Tokens
    files: Files
    errors: CloudErrors


def connect(settings: StoreSettings, bucket: str) -> Connection:
    """Opens a bucket; asks it nothing. Raises ConfigurationError, or StorageError where there are no credentials."""
    endpoint = settings.endpoint_url.rstrip("/") or ENDPOINT
    errors = CloudErrors(f"gs://{bucket} at {endpoint}", frozenset())
    try:
        tokens = Tokens(_credentials(settings))
        files = Files(
            bucket,
            base_url=endpoint,
            credential_provider=tokens.for_obstore,
            client_options=client_options(settings.ca_bundle),
            retry_config=retry_config(http_service.ATTEMPTS),
        )
        service = HttpService(settings.ca_bundle)
    except DefaultCredentialsError:
        raise StorageError(
            f"cannot open gs://{bucket}: no credentials were found; set store.service_account_file, or the application "
            "default credentials of Google Cloud"
        ) from None
    except GoogleAuthError as error:
        raise StorageError(
            f"cannot open gs://{bucket}: Google's credentials cannot be used ({type(error).__name__})"
        ) from None
    except (BaseError, ValueError, OSError) as error:
        raise ConfigurationError(f"cannot open gs://{bucket} with the settings of `store`: {error}") from None
    return Connection(bucket, endpoint, service, tokens, files, errors)


def _credentials(settings: StoreSettings) -> Any:
    file = settings.service_account_file
    if not file:
        return google.auth.default(scopes=[_SCOPE])[0]
    read: Any = ServiceAccount.from_service_account_file
    try:
        return read(str(Path(file).expanduser()), scopes=[_SCOPE])
    except (ValueError, KeyError):
        # The parser's own words may repeat the key.
        raise ConfigurationError(f"store.service_account_file {file} is not the key of a service account") from None
