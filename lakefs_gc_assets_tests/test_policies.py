"""The policy documents of docs/policies against every call that runs make of the store and of the lakeFS server."""

import fnmatch
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qs, unquote

import pytest

from lakefs_gc_assets.collector.arrow_engine import ArrowEngine
from lakefs_gc_assets.collector.forecast import forecast
from lakefs_gc_assets.collector.plan import Flow
from lakefs_gc_assets.embedded import bucket as buckets
from lakefs_gc_assets.embedded import demo, users
from lakefs_gc_assets.embedded.sample import Sample, make_sample_repository
from lakefs_gc_assets.embedded.server import EmbeddedServer
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.settings import Configuration, Loaded
from lakefs_gc_assets.storage.interface import KeepsVersions
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets_tests.arrow_runs import ArrowRuns
from lakefs_gc_assets_tests.s3_server import Request, S3Server
from lakefs_gc_assets_tests.stores import bucket, s3_server

__all__ = ["bucket", "s3_server"]

pytestmark = pytest.mark.slow
POLICIES = Path(__file__).parents[1] / "docs" / "policies"
COLLECTOR = "AKIACOLLECTOR"
_KEYS = re.compile(r"<Key>([^<]*)</Key>")
Call = tuple[str, str]
"""An action and the resource that it is about."""


def calls_of(request: Request) -> Iterator[Call]:
    """The actions of IAM that a request needs."""
    path, query = unquote(request.path).lstrip("/"), parse_qs(request.query, keep_blank_values=True)
    name, _, key = path.partition("/")
    if request.headers.get("x-amz-server-side-encryption") == "aws:kms":
        yield "kms:GenerateDataKey", request.headers["x-amz-server-side-encryption-aws-kms-key-id"]
    if "versions" in query:
        yield "s3:ListBucketVersions", f"{name}?{query['prefix'][0]}"
    elif "versionId" in query:
        yield {"DELETE": "s3:DeleteObjectVersion"}[request.method], path
    elif not key and request.method == "POST" and "delete" in query:
        yield from (("s3:DeleteObject", f"{name}/{key}") for key in _KEYS.findall(request.body.decode()))
    elif not key:
        assert request.method == "HEAD" or "prefix" in query, f"{request.method} {request.path}?{request.query}"
        # A look whether the bucket is there has no prefix, so a condition on one does not hold it back.
        yield "s3:ListBucket", f"{name}?{query['prefix'][0]}" if "prefix" in query else name
    elif request.method in ("GET", "HEAD"):
        yield "s3:GetObject", path
    elif request.method == "PUT":
        yield "s3:PutObject", path
        if source := request.headers.get("x-amz-copy-source"):
            yield "s3:GetObject", unquote(source).lstrip("/")
    elif request.method == "DELETE":
        yield "s3:DeleteObject", path
    else:
        raise AssertionError(f"{request.method} {request.path}?{request.query} has no action")


def rights(document: str, bucket: str, prefix: str, key: str = "") -> set[Call]:
    """What a document allows: actions and patterns of resources."""
    text = (POLICIES / f"{document}.json").read_text()
    text = text.replace("BUCKET", bucket).replace("PREFIX", prefix).replace('"KEY"', json.dumps(key))
    found = set()
    for statement in json.loads(text)["Statement"]:
        assert statement["Effect"] == "Allow"
        resource = statement["Resource"].removeprefix("arn:aws:s3:::")
        for prefixes in statement.get("Condition", {}).get("StringLikeIfExists", {}).values():
            [pattern] = prefixes
            resource = f"{resource}?{pattern}"
        found |= {(action, resource) for action in statement["Action"]}
    return found


def allows(right: Call, call: Call) -> bool:
    if right[0] == call[0] == "s3:ListBucket" and "?" not in call[1]:
        return right[1].partition("?")[0] == call[1]
    return right[0] == call[0] and fnmatch.fnmatchcase(call[1], right[1].replace("?", "[?]"))


@dataclass
class Watched:
    """A repository in a bucket, and what the collector asked of store and server."""

    server: EmbeddedServer
    sample: Sample
    s3: S3Server
    bucket: str
    prefix: str
    required: list[tuple[str, str]]

    def run(self, flow: Flow = Flow.CLEAN, **collection: Any) -> tuple[set[Call], set[str]]:
        """Makes a run; returns the calls of the store and the rights that lakeFS asked for."""
        return self._rights(lambda runs: runs.collect(flow), **collection)

    def forecast(self) -> tuple[set[Call], set[str]]:
        """The same of a forecast."""
        return self._rights(lambda runs: forecast.make(runs.open(), ArrowEngine(), print), wait_before_dump_seconds=0)

    def encrypted(self, key: str) -> set[Call]:
        """The calls of the store in a run of which everything that is written is encrypted by a key."""
        encryption = {"server_side_encryption": "aws:kms", "kms_key_id": key}
        calls, _ = self._rights(lambda runs: runs.collect(), encryption)
        # Whatever is read may have been written so.
        return calls | {("kms:Decrypt", key) for action, _ in calls if action == "s3:GetObject"}

    def _rights(
        self, work: Callable[[ArrowRuns], object], settings: Mapping[str, str] = MappingProxyType({}), **collection: Any
    ) -> tuple[set[Call], set[str]]:
        store = self.s3.settings().model_copy(update={"access_key_id": COLLECTOR, **settings})
        content = demo.configuration(self.server, self.sample.repository, store).model_dump()
        content["collection"] |= collection
        self.s3.requests.clear()
        self.required.clear()
        work(ArrowRuns(Loaded(Configuration.model_validate(content), {})))
        asked = [each for each in self.s3.requests if COLLECTOR in each.headers.get("authorization", "")]
        return {call for each in asked for call in calls_of(each)}, {action for _, action in self.required}


@pytest.fixture(scope="module")
def watched(s3_server: S3Server, bucket: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    required: list[tuple[str, str]] = []
    require = users.User.require

    def recorded(self: users.User, action: str) -> None:
        required.append((self.name, action))
        require(self, action)

    with pytest.MonkeyPatch.context() as patch:
        url = f"s3://{bucket}/policies"
        folder = tmp_path_factory.mktemp("lakefs")
        with buckets.server(folder, "oss", url, s3_server.settings()) as server:
            sample = make_sample_repository(server, objects=60)
            time.sleep(buckets.AGING.total_seconds())
            patch.setattr(users.User, "require", recorded)
            yield Watched(server, sample, s3_server, bucket, f"policies/{sample.repository}", required)


@pytest.mark.parametrize(
    ("document", "changes"),
    [
        ("s3-dry-run", {}),
        ("s3-sweep", {"sweep": True, "sweep_mode": "quarantine"}),
    ],
)
def test_runs_ask_the_store_for_what_its_document_allows_and_for_all_of_it(
    watched: Watched, document: str, changes: dict[str, Any]
) -> None:
    calls, _ = watched.run(**changes)

    allowed = rights(document, watched.bucket, watched.prefix)
    assert calls
    assert not [call for call in calls if not any(allows(right, call) for right in allowed)]
    assert not [right for right in allowed if not any(allows(right, call) for call in calls)]


def test_a_document_that_lacks_a_right_is_found(watched: Watched) -> None:
    calls, _ = watched.run()
    allowed = rights("s3-dry-run", watched.bucket, watched.prefix)

    for right in allowed:
        assert [call for call in calls if not any(allows(other, call) for other in allowed - {right})]


def test_a_sweep_needs_no_more_than_a_dry_run_and_deletes() -> None:
    dry, sweep = rights("s3-dry-run", "b", "p"), rights("s3-sweep", "b", "p")

    assert sweep - dry == {("s3:DeleteObject", "b/p/*")}
    assert dry <= sweep


def test_encrypted_runs_use_the_key_as_its_document_allows(watched: Watched) -> None:
    key = "arn:aws:kms:us-east-1:123456789012:key/one"
    calls = watched.encrypted(key)

    used = {call for call in calls if call[0].startswith("kms:")}
    assert used == rights("s3-kms", watched.bucket, watched.prefix, key)
    dry = rights("s3-dry-run", watched.bucket, watched.prefix)
    assert not [call for call in calls - used if not any(allows(right, call) for right in dry)]


def test_restoring_versions_asks_for_what_its_document_allows_and_for_all_of_it(s3_server: S3Server) -> None:
    name = s3_server.new_versioned_bucket()
    store = open_store(s3_server.settings(), Namespace.parse(f"s3://{name}/prefix"))
    store.put("data/slice/object", b"content")
    [deleted] = store.delete(["data/slice/object"])
    assert isinstance(store, KeepsVersions) and deleted.version_id
    s3_server.requests.clear()

    assert store.remove_delete_marker("data/slice/object", deleted.version_id)

    calls = {call for each in s3_server.requests for call in calls_of(each)}
    allowed = rights("s3-restore-versions", name, "prefix")
    assert not [call for call in calls if not any(allows(right, call) for right in allowed)]
    assert not [right for right in allowed if not any(allows(right, call) for call in calls)]


@pytest.mark.parametrize(("document", "flow"), [("lakefs-collect", Flow.CLEAN), ("lakefs-retention", Flow.UNIFIED)])
def test_runs_ask_lakefs_for_what_its_document_allows(watched: Watched, document: str, flow: Flow) -> None:
    _, required = watched.run(flow)

    assert required
    assert required - rights_of_lakefs(document) == set()


def test_a_forecast_needs_no_more_than_a_dry_run_by_retention_rules(watched: Watched) -> None:
    calls, required = watched.forecast()

    allowed = rights("s3-dry-run", watched.bucket, watched.prefix)
    assert calls and required
    assert not [call for call in calls if not any(allows(right, call) for right in allowed)]
    assert required - rights_of_lakefs("lakefs-retention") == set()


def rights_of_lakefs(document: str) -> set[str]:
    statements = json.loads((POLICIES / f"{document}.json").read_text())["statement"]
    return {action for statement in statements for action in statement["action"]}
