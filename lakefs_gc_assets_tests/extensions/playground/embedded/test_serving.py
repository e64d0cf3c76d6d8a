"""Serving of any call: links, bodies, connections."""

import http.client
from pathlib import Path
from socket import create_connection
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets_tests.extensions.playground.embedded import clients

_BRANCH = "/repositories/repo/branches/main"
_OTHER = {"name": "other", "storage_namespace": "local://other"}
_RULES = "/repositories/repo/settings/gc_rules"


def test_links_to_objects_within_and_outside_of_the_namespace(server: EmbeddedServer) -> None:
    server.core.blockstore.create("local://outside")
    server.core.blockstore.put("local://outside", "x", b"outside")
    body = {"physical_address": "local://outside/x", "checksum": "c", "size_bytes": 7}
    assert clients.call(server, "PUT", _BRANCH + "/objects", body, path="outside")[0] == 201
    clients.upload(server, "inside", b"inside")
    objects = clients.sdk(server).objects_api
    listed = {item.path: item for item in objects.list_objects("repo", "main", presign=True).results}
    for name in ("inside", "outside"):
        assert objects.get_object("repo", "main", name, presign=True) == name.encode()
        for described in (objects.stat_object("repo", "main", name, presign=True), listed[name]):
            assert described.physical_address_expiry is not None
            with urlopen(described.physical_address) as answer:
                assert answer.read() == name.encode()


def test_a_link_with_a_wrong_signature_is_refused(server: EmbeddedServer) -> None:
    for signature in ("", "0" * 64, "é"):
        answer = clients.call(server, "GET", "/_embedded/objects/repo/x", signature=signature, expires="1")
        assert answer == (403, {"message": "SignatureDoesNotMatch"})


def test_a_link_expires(server: EmbeddedServer) -> None:
    clients.upload(server, "a", b"content")
    _, stats = clients.call(server, "GET", "/repositories/repo/refs/main/objects/stat", path="a", presign="true")
    link = stats["physical_address"]
    clients.call(server, "POST", "/_embedded/clock/advance", {"seconds": 890})
    with urlopen(link) as answer:
        assert answer.read() == b"content"
    clients.call(server, "POST", "/_embedded/clock/advance", {"seconds": 20})
    with pytest.raises(HTTPError) as error:
        urlopen(link)
    assert error.value.code == 403


def test_a_collected_object_is_gone_for_every_reader(server: EmbeddedServer) -> None:
    address = clients.upload(server, "a", b"content")
    _, stats = clients.call(server, "GET", "/repositories/repo/refs/main/objects/stat", path="a", presign="true")
    (server.objects_folder / "repo" / address).unlink()
    objects = "/repositories/repo/refs/main/objects"
    assert clients.call(server, "GET", objects, path="a") == (410, {"message": "No data"})
    assert clients.call(server, "HEAD", objects, path="a")[0] == 410
    copy = clients.call(server, "POST", _BRANCH + "/objects/copy", {"src_path": "a"}, dest_path="b")
    assert copy == (410, {"message": "No data"})
    with pytest.raises(HTTPError) as error:
        urlopen(stats["physical_address"])
    assert error.value.code == 404


def test_a_body_may_come_in_pieces(server: EmbeddedServer) -> None:
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=900)
    headers = {"Authorization": server.basic_authorization}
    for _ in range(2):
        connection.request("POST", f"/api/v1{_BRANCH}/objects?path=a", iter((b"one", b"", b"two" * 5000)), headers)
        response = connection.getresponse()
        response.read()
        assert (response.status, response.getheader("Content-Type")) == (201, "application/json")
    connection.close()
    assert clients.call(server, "GET", "/repositories/repo/refs/main/objects", path="a") == (
        200,
        b"one" + b"two" * 5000,
    )


def test_at_most_a_thousand_paths_are_deleted_at_once(server: EmbeddedServer) -> None:
    clients.upload(server, "a", b"x")
    paths = ["a", *(f"none/{number}" for number in range(999))]
    assert clients.call(server, "POST", _BRANCH + "/objects/delete", {"paths": [*paths, "b"]})[0] == 500
    assert clients.call(server, "GET", "/repositories/repo/refs/main/objects", path="a")[0] == 200
    assert clients.call(server, "POST", _BRANCH + "/objects/delete", {"paths": paths}) == (200, {"errors": []})
    assert clients.call(server, "GET", "/repositories/repo/refs/main/objects", path="a")[0] == 404


def test_connections_end_with_the_server(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server:
        connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=900)
        connection.request("GET", "/_health")
        assert connection.getresponse().read() == b'{"status":"ok"}\n'
        opened = connection.sock
    assert opened.recv(1) == b""
    connection.close()


def test_a_form_may_have_other_parts_than_the_content(server: EmbeddedServer) -> None:
    form = (
        b'--b\r\ncontent-disposition: form-data; name="other"\r\n\r\nwrong\r\n'
        b'--b\r\ncontent-disposition: form-data; name="content"; filename="f"\r\n\r\nright\r\n--b--\r\n'
    )
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=900)
    headers = {"Authorization": server.basic_authorization, "Content-Type": "multipart/form-data; boundary=b"}
    connection.request("POST", f"/api/v1{_BRANCH}/objects?path=form", form, headers)
    assert connection.getresponse().status == 201
    connection.close()
    assert clients.call(server, "GET", "/repositories/repo/refs/main/objects", path="form") == (200, b"right")


@pytest.mark.parametrize(
    ("method", "path", "body", "said"),
    [
        ("POST", "/repositories", {"name": 5, "storage_namespace": "local://other"}, "/name"),
        ("POST", "/repositories", {"name": "Upper", "storage_namespace": "local://other"}, "regular expression"),
        ("POST", "/repositories", {**_OTHER, "default_branch": "a/b"}, "invalid value"),
        ("POST", "/repositories", {**_OTHER, "storage_namespace": "local://../outside"}, "local://../outside"),
        ("POST", "/repositories/repo/branches", {"name": "a b", "source": "main"}, "invalid value"),
        ("POST", f"{_BRANCH}/commits", {"message": None}, "/message"),
        ("POST", f"{_BRANCH}/commits", {"message": "m", "allow_empty": 1}, "/allow_empty"),
        ("POST", f"{_BRANCH}/commits", {"message": "m", "date": True}, "/date"),
        ("POST", f"{_BRANCH}/commits", {"message": "m", "metadata": []}, "/metadata"),
        ("POST", f"{_BRANCH}/objects/delete", {"paths": "a"}, "/paths"),
        ("POST", f"{_BRANCH}/commits", {"message": "m", "metadata": {"k": 1}}, "/metadata"),
        ("POST", f"{_BRANCH}/commits", {"message": "m", "date": 1 << 63}, "/date"),
        ("POST", f"{_BRANCH}/commits", b'{"message": "\\ud800"}', "failed to decode"),
        ("POST", f"{_BRANCH}/commits", b"\xff", "failed to decode"),
        ("POST", f"{_BRANCH}/objects/delete", {"paths": [None]}, "paths"),
        ("POST", f"{_BRANCH}/import", {"paths": [{"type": "object"}], "commit": {"message": "m"}}, '"path" is missing'),
        ("POST", f"{_BRANCH}/import", {"paths": ["x"], "commit": {"message": "m"}}, "must be an object"),
        ("PUT", _RULES, {"default_retention_days": "x", "branches": []}, "/default_retention_days"),
        ("PUT", _RULES, {"default_retention_days": 1, "branches": "x"}, "/branches"),
        ("PUT", _RULES, {"default_retention_days": 1, "branches": [{"branch_id": "main"}]}, "retention_days"),
        ("POST", "/_embedded/clock/advance", {"seconds": "1"}, "/seconds"),
        ("POST", "/_embedded/clock/advance", {"seconds": 1e300}, "cannot be moved"),
        ("POST", "/_embedded/clock/advance", {"seconds": 1e12}, "cannot be moved"),
        ("POST", f"{_BRANCH}/commits", [], "must be an object"),
        ("POST", f"{_BRANCH}/commits", {}, '"message" is missing'),
    ],
)
def test_a_body_of_another_form_is_refused(
    server: EmbeddedServer, method: str, path: str, body: object, said: str
) -> None:
    status, answer = clients.call(server, method, path, body, path="a")

    assert status == 400
    assert said in answer["message"]


def test_what_is_no_text_is_refused_or_not_found(server: EmbeddedServer) -> None:
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=900)
    for path, status in (
        ("/repositories/%ff", 404),
        ("/repositories/repo/refs/%ff/objects?path=a", 404),
        ("/repositories/repo/refs/main/objects?path=%ff", 404),
        (f"{_BRANCH}/import?id=%ff", 404),
    ):
        connection.request("GET", f"/api/v1{path}", headers={"Authorization": server.basic_authorization})
        response = connection.getresponse()
        response.read()
        assert response.status == status, path
    connection.close()


def test_other_machines_do_not_reach_the_server(tmp_path: Path) -> None:
    """It guards no secret like a production server's, and the playground's secret is in its source."""
    with EmbeddedServer(tmp_path) as server:
        url = urlsplit(server.url)
        assert url.hostname == "127.0.0.1" and url.port is not None
        # Another address of this machine: a server that listened on all addresses would answer there.
        with pytest.raises(ConnectionRefusedError):
            create_connection(("127.0.0.2", url.port), timeout=5)
