"""The policy documents of docs/policies, compared with every call that runs make to the store and the lakeFS server."""

import fnmatch
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qs, unquote

import pytest

from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.quarantine import restore
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.extensions.check import unneeded_metadata
from lakefs_gc_assets.extensions.forecast import forecast
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.extensions.playground.embedded import core
from lakefs_gc_assets.extensions.playground.embedded.sample import Sample, make_sample_repository
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.settings import Configuration
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns
from lakefs_gc_assets_tests.servers.s3_server import Request, S3Server
from lakefs_gc_assets_tests.servers.stores import bucket, s3_server

__all__ = ["bucket", "s3_server"]

pytestmark = pytest.mark.slow
POLICIES = Path(__file__).parents[2] / "docs" / "policies"
COLLECTOR = "AKIACOLLECTOR"
_KEYS = re.compile(r"<Key>([^<]*)</Key>")
Call = tuple[str, str]
"""An action, and the resource it applies to."""


class GrowsOld(Protocol):
    """A repository whose objects may all be collected from a moment of `time.monotonic` on."""

    @property
    def old_at(self) -> float:
        """The moment from which they may."""
        ...


Made = TypeVar("Made", bound=GrowsOld)


def made_or_why_not(makers: Mapping[str, Callable[[], Made]]) -> dict[str, Made | str]:
    """The makers' repositories by the name of their cloud, or the reason why that cloud is skipped."""
    found: dict[str, Made | str] = {}
    for name, make in makers.items():
        try:
            found[name] = make()
        except pytest.skip.Exception as reason:
            found[name] = str(reason)
    return found


def once_old(found: Made | str) -> Made:
    """Returns the repository as soon as it is old enough. Skips the test if there is none."""
    if isinstance(found, str):
        pytest.skip(found)
    time.sleep(max(found.old_at - time.monotonic(), 0))
    return found


def calls_of(request: Request) -> Iterator[Call]:
    """The IAM actions that a request needs."""
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
        # A check that the bucket exists has no prefix, so a condition on the prefix does not deny it.
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
    """Permissions in a document: actions and resource patterns."""
    text = (POLICIES / f"{document}.json").read_text()
    text = text.replace("BUCKET", bucket).replace("PREFIX", prefix).replace('"KEY"', json.dumps(key))
    found = set()
    for statement in json.loads(text)["Statement"]:
        assert statement["Effect"] == "Allow"
        resources = statement["Resource"] if isinstance(statement["Resource"], list) else [statement["Resource"]]
        names = [resource.removeprefix("arn:aws:s3:::") for resource in resources]
        for prefixes in statement.get("Condition", {}).get("StringLikeIfExists", {}).values():
            [pattern] = prefixes
            names = [f"{name}?{pattern}" for name in names]
        found |= {(action, name) for action in statement["Action"] for name in names}
    return found


def allows(right: Call, call: Call) -> bool:
    if right[0] == call[0] == "s3:ListBucket" and "?" not in call[1]:
        return right[1].partition("?")[0] == call[1]
    # In a right to list, `?` begins the prefix; elsewhere it is IAM's wildcard for one character.
    pattern = right[1].replace("?", "[?]") if right[0].startswith("s3:ListBucket") else right[1]
    return right[0] == call[0] and fnmatch.fnmatchcase(call[1], pattern)


@dataclass
class Watched:
    """A repository in a bucket, and the collector's calls to store and server.

    Attributes:
        old_at: when all its objects may be collected, by the clock of `time.monotonic`.
    """

    server: EmbeddedServer
    sample: Sample
    s3: S3Server
    bucket: str
    prefix: str
    required: list[tuple[str, str]]
    old_at: float = field(default_factory=lambda: time.monotonic() + demo.BUCKET_AGING.total_seconds())

    def run(self, flow: Flow = Flow.CLEAN, **collection: Any) -> tuple[set[Call], set[str]]:
        """Makes a run; returns its calls to the store and the permissions that lakeFS checked."""
        return self.rights_asked(lambda runs: runs.collect(flow), **collection)

    def forecast(self) -> tuple[set[Call], set[str]]:
        """The same for a forecast."""
        return self.rights_asked(
            lambda runs: forecast.make(runs.open(), LocalEngine(), print), wait_before_dump_seconds=0
        )

    def encrypted(self, key: str) -> set[Call]:
        """Calls to the store in a run that encrypts everything it writes with a key."""
        encryption = {"server_side_encryption": "aws:kms", "kms_key_id": key}
        calls, _ = self.rights_asked(lambda runs: runs.collect(), encryption)
        # Anything that is read may have been encrypted.
        return calls | {("kms:Decrypt", key) for action, _ in calls if action == "s3:GetObject"}

    def calls(self, work: Callable[[ArrowRuns], object], **collection: Any) -> set[Call]:
        """Calls to the store during any work."""
        return self.rights_asked(work, quarantine_days=0, max_candidate_share=1, **collection)[0]

    def rights(self, *documents: str) -> set[Call]:
        """Permissions that documents grant for this repository."""
        return {right for document in documents for right in rights(document, self.bucket, self.prefix)}

    def rights_asked(
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


@contextmanager
def watching(s3: S3Server, bucket: str, folder: Path) -> Iterator[Watched]:
    """A repository whose objects may all be collected soon, with all calls recorded."""
    required: list[tuple[str, str]] = []
    require = core.User.require

    def recorded(self: core.User, action: str) -> None:
        required.append((self.name, action))
        require(self, action)

    with (
        pytest.MonkeyPatch.context() as patch,
        demo.open_server(folder, "oss", f"s3://{bucket}/policies", s3.settings()) as server,
    ):
        sample = make_sample_repository(server, objects=60)
        patch.setattr(core.User, "require", recorded)
        yield Watched(server, sample, s3, bucket, f"policies/{sample.repository}", required)


@pytest.fixture(scope="module")
def made(
    s3_server: S3Server, bucket: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Watched, Watched]]:
    """A repository in a bucket without versions and one in a bucket with versions; both age at the same time."""
    with ExitStack() as stack:
        names = (bucket, s3_server.new_versioned_bucket())
        plain, versioned = (
            stack.enter_context(watching(s3_server, name, tmp_path_factory.mktemp("lakefs"))) for name in names
        )
        yield plain, versioned


@pytest.fixture
def watched(made: tuple[Watched, Watched]) -> Watched:
    return once_old(made[0])


@pytest.fixture
def versioned(made: tuple[Watched, Watched]) -> Watched:
    return once_old(made[1])


def beyond(calls: set[Call], allowed: set[Call]) -> list[Call]:
    """Calls that no permission allows."""
    return sorted(call for call in calls if not any(allows(right, call) for right in allowed))


def idle(calls: set[Call], allowed: set[Call]) -> list[Call]:
    """Permissions that no call needs."""
    return sorted(right for right in allowed if not any(allows(right, call) for call in calls))


def test_dry_runs_ask_for_what_their_documents_allow_and_the_store_for_all_of_it(
    watched: Watched,
) -> None:
    calls, required = watched.run()

    allowed = watched.rights("s3-dry-run")
    assert (beyond(calls, allowed), idle(calls, allowed)) == ([], [])
    for right in allowed:
        assert beyond(calls, allowed - {right}), f"{right} would not be missed"
    assert required and required - rights_of_lakefs("lakefs-collect") == set()


def test_sweeps_and_purges_ask_the_store_for_what_their_document_allows_and_for_all_of_it(watched: Watched) -> None:
    allowed = watched.rights("s3-sweep")
    swept: list[Report] = []
    moved = watched.calls(lambda runs: swept.append(runs.collect()), sweep=True, sweep_mode="quarantine")
    old_layout = ("s3:DeleteObject", f"{watched.bucket}/{watched.prefix}/{'?' * 32}")
    allowed.remove(old_layout)
    assert (beyond(moved, allowed), idle(moved, allowed)) == ([], [])
    of_data = ("s3:DeleteObject", f"{watched.bucket}/{watched.prefix}/data/*")

    fates: list[str] = []

    def bring_one_back(runs: ArrowRuns) -> None:
        found = restore.plan_restore(runs.open(), swept[0].run_id, (), pytest.fail)
        fates.extend(str(each.fate) for each in runs.restore(swept[0].run_id, found["address"][0].as_py()))

    restored = watched.calls(bring_one_back)
    (written,) = beyond(restored, allowed)
    # A restore deletes nothing, not even copies.
    deletes = {right for right in allowed if right[0] == "s3:DeleteObject"}
    assert fates == ["restored"] and idle(restored, allowed - deletes) == []
    assert written[0] == "s3:PutObject" and written[1].startswith(f"{watched.bucket}/{watched.prefix}/data/")

    fates.clear()
    # Servers report times in whole seconds, so an object moved within the last second is not due yet.
    time.sleep(1)
    purged = watched.calls(lambda runs: fates.extend(str(each.fate) for each in runs.purge()))
    assert set(fates) == {"purged"}
    assert (beyond(purged, allowed), idle(purged, allowed - {of_data})) == ([], [])
    for right in allowed:
        assert beyond(moved | purged, allowed - {right}), f"{right} would not be missed"


def test_a_sweep_needs_no_more_than_a_dry_run_and_deletes() -> None:
    dry, sweep = rights("s3-dry-run", "b", "p"), rights("s3-sweep", "b", "p")

    resources = {"b/p/data/*", "b/p/_lakefs/retention/gc/*", f"b/p/{'?' * 32}"}
    assert sweep - dry == {("s3:DeleteObject", resource) for resource in resources}
    assert dry <= sweep


@pytest.mark.parametrize(
    ("key", "is_allowed"),
    [
        ("data/gq4ihcm2ql5cd7fp34fg/cvgbj7f0fmkc73fqd64g", True),
        ("data/!ab/c/gq4ihcm2ql5cd7fp34fg/cvgbj7f0fmkc73fqd64g", True),
        ("0123456789abcdef0123456789abcdef", True),
        ("_lakefs/retention/gc/quarantine/run/data/a", True),
        (f"_lakefs/{'0' * 64}", False),
        ("_lakefs/refs_manifest.json", False),
        ("_lakefs/retention/rules/config.json", False),
        ("dummy", False),
    ],
)
def test_a_sweep_may_delete_data_and_its_own_files_and_nothing_of_lakefs(key: str, is_allowed: bool) -> None:
    call = ("s3:DeleteObject", f"b/p/{key}")

    assert any(allows(right, call) for right in rights("s3-sweep", "b", "p")) is is_allowed


def test_encrypted_runs_use_the_key_as_its_document_allows(watched: Watched) -> None:
    key = "arn:aws:kms:us-east-1:123456789012:key/one"
    calls = watched.encrypted(key)

    used = {call for call in calls if call[0].startswith("kms:")}
    assert used == rights("s3-kms", watched.bucket, watched.prefix, key)
    assert beyond(calls - used, watched.rights("s3-dry-run")) == []


def test_restoring_versions_asks_for_what_its_documents_allow_and_for_all_of_it(versioned: Watched) -> None:
    swept: list[Report] = []
    calls = versioned.calls(lambda runs: swept.append(runs.collect()), sweep=True)
    assert beyond(calls, versioned.rights("s3-sweep")) == []
    fates: list[str] = []

    calls = versioned.calls(lambda runs: fates.extend(str(each.fate) for each in runs.restore(swept[0].run_id)))

    allowed = versioned.rights("s3-dry-run", "s3-restore-versions")
    assert set(fates) == {"restored"}
    assert (beyond(calls, allowed), idle(calls, allowed)) == ([], [])
    for right in allowed:
        assert beyond(calls, allowed - {right}), f"{right} would not be missed"


def test_acts_on_metadata_ask_for_what_their_document_allows_and_for_all_of_it(
    made: tuple[Watched, Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched, other = map(once_old, made)
    client = watched.s3.client()
    for name in _files_of_commits(other) - _files_of_commits(watched):
        client.copy_object(
            Bucket=watched.bucket,
            Key=f"{watched.prefix}/_lakefs/{name}",
            CopySource={"Bucket": other.bucket, "Key": f"{other.prefix}/_lakefs/{name}"},
        )
    monkeypatch.setattr(unneeded_metadata, "MIN_AGE", timedelta())
    time.sleep(demo.BUCKET_AGING.total_seconds())
    fates = list[unneeded_metadata.FileFate]()

    def act(runs: ArrowRuns) -> None:
        opened, engine = runs.open(), LocalEngine()
        first = unneeded_metadata.list_movable(opened, engine, print)
        fates.extend(each.fate for each in unneeded_metadata.move(opened, engine, first, "mover", print, print))
        fates.extend(each.fate for each in unneeded_metadata.restore(opened, "restorer", print))
        # Times of servers are whole seconds.
        time.sleep(2)
        fates.extend(each.fate for each in unneeded_metadata.purge(opened, engine, "purger", print, print))

    waits = {"wait_before_dump_seconds": 0, "wait_before_recheck_seconds": 0}
    calls = watched.calls(act, keep_old_unnamed_ranges=False, **waits)

    allowed = watched.rights("s3-metadata")
    assert {"moved to quarantine", "put back", "purged"} <= set(fates)
    assert (beyond(calls, allowed), idle(calls, allowed)) == ([], [])
    for right in allowed:
        assert beyond(calls, allowed - {right}), f"{right} would not be missed"


def _files_of_commits(watched: Watched) -> set[str]:
    """Names of files that a server wrote below `_lakefs/`."""
    prefix = f"{watched.prefix}/_lakefs/"
    listed = watched.s3.client().list_objects_v2(Bucket=watched.bucket, Prefix=prefix, Delimiter="/")
    names = {each["Key"].removeprefix(prefix) for each in listed["Contents"]}
    return {name for name in names if len(name) == 64}


def test_runs_by_retention_rules_ask_lakefs_for_what_its_document_allows(watched: Watched) -> None:
    _, required = watched.run(Flow.UNIFIED)

    assert required and required - rights_of_lakefs("lakefs-retention") == set()


def test_a_forecast_needs_no_more_than_a_dry_run_by_retention_rules(watched: Watched) -> None:
    calls, required = watched.forecast()

    assert calls and required
    assert beyond(calls, watched.rights("s3-dry-run")) == []
    assert required - rights_of_lakefs("lakefs-retention") == set()


def rights_of_lakefs(document: str) -> set[str]:
    statements = json.loads((POLICIES / f"{document}.json").read_text())["statement"]
    return {action for statement in statements for action in statement["action"]}
