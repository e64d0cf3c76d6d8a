import logging
import re
import socket
import subprocess
import sys
import time
import traceback
from base64 import b64encode
from datetime import timedelta
from pathlib import Path

import pytest

from lakefs_gc_assets import waits
from lakefs_gc_assets.errors import (
    AccessDenied,
    ConfigurationError,
    Conflict,
    HookFailed,
    LakeFSError,
    NotFound,
    NotSupported,
    ReadOnlyRepository,
    ServerUnavailable,
    UnknownPath,
    WrongKeys,
)
from lakefs_gc_assets.lakefs.api import transport
from lakefs_gc_assets.lakefs.api.client import LakeFSClient
from lakefs_gc_assets.waits import Waits
from lakefs_gc_assets_tests.lakefs.api.scripted_server import (
    GOOD,
    KEY_ID,
    SECRET,
    FixedClock,
    Scripted,
    refused,
    said,
    scripted,
    settings,
    talking,
)
from lakefs_gc_assets_tests.servers import private_authority
from lakefs_gc_assets_tests.servers.trickling import IN_BODY, IN_HEADERS, trickling


class TestRefusals:
    @pytest.mark.parametrize(
        ("answer", "kind", "words"),
        [
            (refused(401, "error authenticating request"), WrongKeys, "lakefs.access_key_id and"),
            (refused(403, "read-only repository"), ReadOnlyRepository, "read-only repository"),
            (refused(403, "insufficient permissions"), AccessDenied, "retention:PrepareGarbageCollectionUncommitted"),
            (Scripted(403, b"<Error><Code>AccessDenied</Code></Error>"), AccessDenied, "Check lakefs.endpoint"),
            (refused(404, "repository not found"), NotFound, "the setting repository"),
            (Scripted(404, b"<html>nginx</html>"), NotFound, "an answer that is not lakeFS's"),
            (refused(500, "invalid API endpoint"), UnknownPath, "offers this call"),
            (refused(501, "Not Implemented"), NotSupported, "does not offer"),
            (Scripted(301, b"", {"Location": "https://elsewhere/"}), LakeFSError, "redirects"),
            (refused(410, "gone"), LakeFSError, "410 Gone"),
            (said({"reference": ""}, 409), Conflict, "changed the same paths"),
            (refused(412, "pre-merge hook aborted"), HookFailed, "pre-merge hook aborted"),
            (Scripted(418, b""), LakeFSError, "418"),
            (Scripted(400, b"\xff\xfe"), LakeFSError, "Check lakefs.endpoint"),
        ],
    )
    def test_are_told_apart_at_once(self, answer: Scripted, kind: type[LakeFSError], words: str) -> None:
        with talking(answer) as (client, server, sleeps):
            with pytest.raises(kind) as raised:
                client.prepare_uncommitted(None)
            assert type(raised.value) is kind
            assert words in str(raised.value)
            assert str(raised.value).startswith("POST /repositories/repo/gc/prepare_uncommited: ")
            assert "\n" not in str(raised.value)
            assert (len(server.requests), sleeps.seconds) == (1, [])

    @pytest.mark.parametrize("status", [401, 403, 404, 501])
    def test_of_a_dump_allow_the_fallback(self, status: int) -> None:
        with (
            talking(refused(status, "no")) as (client, _, _),
            pytest.raises((AccessDenied, NotFound, NotSupported)),
        ):
            client.start_refs_dump()

    @pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 599])
    def test_that_may_pass_are_repeated_then_end_as_unavailable(self, status: int) -> None:
        with talking(refused(status, "later")) as (client, server, sleeps):
            with pytest.raises(ServerUnavailable, match=rf"{status}.*later.*attempts: 4"):
                client.start_refs_dump()
            assert len(server.requests) == 4
            assert len(sleeps.seconds) == 3
            assert 0.5 <= sleeps.seconds[0] <= 1 <= sleeps.seconds[1] <= 1.5 < 2 <= sleeps.seconds[2] <= 2.5

    def test_no_retries_where_none_are_wanted(self) -> None:
        with talking(refused(503, "later"), retries=0) as (client, server, _):
            with pytest.raises(ServerUnavailable):
                client.start_refs_dump()
            assert len(server.requests) == 1

    def test_a_server_that_recovers_is_believed(self) -> None:
        with talking(refused(500, "a"), Scripted(breaks=True), refused(503, "c"), said({"id": "task"})) as (
            c,
            server,
            _,
        ):
            assert c.start_refs_dump() == "task"
            assert [method for method, _, _ in server.requests] == ["POST"] * 4

    @pytest.mark.parametrize(
        ("value", "seconds"),
        [("7", 7), ("0", 0), ("Sat, 21 Nov 2026 12:00:09 GMT", 9), ("Sat, 21 Nov 2026 11:00:00 GMT", 0)],
    )
    def test_retry_after_is_honoured(self, value: str, seconds: float) -> None:
        with talking(refused(429, "slow down", Retry_After=value), said({"id": "task"})) as (client, _, sleeps):
            assert client.start_refs_dump() == "task"
            assert sleeps.seconds == [seconds]

    def test_retry_after_that_is_no_time_is_passed_over(self) -> None:
        with talking(refused(503, "down", Retry_After="soon"), said({"id": "task"})) as (client, _, sleeps):
            assert client.start_refs_dump() == "task"
            assert 0.5 <= sleeps.seconds[0] <= 1

    def test_a_day_of_retry_after_is_not_waited_for(self) -> None:
        with talking(refused(429, "quota", Retry_After="86400")) as (client, server, sleeps):
            with pytest.raises(ServerUnavailable, match="asks to wait for 86400 s"):
                client.start_refs_dump()
            assert (len(server.requests), sleeps.seconds) == (1, [])


class TestConnections:
    def test_refused(self) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
            client = LakeFSClient(settings(endpoint, retries=0), "repo", FixedClock())
            with pytest.raises(
                ServerUnavailable, match=rf"{endpoint}/api/v1 cannot be reached.*refused.*lakefs\.endpoint"
            ):
                client.repository()

    def test_unknown_host(self) -> None:
        client = LakeFSClient(settings("http://lakefs.invalid", retries=0), "repo", FixedClock())
        with pytest.raises(ServerUnavailable, match=r"http://lakefs\.invalid/api/v1 cannot be reached"):
            client.repository()

    def test_silence_is_a_timeout_never_a_reason_for_the_fallback(self) -> None:
        with talking(Scripted(hangs=5), read_timeout_seconds=0.1, retries=1) as (client, server, sleeps):
            with pytest.raises(ServerUnavailable, match=r"did not answer in time.*attempts: 2.*read_timeout_seconds"):
                client.start_refs_dump()
            # A busy server reads a request after its client has given up.
            until = time.monotonic() + 900
            while len(server.requests) < 2 and time.monotonic() < until:
                time.sleep(0.01)
            assert (len(server.requests), len(sleeps.seconds)) == (2, 1)

    @pytest.mark.parametrize("proxied", [False, True], ids=["direct", "proxied"])
    @pytest.mark.parametrize("start", [IN_BODY, IN_HEADERS], ids=["body", "headers"])
    def test_an_answer_that_trickles_is_given_up(
        self, start: bytes, proxied: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with trickling(start) as server:
            monkeypatch.setenv("http_proxy", server.url)
            endpoint = "http://lakefs.invalid" if proxied else server.url
            client = LakeFSClient(settings(endpoint, read_timeout_seconds=0.2, retries=0), "repo", FixedClock())
            with pytest.raises(ServerUnavailable, match="did not answer in time"):
                client.repository()
            assert server.was_given_up()

    @pytest.mark.parametrize("answer", [Scripted(breaks=True), Scripted(body=b'{"id": "ta', truncated=True)])
    def test_broken(self, answer: Scripted) -> None:
        with talking(answer, retries=1) as (client, server, _):
            with pytest.raises(ServerUnavailable, match="broke the connection"):
                client.start_refs_dump()
            assert len(server.requests) == 2

    def test_a_server_without_tls(self) -> None:
        with talking(said({})) as (_, server, _):
            secure = settings(server.url.replace("http:", "https:"), retries=0)
            client = LakeFSClient(secure, "repo", FixedClock())
            with pytest.raises(ServerUnavailable, match=r"https://127.0.0.1"):
                client.repository()

    @pytest.mark.parametrize(
        "endpoint",
        ["", "lakefs.example.com", "ftp://lakefs", "http://", "http://host/?x=1", f"http://{KEY_ID}:{SECRET}@host"],
    )
    def test_endpoints_that_cannot_be_used(self, endpoint: str) -> None:
        with pytest.raises(ConfigurationError, match=r"lakefs\.endpoint") as raised:
            LakeFSClient(settings(endpoint), "repo", FixedClock())
        assert KEY_ID not in str(raised.value)
        assert SECRET not in str(raised.value)

    def test_a_wait_for_a_silent_server_is_shown_while_it_lasts(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(waits, "SHOWN_AFTER", 0.2)
        monkeypatch.setattr(transport, "waits", Waits("lakeFS"))
        with talking(Scripted(hangs=0.7), said(GOOD["repository"]), read_timeout_seconds=0.5) as (client, _, _):
            assert client.repository().id == "repo"
        assert caplog.messages
        for message in caplog.messages:
            assert re.fullmatch(r"waiting for lakeFS: no result for \d+ s \(GET /repositories/repo\)", message)

    def test_a_repository_must_be_named(self) -> None:
        with pytest.raises(ConfigurationError, match="repository is not set"):
            LakeFSClient(settings("http://127.0.0.1:1"), "", FixedClock())


@pytest.fixture
def no_proxy_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell names no proxy."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.usefixtures("no_proxy_variables")
class TestProxies:
    """The scripted server is the proxy: a plain HTTP proxy gets whole URLs."""

    ENDPOINT = "http://lakefs.corp.invalid"
    TARGET = "http://lakefs.corp.invalid/api/v1/repositories/repo"

    def client(self, endpoint: str = ENDPOINT) -> LakeFSClient:
        return LakeFSClient(settings(endpoint, retries=0), "repo", FixedClock())

    @pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
    def test_of_the_environment_are_used(self, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
        with scripted(said(GOOD["repository"])) as proxy:
            monkeypatch.setenv(variable, proxy.url.replace("http://", "http://us%40r:pass@"))
            assert self.client().repository().id == "repo"
            assert [target for _, target, _ in proxy.requests] == [self.TARGET]
            assert proxy.proxy_authorizations == ["Basic " + b64encode(b"us@r:pass").decode()]

    def test_need_no_scheme(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with scripted(said(GOOD["repository"])) as proxy:
            monkeypatch.setenv("HTTP_PROXY", proxy.url.removeprefix("http://"))
            assert self.client().repository().id == "repo"

    @pytest.mark.parametrize("excepted", ["lakefs.corp.invalid", ".corp.invalid", "*", "a, invalid"])
    def test_are_left_out_for_hosts_of_no_proxy(self, monkeypatch: pytest.MonkeyPatch, excepted: str) -> None:
        with scripted(said(GOOD["repository"])) as proxy:
            monkeypatch.setenv("HTTP_PROXY", proxy.url)
            monkeypatch.setenv("NO_PROXY", excepted)
            with pytest.raises(ServerUnavailable, match=r"cannot be reached: "):
                self.client().repository()
            assert proxy.requests == []

    @pytest.mark.parametrize(("excepted", "is_asked"), [("192.0.2.0/24", False), ("198.51.100.0/24, x", True)])
    def test_are_left_out_for_networks_of_no_proxy(
        self, monkeypatch: pytest.MonkeyPatch, excepted: str, is_asked: bool
    ) -> None:
        monkeypatch.setenv("HTTP_PROXY", "http://proxy.invalid:3128")
        monkeypatch.setenv("NO_PROXY", excepted)
        assert (transport.proxy_from_environment("http://192.0.2.7:8000/api/v1") is not None) is is_asked

    @pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.9.9.9", "[::1]"])
    def test_are_left_out_for_this_machine(self, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
        monkeypatch.setenv("HTTP_PROXY", "http://proxy.invalid:3128")
        assert transport.proxy_from_environment(f"http://{host}:8000/api/v1") is None

    def test_that_cannot_be_reached_are_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HTTP_PROXY", "http://user:hidden@proxy.invalid:3128")
        with pytest.raises(ServerUnavailable, match=r"through the proxy: .*Check HTTP_PROXY or HTTPS_PROXY") as raised:
            self.client().repository()
        assert "hidden" not in str(raised.value)

    def test_that_open_no_tunnel_are_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with scripted(said(GOOD["repository"])) as proxy:
            monkeypatch.setenv("HTTPS_PROXY", proxy.url)
            with pytest.raises(ServerUnavailable, match=r"through the proxy: .*501"):
                self.client("https://lakefs.corp.invalid").repository()

    def test_that_ask_for_a_user_are_reported_one_in_the_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with scripted(Scripted(407, b"<html>")) as proxy:
            monkeypatch.setenv("HTTP_PROXY", proxy.url)
            with pytest.raises(LakeFSError, match=r"407 .*\. Write http://user:password@host:port into HTTP_PROXY"):
                self.client().repository()

    @pytest.mark.parametrize("proxy", ["socks5://user:hidden@host:1080", "http://", "http://[hidden", "ftp://hidden"])
    def test_of_another_kind_are_refused(self, monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
        monkeypatch.setenv("HTTP_PROXY", proxy)
        with pytest.raises(ConfigurationError, match="the proxy that HTTP_PROXY names") as raised:
            self.client()
        assert "hidden" not in str(raised.value)


class TestPrivateAuthorities:
    def client(self, url: str, **changes: str) -> LakeFSClient:
        return LakeFSClient(settings(url, retries=0, **changes), "repo", FixedClock())

    def test_are_trusted_where_a_setting_or_the_environment_names_them(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"):
            monkeypatch.delenv(name, raising=False)
        bundle, tls = private_authority.make(tmp_path)
        with scripted(said(GOOD["repository"]), tls=tls) as server:
            with pytest.raises(ServerUnavailable, match=r"no secure connection.*lakefs\.ca_bundle names"):
                self.client(server.url).repository()
            assert self.client(server.url, ca_bundle=str(bundle)).repository().id == "repo"
            for name in ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"):
                with monkeypatch.context() as environment:
                    environment.setenv(name, str(bundle))
                    assert self.client(server.url).repository().id == "repo"

    def test_must_be_a_file(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match=r"lakefs\.ca_bundle names .*gone.pem, which is no file"):
            self.client("https://127.0.0.1", ca_bundle=str(tmp_path / "gone.pem"))


class TestClocks:
    def test_every_date_is_noted_those_of_errors_too(self) -> None:
        answers = [
            refused(503, "a", Date="Sat, 21 Nov 2026 11:59:00 GMT"),
            refused(401, "b", Date="Sat, 21 Nov 2026 12:10:00 GMT"),
        ]
        with talking(*answers) as (client, _, _):
            with pytest.raises(AccessDenied):
                client.repository()
            assert client.server_clocks.earliest == timedelta(seconds=-60.25)
            assert client.server_clocks.latest == timedelta(seconds=599.75)

    @pytest.mark.parametrize("date", ["", "yesterday", "Sat, 21 Nov 2026 12:00:00 -0000"])
    def test_what_is_no_date_is_not_noted(self, date: str) -> None:
        with talking(said(GOOD["start_refs_dump"], Date=date)) as (client, _, _):
            client.start_refs_dump()
            assert client.server_clocks.earliest is None


class TestKeys:
    @pytest.mark.parametrize("status", [400, 401, 403, 404, 418, 429, 500, 501])
    def test_never_show_even_where_the_server_repeats_them(self, status: int, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        answer = refused(status, f"user {KEY_ID} with {SECRET} is\nrefused")
        with talking(answer, retries=1) as (client, _, _):
            with pytest.raises(LakeFSError) as raised:
                client.prepare_uncommitted(None)
            shown = "".join(traceback.format_exception(raised.value)) + repr(raised.value) + repr(client) + caplog.text
            assert "user *** with *** is refused" in str(raised.value)
            assert KEY_ID not in shown
            assert SECRET not in shown

    def test_are_sent_as_basic_authentication(self) -> None:
        with talking(said(GOOD["repository"])) as (client, server, _):
            client.repository()
            assert server.authorizations == ["Basic " + b64encode(f"{KEY_ID}:{SECRET}".encode()).decode()]


def test_the_sdk_is_imported_by_those_who_talk_only() -> None:
    code = "import sys, lakefs_gc_assets.lakefs.api.client; sys.exit('lakefs_sdk' in sys.modules)"
    root = Path(__file__).resolve().parents[3]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
