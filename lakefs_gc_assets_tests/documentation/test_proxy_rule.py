"""The proxy rule of docs/security.md: nginx refuses requests of other sites' pages that Dagster's webserver accepts."""

import http.client
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import quote

import dagster as dg
import pytest
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import EmptyWorkspaceTarget
from dagster_webserver.app import create_app_from_workspace_process_context
from starlette.testclient import TestClient

from lakefs_gc_assets_tests.harness.dagster_dev import PROJECT
from lakefs_gc_assets_tests.servers.free_ports import free_port

HOST = "gc.example.com"
OWN, OTHER = f"https://{HOST}", "https://evil.example"
MUTATION = 'mutation { setConcurrencyLimit(concurrencyKey: "%s", limit: 1) }'
IMAGE = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
FORM = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
FRAME = {**FORM, "Sec-Fetch-Dest": "iframe"}
UI = {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}
SOCKET = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "a" * 22}


def test_the_webserver_takes_mutations_that_any_page_can_send(tmp_path: Path) -> None:
    """Dagster blocks no such request, as the page says; once it blocks one, this test fails."""
    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
        with WorkspaceProcessContext(instance, EmptyWorkspaceTarget()) as workspace:
            client = TestClient(create_app_from_workspace_process_context(workspace))
            client.get("/graphql", params={"query": MUTATION % "by_get"}, headers=IMAGE)
            client.post("/graphql", params={"query": MUTATION % "without_a_body"}, headers=FORM)
            body = json.dumps({"query": MUTATION % "as_text"})
            client.post("/graphql", content=body, headers={**FORM, "Content-Type": "text/plain; x=application/json"})
        assert instance.event_log_storage.get_concurrency_keys() == {"by_get", "without_a_body", "as_text"}


@contextmanager
def answering() -> Iterator[int]:
    """The port of a server that answers 200 to everything."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_POST = do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


@contextmanager
def proxying(folder: Path) -> Iterator[int]:
    """The port of nginx with the documented rule, without TLS and login."""
    program = shutil.which("nginx")
    if program is None:
        pytest.skip("no nginx on this machine, and nothing else tells how it reads the rule")
    (rule,) = re.findall(r"```nginx\n(.*?)```", (PROJECT / "docs/security.md").read_text(), re.DOTALL)
    port = free_port()
    rule = re.sub(r"ssl_certificate.*|auth_request.*", "", rule).replace("listen 443 ssl", f"listen 127.0.0.1:{port}")
    with answering() as upstream:
        temporary = "".join(
            f"{kind}_temp_path {folder};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        file = folder / "nginx.conf"
        file.write_text(
            f"daemon off; master_process off; pid {folder}/pid; error_log stderr;\nevents {{}}\nhttp {{\n"
            f"access_log off;\n{temporary}upstream lakefs-gc-operators {{ server 127.0.0.1:{upstream}; }}\n{rule}\n}}\n"
        )
        process = subprocess.Popen([program, "-p", folder, "-c", file], env=os.environ)
        try:
            deadline = time.monotonic() + 900
            while status(port, "GET", "/", {}) == 0:
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
            yield port
        finally:
            process.terminate()
            process.wait()


def status(port: int, method: str, path: str, headers: dict[str, str]) -> int:
    """Status of the answer; 0 if no server listens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=900)
    try:
        connection.request(method, path, headers={"Host": HOST, **headers})
        return connection.getresponse().status
    except ConnectionError:
        return 0
    finally:
        connection.close()


def test_nginx_refuses_requests_of_other_sites(tmp_path: Path) -> None:
    query = f"/graphql?query={quote(MUTATION % 'x')}"
    ui, websocket = {**UI, "Origin": OWN}, {**UI, **SOCKET, "Sec-Fetch-Mode": "websocket"}
    accepted = [
        ("POST", "/graphql", ui),
        ("POST", "/graphql", {}),  # not from a browser, such as curl
        ("GET", "/graphql", {**websocket, "Origin": OWN}),
        ("GET", "/runs", FORM),  # a link, or the redirect after a login
        ("GET", "/runs", {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}),
        ("GET", "/index.js", UI),
    ]
    refused = [
        *(
            ("GET", path, headers)
            for path in (
                query,
                f"/x/..{query}",
                f"//{query[1:]}",
                query.replace("g", "%67", 1),
                query.replace("?", "/?"),
            )
            for headers in (IMAGE, FORM, {}, ui)
        ),
        ("HEAD", query, {}),
        ("POST", query, FORM),
        ("POST", query, {**FORM, "Origin": OTHER}),
        ("POST", query, {"Origin": OTHER}),  # over plain HTTP
        ("POST", query, {"Origin": "null"}),
        ("POST", "/graphql", {**UI, "Sec-Fetch-Site": "same-site", "Origin": f"https://other.{HOST}"}),
        ("POST", "/report_asset_materialization/sweeps", {**FORM, "Origin": OTHER}),
        ("GET", "/runs", FRAME),
        ("GET", "/graphql", {**websocket, "Sec-Fetch-Site": "cross-site", "Origin": OTHER}),
        ("GET", "/graphql", {**SOCKET, "Origin": OTHER}),
    ]
    with proxying(tmp_path) as port:
        for method, path, headers in accepted:
            assert status(port, method, path, headers) == 200, (method, path, headers)
        for method, path, headers in refused:
            assert status(port, method, path, headers) in (403, 405), (method, path, headers)
