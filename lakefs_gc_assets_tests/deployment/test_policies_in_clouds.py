"""The policy documents for Google Cloud Storage and Azure, compared with every call of a run to an emulator.

Neither emulator checks permissions. So the required permissions of each call come from the services' documentation:
cloud.google.com/storage/docs/access-control/iam-json and learn.microsoft.com/rest/api/storageservices, "Permissions for
calling data operations".
"""

import fnmatch
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

import pytest

from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.extensions.playground.embedded.sample import Sample, make_sample_repository
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.settings import Configuration
from lakefs_gc_assets_tests.deployment.test_policies import made_or_why_not, once_old
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns
from lakefs_gc_assets_tests.servers.emulators import ACCOUNT, AzureServer, GcsServer, Response
from lakefs_gc_assets_tests.servers.s3_server import Request
from lakefs_gc_assets_tests.servers.stores import azure_container, azure_server, gcs_bucket, gcs_server

__all__ = ["azure_container", "azure_server", "gcs_bucket", "gcs_server"]

pytestmark = pytest.mark.slow
POLICIES = Path(__file__).parents[2] / "docs" / "policies"
Call = tuple[str, str]
"""A permission and its object: a name, `?` and a prefix for a listing, or nothing for the bucket."""
Right = tuple[str, str | None]
"""A permission and its limit: a pattern of names, after `?` for a listing, or None for no limit."""

_CONTAINERS = "Microsoft.Storage/storageAccounts/blobServices/containers"
_READ, _WRITE, _DELETE = (f"{_CONTAINERS}/blobs/{what}" for what in ("read", "write", "delete"))
_CLAUSE = re.compile(
    r"\(*!\(ActionMatches\{'(?P<action>[^']*)'\}(?:(?P<kind> AND(?: NOT)?) SubOperationMatches\{'Blob\.List'\})?\)\)"
    r" OR \((?P<limits>[^()]*)\)*"
)
_OLD_LAYOUT = "?" * 32
_PART = re.compile(r"^DELETE (\S+) HTTP/1\.1\r?$", re.MULTILINE)
_NAMED = re.compile(r'\{"name": ?"([^"]*)"|"name": ?"([^"]*)"')


def google_calls(request: Request, status: int) -> Iterator[Call]:
    """The IAM permissions that a request to Google Cloud Storage needs, given the status of its answer."""
    segments = request.path.strip("/").split("/")
    query = {name: values[0] for name, values in parse_qs(request.query, keep_blank_values=True).items()}
    match request.method, segments:
        case "POST", ["batch", "storage", "v1"]:
            for target in _PART.findall(request.body.decode()):
                yield "storage.objects.delete", unquote(target.rpartition("/o/")[2])
        case "POST", ["upload", "storage", "v1", "b", _, "o"]:
            named = _NAMED.search(request.body.decode("latin-1"))
            assert named is not None
            yield from _written(named[1] or named[2], query)
        case "POST", ["storage", "v1", "b", _, "o", source, "rewriteTo", "b", _, "o", target]:
            yield "storage.objects.get", unquote(source)
            yield from _written(unquote(target), query)
        case "GET", ["storage", "v1", "b", _]:
            yield "storage.buckets.get", ""
        case "GET", ["storage", "v1", "b", _, "o"] | [_]:
            yield "storage.objects.list", f"?{query['prefix']}"
        case "GET", ["storage", "v1", "b", _, "o", name] | ["download", "storage", "v1", "b", _, "o", name]:
            yield "storage.objects.get", unquote(name)
        case "GET" | "HEAD", [_, *names]:
            yield "storage.objects.get", unquote("/".join(names))
        case _:
            raise AssertionError(f"{request.method} {request.path}?{request.query} needs what nobody knows")


def _written(name: str, query: dict[str, str]) -> Iterator[Call]:
    yield "storage.objects.create", name
    if query.get("ifGenerationMatch", "0") != "0":
        yield "storage.objects.delete", name


def azure_calls(request: Request, status: int) -> Iterator[Call]:
    """The actions of Azure roles that a request to the blob service needs, given the status of its answer."""
    _, _, *names = unquote(request.path).strip("/").split("/")
    name = "/".join(names)
    query = {name: values[0] for name, values in parse_qs(request.query, keep_blank_values=True).items()}
    match request.method, query.get("comp"):
        case "POST", "batch":
            yield f"{_CONTAINERS}/write", ""
            for target in _PART.findall(request.body.decode()):
                yield _DELETE, unquote(target.partition("?")[0]).strip("/").split("/", 2)[-1].removeprefix("/")
        case "GET", "list":
            yield _READ, f"?{query['prefix']}"
        case "GET" | "HEAD", None:
            yield _READ, name
        case "PUT", None:
            yield _WRITE, name
            if source := request.headers.get("x-ms-copy-source"):
                yield _READ, unquote(source).partition(f"/{ACCOUNT}/")[2].partition("/")[2]
        case "DELETE", None:
            yield _DELETE, name
        case _:
            raise AssertionError(f"{request.method} {request.path}?{request.query} needs what nobody knows")


def google_rights(document: str, prefix: str) -> set[Right]:
    """Permissions that a document grants."""
    content = _read(document, prefix)
    found: set[Right] = set()
    for binding in content["bindings"]:
        role = content["roles"][binding["role"].rpartition("/")[2]]
        expression = binding.get("condition", {}).get("expression", "")
        limit = re.search(r'startsWith\("(?:projects/_/buckets/BUCKET/objects/)?([^"]*)"\)$', expression)
        assert limit or not expression
        found |= {
            (permission, f"{'?' if permission.endswith('.list') else ''}{limit[1]}*" if limit else None)
            for permission in role["includedPermissions"]
        }
    return found


def azure_rights(document: str, prefix: str) -> set[Right]:
    """Permissions that a document grants."""
    content = _read(document, prefix)
    roles = {role["Name"]: role for role in content["roles"]}
    found: set[Right] = set()
    for assignment in content["assignments"]:
        role, condition = roles[assignment["role"]], assignment["condition"]
        clauses = [_CLAUSE.fullmatch(clause) for clause in condition.split(") AND (")]
        found |= {(action, None) for action in role["Actions"]}
        for clause in clauses:
            assert clause, f"a condition that nobody here reads: {condition}"
            [action], kind, limits = role["DataActions"], clause["kind"] or "", clause["limits"].split(" OR ")
            assert clause["action"] == action
            # Reading and listing are one action, with a condition for each.
            assert (kind in (" AND NOT", " AND") and len(clauses) == 2) if action == _READ else not kind
            attribute = (
                f"@Request[{_CONTAINERS}/blobs:prefix]" if kind == " AND" else f"@Resource[{_CONTAINERS}/blobs:path]"
            )
            for limit in limits:
                stated, like, name = limit.split(" ")
                assert (stated, like) == (attribute, "StringLike")
                found.add((action, f"{'?' if kind == ' AND' else ''}{name[1:-1]}"))
    return found


def _read(document: str, prefix: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((POLICIES / f"{document}.json").read_text().replace("PREFIX", prefix))
    return content


def allows(right: Right, call: Call) -> bool:
    """True if a permission allows a call."""
    permission, limit = right
    if permission != call[0] or limit is None:
        return permission == call[0]
    is_listing = call[1].startswith("?")
    return is_listing == limit.startswith("?") and fnmatch.fnmatchcase(call[1][is_listing:], limit[is_listing:])


@dataclass
class Watched:
    """A repository in a cloud; lakeFS and the collector each reach it through a proxy.

    Attributes:
        asked: the collector's requests, each with the status of its answer.
        old_at: when all its objects may be collected, by the clock of `time.monotonic`.
    """

    server: EmbeddedServer
    sample: Sample
    proxy: GcsServer | AzureServer
    calls_of: Callable[[Request, int], Iterator[Call]]
    rights: Callable[[str, str], set[Right]]
    asked: list[tuple[Request, int]] = field(default_factory=list)
    old_at: float = field(default_factory=lambda: time.monotonic() + demo.BUCKET_AGING.total_seconds())

    def __post_init__(self) -> None:
        def note(request: Request, response: Response) -> Response:
            self.asked.append((request, response.status))
            return response

        self.proxy.change = note

    def rights_of(self, document: str) -> set[Right]:
        return self.rights(document, f"policies/{self.sample.repository}")

    def calls(self, work: Callable[[ArrowRuns], object], **collection: Any) -> set[Call]:
        """Calls that the collector makes during some work."""
        content = demo.configuration(self.server, self.sample.repository, self.proxy.settings()).model_dump()
        content["collection"] |= {"quarantine_days": 0, "max_candidate_share": 1, **collection}
        self.asked.clear()
        work(ArrowRuns(Loaded(Configuration.model_validate(content), {})))
        return {call for request, status in self.asked for call in self.calls_of(request, status)}


def purge(runs: ArrowRuns) -> None:
    """Empties the quarantine."""
    # Stores report times in whole seconds, so an object moved within the last second is not due yet.
    time.sleep(1)
    assert {str(each.fate) for each in runs.purge()} == {"purged"}


@pytest.fixture(scope="module")
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Watched | str]]:
    """A repository in each cloud, or the reason why there is none; all age at the same time."""
    watches = {"gcs": _google, "azure": _azure}
    with ExitStack() as stack:

        def make(name: str) -> Watched:
            return watches[name](request, tmp_path_factory.mktemp(name), stack)

        yield made_or_why_not({name: partial(make, name) for name in watches})


def _google(request: pytest.FixtureRequest, folder: Path, stack: ExitStack) -> Watched:
    server, name = request.getfixturevalue("gcs_server"), request.getfixturevalue("gcs_bucket")
    lakefs = stack.enter_context(demo.open_server(folder, "oss", f"gs://{name}/policies", server.settings()))
    proxy = GcsServer(server.upstream, folder)
    stack.callback(proxy.stop)
    return Watched(lakefs, make_sample_repository(lakefs, objects=60), proxy, google_calls, google_rights)


def _azure(request: pytest.FixtureRequest, folder: Path, stack: ExitStack) -> Watched:
    server, name = request.getfixturevalue("azure_server"), request.getfixturevalue("azure_container")
    url = f"https://{ACCOUNT}.blob.core.windows.net/{name}/policies"
    lakefs = stack.enter_context(demo.open_server(folder, "oss", url, server.settings()))
    proxy = AzureServer(server.upstream)
    stack.callback(proxy.stop)
    return Watched(lakefs, make_sample_repository(lakefs, objects=60), proxy, azure_calls, azure_rights)


@pytest.fixture(params=["gcs", "azure"])
def watched(request: pytest.FixtureRequest, made: dict[str, Watched | str]) -> Watched:
    return once_old(made[request.param])


def beyond(calls: set[Call], allowed: set[Right]) -> list[Call]:
    """Calls that no permission allows."""
    return sorted(call for call in calls if not any(allows(right, call) for right in allowed))


def idle(calls: set[Call], allowed: set[Right]) -> list[Right]:
    """Permissions that no call needs."""
    return [right for right in allowed if not any(allows(right, call) for call in calls)]


def test_runs_ask_for_what_the_documents_allow_and_for_all_of_it(
    watched: Watched, request: pytest.FixtureRequest
) -> None:
    cloud = request.node.callspec.params["watched"]
    dry, sweep = watched.rights_of(f"{cloud}-dry-run"), watched.rights_of(f"{cloud}-sweep")
    sweep = {right for right in sweep if not (right[1] or "").endswith(_OLD_LAYOUT)}

    asked = watched.calls(ArrowRuns.collect)
    assert (beyond(asked, dry), idle(asked, dry)) == ([], [])
    for right in dry:
        assert beyond(asked, dry - {right}), f"{right} would not be missed"

    moved = watched.calls(ArrowRuns.collect, sweep=True, sweep_mode="quarantine")
    emptied = watched.calls(purge)
    assert (beyond(moved | emptied, sweep), idle(moved | emptied, sweep)) == ([], [])
    assert dry < sweep


def test_a_dry_run_may_delete_nothing_of_the_repository() -> None:
    for name, rights in (("gcs", google_rights), ("azure", azure_rights)):
        deletes = {limit for what, limit in rights(f"{name}-dry-run", "p") if "delete" in what}
        assert deletes <= {"p/_lakefs/retention/gc/*"}
        writes = {limit for what, limit in rights(f"{name}-sweep", "p") if what.endswith(("create", "blobs/write"))}
        assert writes == {"p/_lakefs/retention/gc/*"}


@pytest.mark.parametrize(
    ("key", "is_allowed"),
    [
        ("p/data/gq4ihcm2ql5cd7fp34fg/cvgbj7f0fmkc73fqd64g", True),
        ("p/_lakefs/retention/gc/quarantine/run/data/a", True),
        (f"p/_lakefs/{'0' * 64}", False),
        ("p/_lakefs/refs_manifest.json", False),
        ("p/_lakefs/retention/rules/config.json", False),
        ("p/dummy", False),
        ("other/data/gq4ihcm2ql5cd7fp34fg/cvgbj7f0fmkc73fqd64g", False),
    ],
)
def test_a_sweep_may_delete_data_and_its_own_files_and_nothing_of_lakefs(key: str, is_allowed: bool) -> None:
    for name, rights, delete in (("gcs", google_rights, "storage.objects.delete"), ("azure", azure_rights, _DELETE)):
        assert any(allows(right, (delete, key)) for right in rights(f"{name}-sweep", "p")) is is_allowed


def test_on_azure_nothing_elsewhere_is_read_or_listed() -> None:
    for document in ("azure-dry-run", "azure-sweep"):
        found = azure_rights(document, "p")
        assert {limit for what, limit in found if what == _READ} == {"p/*", "?p/*"}
        for call in ((_READ, "other/data/a"), (_READ, "?other/"), (_READ, "?"), (_READ, "?p")):
            assert not any(allows(right, call) for right in found)
