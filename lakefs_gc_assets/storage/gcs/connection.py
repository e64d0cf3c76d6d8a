"""One set of credentials and one address for the two clients of Google Cloud Storage: obstore lists and reads.

Everything else Google's own client asks, which knows generations, and tries again by its own policy. Both are handed
the same access tokens; those come from google-auth, by its application default credentials or a service account's key.
"""

import os
import threading
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import google.auth
from google.api_core.exceptions import from_http_response
from google.auth.credentials import Credentials
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
from google.auth.transport.requests import AuthorizedSession, Request
from google.cloud.storage import Bucket, Client
from google.cloud.storage.retry import DEFAULT_RETRY
from google.oauth2.service_account import Credentials as ServiceAccount
from obstore.exceptions import BaseError
from obstore.store import GCSStore as Files
from requests import Response
from requests.adapters import HTTPAdapter

from lakefs_gc_assets.errors import ConfigurationError, StorageError
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage import http_service
from lakefs_gc_assets.storage.cloud_errors import CloudErrors, Meaning

if TYPE_CHECKING:
    from google.api_core.retry import Retry
    from obstore.store import GCSCredential

ENDPOINT = "https://storage.googleapis.com"
# Otherwise the library looks at the bucket, in a thread of its own, for traces that nobody makes: that takes a right.
os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
_MEANINGS = {"404": Meaning.NO_OBJECT, "410": Meaning.NO_OBJECT}
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"


class Tokens(Credentials):
    """Access tokens of google-auth for both clients, each used until it is about to expire, renewed by one thread.

    The library is handed these and not the credentials themselves: with a service account it would ask
    iamcredentials.googleapis.com, in a thread of its own, where its tokens may be used.
    """

    def __init__(self, source: Any) -> None:
        """Takes credentials of google-auth, whose methods have no types."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._source = source
        self._universe_domain = source.universe_domain
        self._renewing = threading.Lock()

    def refresh(self, request: Request) -> None:
        """See Credentials.refresh."""
        with self._renewing:
            if not self._source.valid:
                self._source.refresh(request)
            self.token, self.expiry = self._source.token, self._source.expiry

    def for_obstore(self) -> "GCSCredential":
        """The access token, in the form that obstore asks for."""
        try:
            if not self.valid:
                self.refresh(Request())
        except GoogleAuthError as error:
            raise no_token(error) from None
        return {"token": str(self.token), "expires_at": self.expiry.replace(tzinfo=UTC) if self.expiry else None}


class Patience(TypedDict):
    """How long a call of the library waits for an answer (connection and answer, seconds), and how it tries again."""

    retry: "Retry"
    timeout: tuple[float, float]


@dataclass(frozen=True)
class Connection:
    """Both clients of one bucket; safe to use from several threads.

    Attributes:
        bucket: of the library; it was asked nothing.
        session: the library's connections, which sign what is asked.
    """

    endpoint: str
    bucket: Bucket
    session: AuthorizedSession
    files: Files
    errors: CloudErrors

    def post(self, target: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Response:
        """The answer 200 to what the library has no method for, asked as patiently. Raises what the library raises."""
        patience = patient()

        def send() -> Response:
            response = self.session.post(
                self.endpoint + target, data=body, headers=headers, timeout=patience["timeout"]
            )
            if response.status_code != 200:
                raise from_http_response(response)  # type: ignore[no-untyped-call]
            return response

        answered: Response = patience["retry"](send)()
        return answered


def patient() -> Patience:
    """The library's policy, with the pauses and timeouts of requests to every other cloud.

    It is handed to every call: a repeat of a conditional put has the same condition, so it cannot replace what somebody
    else wrote in between; at most it finds what it wrote itself, as ObjectStore says.
    """
    retry = DEFAULT_RETRY.with_delay(initial=http_service.FIRST_PAUSE, maximum=http_service.LONGEST_PAUSE, multiplier=2)
    return {
        "retry": retry.with_timeout(http_service.RETRY_FOR.total_seconds()),
        "timeout": (http_service.CONNECT_TIMEOUT.total_seconds(), http_service.READ_TIMEOUT.total_seconds()),
    }


def connect(settings: StoreSettings, bucket: str) -> Connection:
    """Opens a bucket; asks it nothing. Raises ConfigurationError, or StorageError where there are no credentials."""
    endpoint = settings.endpoint_url.rstrip("/") or ENDPOINT
    errors = CloudErrors(f"gs://{bucket} at {endpoint}", _MEANINGS)
    try:
        tokens = Tokens(_credentials(settings))
        session = _session(tokens, settings.ca_bundle)
        client = Client(project=None, credentials=tokens, _http=session, client_options={"api_endpoint": endpoint})
        files = Files(
            bucket,
            base_url=endpoint,
            credential_provider=tokens.for_obstore,
            client_options=http_service.obstore_options(settings.ca_bundle),
            retry_config=http_service.obstore_retries(),
        )
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
    return Connection(endpoint, client.bucket(bucket), session, files, errors)


def _session(tokens: Tokens, ca_bundle: str) -> AuthorizedSession:
    """Connections that all threads share; an address that sends elsewhere is not followed."""
    session = AuthorizedSession(tokens, refresh_status_codes=())  # type: ignore[no-untyped-call]
    for scheme in ("https://", "http://"):
        session.mount(scheme, HTTPAdapter(pool_maxsize=http_service.CONNECTIONS))
    session.verify = ca_bundle or True
    session.max_redirects = 0
    return session


def no_token(error: GoogleAuthError) -> StorageError:
    """The error where Google does not say who we are; what it said may repeat the request."""
    return StorageError(f"Google hands out no access token ({type(error).__name__}): see to the credentials of `store`")


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
