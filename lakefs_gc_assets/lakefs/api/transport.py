"""Calls through lakeFS's own SDK: timeouts, retries and clocks, with unparsed bodies.

The SDK's models refuse answers of real servers (`null` instead of a list) and fill in defaults for missing fields. So
only its operations, connections and authentication are used. Importing this module imports the SDK (1.6 s).
"""

import base64
import ipaddress
import os
import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

import urllib3
from lakefs_sdk.api_client import ApiClient
from lakefs_sdk.configuration import Configuration
from lakefs_sdk.exceptions import ApiException
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    wait_exponential,
    wait_random,
)
from urllib3.exceptions import HTTPError, LocationParseError, NewConnectionError, ProxyError, TimeoutError
from urllib3.util import Url, parse_url

from lakefs_gc_assets.errors import ConfigurationError, LakeFSError, ServerUnavailable
from lakefs_gc_assets.lakefs.api.models import ServerClocks
from lakefs_gc_assets.lakefs.api.parsing import Answer, Call, is_transient, refusal
from lakefs_gc_assets.settings import LakeFSSettings
from lakefs_gc_assets.waits import Waits, limit_answers

_API_PATH = "/api/v1"
_BACKOFF = wait_exponential(multiplier=0.5, max=20) + wait_random(0, 0.5)
_LONGEST_RETRY_AFTER_SECONDS = 300.0
_CONNECTIONS = 32
"""Connections kept open; lookups of candidates by path use as many at once."""
waits = Waits("lakeFS")


class Now(Protocol):
    """The part of a clock that calls need."""

    def now(self) -> datetime:
        """The present, in UTC."""
        ...


class _Refused(Exception):
    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


class _Transient(Exception):
    """A failure worth a retry; the caller gets `error` after the last attempt."""

    def __init__(self, error: LakeFSError, retry_after: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.retry_after = retry_after


class SdkClient(ApiClient):
    """The SDK's client, but it returns bodies as text and passes the headers of all answers, even errors, to `saw`."""

    def __init__(self, configuration: Configuration, saw: Callable[[Mapping[str, str]], None]) -> None:
        super().__init__(configuration)
        self._saw = saw

    def request(self, *arguments: Any, **options: Any) -> Any:
        """Makes one request; a status other than 2xx keeps its raw body."""
        try:
            response: Any = super().request(*arguments, **options)  # type: ignore[no-untyped-call]
        except ApiException as refused:
            if not refused.status:
                raise
            self._saw(refused.headers)
            raise _Refused(Answer(refused.status, refused.headers, _text(refused.body))) from None
        self._saw(response.getheaders())
        return response

    def deserialize(self, response: Any, response_type: Any) -> str:
        """The body as it came."""
        return str(response.data)


def _text(body: object) -> str:
    return body.decode("utf-8", "replace") if isinstance(body, bytes) else str(body or "")


class Caller:
    """Makes calls to one server. Thread-safe; neither its repr nor its errors show keys."""

    def __init__(self, settings: LakeFSSettings, clock: Now, server_clocks: ServerClocks) -> None:
        self.endpoint = api_endpoint(settings.endpoint)
        self._timeout = (settings.connect_timeout_seconds, settings.read_timeout_seconds)
        key, secret = settings.access_key_id, settings.secret_access_key
        self._secrets = (secret, key, base64.b64encode(f"{key}:{secret}".encode()).decode())
        self._clock = clock
        self._server_clocks = server_clocks
        self._clocks_lock = threading.Lock()
        self._attempts = settings.retries + 1
        self._retrying = Retrying(
            retry=retry_if_exception_type(_Transient),
            stop=stop_after_attempt(self._attempts),
            wait=_pause,
            reraise=True,
        )
        configuration = Configuration(
            host=self.endpoint, username=settings.access_key_id, password=settings.secret_access_key
        )
        configuration.connection_pool_maxsize = _CONNECTIONS
        configuration.retries = urllib3.Retry(total=False)  # type: ignore[assignment]
        configuration.ssl_ca_cert = trusted_certificates("lakefs.ca_bundle", settings.ca_bundle)
        if proxy := proxy_from_environment(self.endpoint):
            configuration.proxy = proxy.url  # type: ignore[assignment]
            configuration.proxy_headers = headers_for(proxy)  # type: ignore[assignment]
        self.sdk = SdkClient(configuration, self._saw)
        limit_answers(self.sdk.rest_client.pool_manager.connection_from_url(self.endpoint))

    def ask(
        self,
        call: Call,
        operation: Callable[..., Any],
        *arguments: Any,
        accepted: frozenset[int] = frozenset(),
        once: bool = False,
        **query: Any,
    ) -> Answer:
        """Calls one `…_with_http_info` operation of the SDK; statuses in `accepted` count as answers, like 2xx.

        After retries of transient failures, raises the subclass of LakeFSError for the answer.

        Args:
            once: True for a call that must not be retried, because it may have taken effect.
        """
        request = partial(operation, *arguments, **query, _request_timeout=self._timeout)
        repeat: Callable[..., Answer] = (lambda make, *details: make(*details)) if once else self._retrying
        try:
            return repeat(self._once, call, request, accepted)
        except _Transient as last:
            raise last.error from None

    def _once(self, call: Call, request: Callable[[], Any], accepted: frozenset[int]) -> Answer:
        try:
            with waits.shown(str(call)):
                response = request()
        except _Refused as refused:
            answer = refused.answer
        except ApiException as failure:
            raise ServerUnavailable(
                f"{call}: no secure connection to {self.endpoint}: {_one_line(failure.reason)}. Check lakefs.endpoint "
                "and the server's certificate; lakefs.ca_bundle names the certificates of an authority of your own"
            ) from None
        except HTTPError as failure:
            raise _Transient(self._unreachable(call, failure)) from None
        except (UnicodeDecodeError, LookupError) as failure:
            raise LakeFSError(
                f"{call}: the answer is no text ({failure}). Check that {self.endpoint} is a lakeFS server"
            ) from None
        else:
            return Answer(response.status_code, response.headers, response.raw_data)
        return self._judged(call, answer, accepted)

    def refusal(self, call: Call, answer: Answer) -> LakeFSError:
        """The error to raise for an answer."""
        return refusal(call, answer, self.endpoint, self._secrets)

    def _judged(self, call: Call, answer: Answer, accepted: frozenset[int]) -> Answer:
        if answer.meaning in accepted:
            return answer
        error = self.refusal(call, answer)
        if not is_transient(answer):
            raise error
        wait = self._retry_after(answer.headers)
        if wait is not None and wait > _LONGEST_RETRY_AFTER_SECONDS:
            raise type(error)(f"{error}. It asks to wait for {wait:.0f} s")
        raise _Transient(type(error)(f"{error} (attempts: {self._attempts})"), wait)

    def _unreachable(self, call: Call, failure: HTTPError) -> ServerUnavailable:
        if isinstance(failure, ProxyError):
            what = "cannot be reached through the proxy"
            advice = "Check HTTP_PROXY or HTTPS_PROXY, or name the server in NO_PROXY if it is reached without"
        elif isinstance(failure, NewConnectionError):
            what, advice = "cannot be reached", "Check lakefs.endpoint, and that the server runs"
        elif isinstance(failure, TimeoutError):
            what, advice = "did not answer in time", "See lakefs.connect_timeout_seconds, lakefs.read_timeout_seconds"
        else:
            what, advice = "broke the connection", "See the logs of the server and of any proxy"
        return ServerUnavailable(
            f"{call}: {self.endpoint} {what}: {_one_line(failure)} (attempts: {self._attempts}). {advice}"
        )

    def _saw(self, headers: Mapping[str, str]) -> None:
        moment = _http_date(headers.get("Date"))
        if moment is not None:
            with self._clocks_lock:
                self._server_clocks.saw(moment, self._clock.now())

    def _retry_after(self, headers: Mapping[str, str]) -> float | None:
        """Seconds that the server asks to wait: a number, or a date by the server's own clock (RFC 9110, 10.2.3)."""
        value = headers.get("Retry-After", "").strip()
        if value.isascii() and value.isdigit():
            return float(value)
        until = _http_date(value)
        if until is None:
            return None
        return max(0.0, (until - (_http_date(headers.get("Date")) or self._clock.now())).total_seconds())


def _pause(state: RetryCallState) -> float:
    failure = state.outcome.exception() if state.outcome else None
    asked = failure.retry_after if isinstance(failure, _Transient) else None
    return _BACKOFF(state) if asked is None else asked


def _http_date(value: str | None) -> datetime | None:
    """Parses an HTTP date; None for anything else."""
    try:
        moment = parsedate_to_datetime(value or "")
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


def _one_line(failure: object) -> str:
    text = " ".join(str(failure).split())
    return text.partition("): ")[2] or text if text.startswith(("<", "HTTP")) else text


def api_endpoint(endpoint: str) -> str:
    """The base URL of all calls, from an endpoint with or without `/api/v1`.

    Raises ConfigurationError without the setting's value, which may come from the environment or contain a password.
    """
    if "@" in endpoint:
        raise ConfigurationError(
            "lakefs.endpoint holds a user or password: put keys into lakefs.access_key_id and lakefs.secret_access_key"
        )
    base = endpoint.strip().rstrip("/")
    parts = urlsplit(base)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigurationError(
            "lakefs.endpoint must begin with http:// or https:// and name a host, such as https://lakefs.example.com"
        )
    return base if base.endswith(_API_PATH) else base + _API_PATH


def headers_for(proxy: Url) -> dict[str, str]:
    """Headers for a proxy: the name and password of its address, if any."""
    return urllib3.make_headers(proxy_basic_auth=unquote(proxy.auth) if proxy.auth else None)


def trusted_certificates(setting: str, value: str) -> str | None:
    """The CA bundle to trust; None for OpenSSL's default, which SSL_CERT_FILE in the environment changes.

    Raises ConfigurationError if the file does not exist.

    Args:
        setting: name of the setting, for the error.
        value: path of the file; empty for REQUESTS_CA_BUNDLE in the environment.
    """
    if value:
        file = Path(value).expanduser()
        if not file.is_file():
            raise ConfigurationError(f"{setting} names {value}, which is no file")
        return str(file)
    named = os.environ.get("REQUESTS_CA_BUNDLE", "")
    return named if Path(named).is_file() else None


def proxy_from_environment(endpoint: str) -> Url | None:
    """The proxy for an endpoint from HTTP_PROXY, HTTPS_PROXY or ALL_PROXY, unless NO_PROXY lists the host.

    S3's clients read the same variables for the store. As with lakectl, a server on this machine is called without a
    proxy.

    Raises ConfigurationError without the proxy's address, which may contain a password.
    """
    scheme, host = urlsplit(endpoint).scheme, urlsplit(endpoint).hostname or ""
    named = getproxies_environment()
    variable = scheme if scheme in named else "all"
    if variable not in named or _is_excepted(host, urlsplit(endpoint).netloc, named):
        return None
    try:
        url = parse_url(named[variable] if "://" in named[variable] else f"http://{named[variable]}")
    except LocationParseError:
        url = Url()
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigurationError(
            f"the proxy that {variable.upper()}_PROXY names cannot be used: write "
            "http://host:port, or name the server in NO_PROXY"
        )
    return url


def _is_excepted(host: str, netloc: str, named: dict[str, str]) -> bool:
    """True if a host is called without a proxy: this machine, and hosts in NO_PROXY by name, suffix or network."""
    if host == "localhost" or proxy_bypass(netloc):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or any(_is_in(address, entry.strip()) for entry in named.get("no", "").split(","))


def _is_in(address: ipaddress.IPv4Address | ipaddress.IPv6Address, network: str) -> bool:
    try:
        return address in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False
