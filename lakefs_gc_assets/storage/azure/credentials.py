"""Who signs requests to Azure Blob Storage: an account's key, a shared access signature, or tokens of an identity.

The usual chain, first found first: settings; the environment variables that Azure's own tools read; the token file of a
workload identity; the managed identity of the machine; whoever is logged in to the Azure command line.
Shared key: https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key
"""

import base64
import binascii
import hashlib
import hmac
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit

from lakefs_gc_assets.errors import ConfigurationError, StorageError
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage.http_service import Answer, HttpService, Unreachable

if TYPE_CHECKING:
    from obstore.store import AzureCredential

VERSION = "2021-12-02"
"""Of the service's interface: the first that says in a listing which names XML cannot hold was 2021-02-12."""
_RESOURCE = "https://storage.azure.com/"
_RENEW_BEFORE = timedelta(minutes=5)
_SIGNED = (
    "content-encoding",
    "content-language",
    "content-length",
    "content-md5",
    "content-type",
    "date",
    "if-modified-since",
    "if-match",
    "if-none-match",
    "if-unmodified-since",
    "range",
)
"""Headers that a shared key signs, in this order; a length of 0 is signed as nothing."""
Token = tuple[str, datetime]


class Authorization(Protocol):
    """Makes requests that the service takes for ours."""

    def sign(self, method: str, url: str, headers: Mapping[str, str]) -> tuple[str, dict[str, str]]:
        """URL and headers (names in lower case) to send. Raises StorageError where there are no credentials."""
        ...

    def for_obstore(self) -> "AzureCredential":
        """The same, as obstore asks for it."""
        ...


class SharedKey:
    """The key of an account."""

    def __init__(self, account: str, key: str) -> None:
        """Raises ConfigurationError where the key is none."""
        self._account = account
        self._key = key
        try:
            self._bytes = base64.b64decode(key, validate=True)
        except binascii.Error:
            raise ConfigurationError("store.account_key is not the key of a storage account: it is no base64") from None

    def sign(self, method: str, url: str, headers: Mapping[str, str]) -> tuple[str, dict[str, str]]:
        """See Authorization."""
        sent = {"x-ms-date": format_datetime(datetime.now(UTC), usegmt=True), **headers}
        parts = urlsplit(url)
        told = {**sent, "content-length": sent.get("content-length", "").removeprefix("0")}
        lines = [method, *(told.get(name, "") for name in _SIGNED)]
        lines += [f"{name}:{sent[name]}" for name in sorted(sent) if name.startswith("x-ms-")]
        lines.append(f"/{self._account}{parts.path}")
        lines += [f"{name.lower()}:{value}" for name, value in sorted(parse_qsl(parts.query, keep_blank_values=True))]
        signature = base64.b64encode(hmac.digest(self._bytes, "\n".join(lines).encode(), hashlib.sha256)).decode()
        return url, {**sent, "authorization": f"SharedKey {self._account}:{signature}"}

    def for_obstore(self) -> "AzureCredential":
        """See Authorization."""
        return {"access_key": self._key, "expires_at": None}


class SharedAccessSignature:
    """A signature that somebody made for us, as part of each address."""

    def __init__(self, token: str) -> None:
        self._token = token.removeprefix("?")

    def sign(self, method: str, url: str, headers: Mapping[str, str]) -> tuple[str, dict[str, str]]:
        """See Authorization."""
        return f"{url}{'&' if '?' in url else '?'}{self._token}", dict(headers)

    def for_obstore(self) -> "AzureCredential":
        """See Authorization."""
        return {"sas_token": self._token, "expires_at": None}


class Identity:
    """Tokens from a source, each used until it is about to expire. Safe to use from several threads."""

    def __init__(self, source: Callable[[], Token]) -> None:
        self._source = source
        self._token: Token | None = None
        self._renewing = threading.Lock()

    def sign(self, method: str, url: str, headers: Mapping[str, str]) -> tuple[str, dict[str, str]]:
        """See Authorization."""
        date = format_datetime(datetime.now(UTC), usegmt=True)
        return url, {"x-ms-date": date, **headers, "authorization": f"Bearer {self._renewed()[0]}"}

    def for_obstore(self) -> "AzureCredential":
        """See Authorization."""
        token, expires_at = self._renewed()
        return {"token": token, "expires_at": expires_at}

    def _renewed(self) -> Token:
        with self._renewing:
            if self._token is None or datetime.now(UTC) > self._token[1] - _RENEW_BEFORE:
                self._token = self._source()
            return self._token


def authorization(settings: StoreSettings, account: str) -> Authorization:
    """The first of the chain that is configured; asks nobody yet. Raises ConfigurationError."""
    environment = os.environ.get
    if settings.account_key:
        return SharedKey(account, settings.account_key)
    if settings.sas_token:
        return SharedAccessSignature(settings.sas_token)
    tenant = settings.tenant_id or environment("AZURE_TENANT_ID", "")
    client = settings.client_id or environment("AZURE_CLIENT_ID", "")
    if settings.client_secret:
        if not tenant or not client:
            raise ConfigurationError("store.client_secret goes with store.tenant_id and store.client_id: set all three")
        return Identity(_Sources(settings, tenant, client).client_secret(settings.client_secret))
    if key := environment("AZURE_STORAGE_ACCOUNT_KEY") or environment("AZURE_STORAGE_KEY"):
        return SharedKey(account, key)
    if token := environment("AZURE_STORAGE_SAS_TOKEN"):
        return SharedAccessSignature(token)
    sources = _Sources(settings, tenant, client)
    if tenant and client and (secret := environment("AZURE_CLIENT_SECRET")):
        return Identity(sources.client_secret(secret))
    if tenant and client and (file := environment("AZURE_FEDERATED_TOKEN_FILE")):
        return Identity(sources.workload(Path(file)))
    return Identity(sources.machine_or_person)


class _Sources:
    """Where tokens come from."""

    def __init__(self, settings: StoreSettings, tenant: str, client: str) -> None:
        self._service = HttpService(settings.ca_bundle if os.environ.get("AZURE_AUTHORITY_HOST") else "")
        self._tenant, self._client = tenant, client

    def client_secret(self, secret: str) -> Callable[[], Token]:
        """An application with a secret."""
        return lambda: self._of_tenant({"client_secret": secret})

    def workload(self, file: Path) -> Callable[[], Token]:
        """A workload whose cluster vouches for it in a file, which it renews."""

        def ask() -> Token:
            try:
                assertion = file.read_text().strip()
            except OSError as error:
                raise StorageError(f"cannot read AZURE_FEDERATED_TOKEN_FILE {file}: {error.strerror}") from None
            kind = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
            return self._of_tenant({"client_assertion_type": kind, "client_assertion": assertion})

        return ask

    def _of_tenant(self, proof: Mapping[str, str]) -> Token:
        authority = os.environ.get("AZURE_AUTHORITY_HOST", "https://login.microsoftonline.com").rstrip("/")
        asked = {
            "grant_type": "client_credentials",
            "client_id": self._client,
            "scope": f"{_RESOURCE}.default",
            **proof,
        }
        answer = self._ask(
            "POST",
            f"{authority}/{self._tenant}/oauth2/v2.0/token",
            {"content-type": "application/x-www-form-urlencoded"},
            urlencode(asked).encode(),
        )
        return _token(answer)

    def machine_or_person(self) -> Token:
        """The managed identity of this machine, else the person at the Azure command line."""
        query = {"resource": _RESOURCE} | ({"client_id": self._client} if self._client else {})
        if endpoint := os.environ.get("IDENTITY_ENDPOINT"):
            target = f"{endpoint}?{urlencode({'api-version': '2019-08-01', **query})}"
            return _token(self._ask("GET", target, {"x-identity-header": os.environ.get("IDENTITY_HEADER", "")}))
        host = os.environ.get("AZURE_POD_IDENTITY_AUTHORITY_HOST", "http://169.254.169.254").rstrip("/")
        target = f"{host}/metadata/identity/oauth2/token?{urlencode({'api-version': '2018-02-01', **query})}"
        try:
            answer = HttpService(connect_timeout=timedelta(seconds=1)).ask(
                "GET", lambda: (target, {"metadata": "true"}), attempts=1
            )
        except Unreachable:
            return _of_command_line()
        if answer.status == 200 or not shutil.which("az"):
            return _token(answer)
        return _of_command_line()

    def _ask(self, method: str, url: str, headers: Mapping[str, str], body: bytes = b"") -> Answer:
        try:
            return self._service.ask(method, lambda: (url, headers), body)
        except Unreachable:
            raise StorageError(
                f"no access token for Azure: no connection to {urlsplit(url).netloc}; see to the network"
            ) from None


def _of_command_line() -> Token:
    program = shutil.which("az")
    if program is None:
        raise StorageError(
            "no credentials for Azure were found: set store.account_key, store.sas_token or store.client_secret, or "
            "those of Azure's usual chain"
        )
    command = [program, "account", "get-access-token", "--output", "json", "--resource", _RESOURCE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StorageError("the Azure command line hands out no access token: log in with `az login`")
    found = json.loads(done.stdout)
    return found["accessToken"], datetime.fromtimestamp(int(found["expires_on"]), UTC)


def _token(answer: Answer) -> Token:
    try:
        found = json.loads(answer.body)
        if answer.status == 200:
            lasts = timedelta(seconds=int(found["expires_in"]))
            return found["access_token"], datetime.now(UTC) + lasts
        code = str(found.get("error", ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        code = "no readable answer"
    raise StorageError(
        f"Azure hands out no access token ({answer.status} {code}): see to the credentials of `store`, or to the "
        "managed identity of this machine"
    )
