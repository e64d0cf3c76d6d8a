"""Chains of runs on a real lakeFS: every object that must stay can be read through the server, and all garbage goes.

Waits are set to zero: nothing changes while these runs read.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from lakefs_sdk import (
    BranchesApi,
    CommitCreation,
    CommitsApi,
    ImportApi,
    ImportCreation,
    Merge,
    ObjectCopyCreation,
    ObjectsApi,
    PullRequestCreation,
    PullsApi,
    RefsApi,
    StagingApi,
    StagingMetadata,
    TagCreation,
    TagsApi,
)
from lakefs_sdk.exceptions import ApiException

from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.extensions.branches import stale_branches
from lakefs_gc_assets.extensions.check import unneeded_metadata
from lakefs_gc_assets.extensions.erasure import certificate
from lakefs_gc_assets.extensions.erasure.find import Selection, find
from lakefs_gc_assets_tests.real.server import RealLakeFS, RealRepository, installation
from lakefs_gc_assets_tests.servers.s3_server import upload_in_parts
from lakefs_gc_assets_tests.simulation.bugs import seeded

REFUSED = b"no commit passes"
_REFUSAL = "name: refuse\non:\n  pre-commit:\n    branches: [refused]\nhooks:\n  - id: no\n    type: webhook\n"


@dataclass
class Past:
    """The repository and its commits, by purpose.

    Attributes:
        commits: ids; `expired` and `dangling` are 45 days old; commits from `before backdated` on are 31 days old.
    """

    repository: RealRepository
    commits: dict[str, str] = field(default_factory=dict)

    def begin(self) -> None:
        """45 days ago: objects of every kind, commits, a tag, branches; some objects are replaced at once."""
        repository, sdk = self.repository, self.repository.lakefs.sdk()
        repository.upload("plain", b"first")
        repository.upload("tagged", b"only a tag keeps this")
        repository.upload("removed", b"of the first commit alone")
        self.commits["expired"] = repository.commit()
        TagsApi(sdk).create_tag(repository.name, TagCreation.parse_obj({"id": "v1", "ref": "main", "force": False}))
        repository.upload("plain", b"second")
        repository.upload("tagged", b"what came after the tag")
        repository.delete("removed")
        self.commits["second"] = repository.commit()
        repository.upload_in_parts("parts", b"committed in parts")
        self.link("linked", b"linked by its address")
        self.copy("plain", "copied")
        self.set_metadata("plain")
        self.use_gateway()
        self.commits["kinds"] = repository.commit()
        repository.branch("dangling")
        repository.upload("dangling", b"of a branch that goes", "dangling")
        self.commits["dangling"] = repository.commit("dangling")
        repository.delete_branch("dangling")
        repository.branch("hidden", hidden=True)
        repository.upload("of hidden", b"staged on a hidden branch", "hidden")
        repository.branch("refused")
        hook = f"{_REFUSAL}    properties: {{url: 'http://127.0.0.1:9/', timeout: 100ms}}\n"
        repository.upload("_lakefs_actions/refuse.yaml", hook.encode(), "refused")
        repository.upload("refused", b"sealed by a commit that failed", "refused")
        self.try_to_commit("refused")
        repository.upload("refused", REFUSED, "refused")
        for number in range(3):
            repository.upload(f"garbage/{number}", b"overwritten while staged")
            repository.upload(f"garbage/{number}", f"staged {number}".encode())
        repository.upload("taken back", b"and reset")
        repository.upload("tombstone", b"committed, then removed")
        self.commits["tombstone"] = repository.commit()
        repository.delete("tombstone")
        repository.upload("restaged", b"the same content")
        self.commits["restaged"] = repository.commit()

    def go_on(self) -> None:
        """31 days ago: more commits, an import, a pull request, a merge."""
        repository, sdk = self.repository, self.repository.lakefs.sdk()
        repository.branch("feature")
        repository.upload("of feature", b"merged", "feature")
        repository.commit("feature")
        pull = PullRequestCreation.parse_obj(
            {"title": "t", "source_branch": "feature", "destination_branch": "main", "description": ""}
        )
        PullsApi(sdk).create_pull_request(repository.name, pull)
        RefsApi(sdk).merge_into_branch(repository.name, "feature", "main", Merge.parse_obj({}))
        self.import_outside("imported")
        creation = CommitCreation.parse_obj({"message": "backdated", "date": 1_600_000_000})
        repository.upload("taken away", b"removed by a commit that claims to be old")
        self.commits["before backdated"] = repository.commit()
        repository.upload("backdated", b"of a commit that claims to be old")
        repository.delete("taken away")
        self.commits["backdated"] = CommitsApi(sdk).commit(repository.name, "main", creation).id
        for path in ("plain", "backdated", "parts", "linked", "copied"):
            repository.upload(path, f"newer {path}".encode())
        self.commits["kept"] = repository.commit()

    def end(self) -> None:
        """Three days ago: stages objects, and overwrites some."""
        repository = self.repository
        for number in range(4):
            repository.upload(f"staged/{number}", b"overwritten")
            repository.upload(f"staged/{number}", f"still staged {number}".encode())
        # The server does not list it as uncommitted, since it equals the committed object of its path.
        repository.upload("restaged", b"the same content")
        repository.branch("work")
        for number in range(4):
            repository.upload(f"work/{number}", f"staged on work {number}".encode(), "work")

    def use_gateway(self) -> None:
        """Uploads by the S3 gateway, whole and in parts, and renames there: S3 copies, and deletes the original."""
        bucket, lakefs = self.repository.name, self.repository.lakefs
        with lakefs.in_its_time():
            gateway = lakefs.gateway()
            gateway.put_object(Bucket=bucket, Key="main/gateway/whole", Body=b"by the gateway")
            upload_in_parts(gateway, bucket, "main/gateway/parts", [b"by the gateway in parts"])
            gateway.put_object(Bucket=bucket, Key="main/gateway/old", Body=b"renamed while staged")
            source = f"{bucket}/main/gateway/old"
            gateway.copy_object(Bucket=bucket, Key="main/gateway/new", CopySource=source)
            gateway.delete_object(Bucket=bucket, Key="main/gateway/old")

    def link(self, path: str, content: bytes) -> None:
        """Uploads to an address that lakeFS issues and presigns, and links it."""
        repository, api = self.repository, StagingApi(self.repository.lakefs.sdk())
        location = api.get_physical_address(repository.name, "main", path, presign=True)
        assert location.presigned_url
        etag = repository.lakefs.put(location.presigned_url, content)
        staging = {"physical_address": location.physical_address, "presigned_url": location.presigned_url}
        metadata = {"staging": staging, "checksum": etag.strip('"'), "size_bytes": len(content)}
        api.link_physical_address(repository.name, "main", path, StagingMetadata.parse_obj(metadata))

    def copy(self, source: str, target: str) -> None:
        """Copies an object through the API."""
        creation = ObjectCopyCreation.parse_obj({"src_path": source})
        ObjectsApi(self.repository.lakefs.sdk()).copy_object(self.repository.name, "main", target, creation)

    def set_metadata(self, path: str) -> None:
        """Stages the same object under other user metadata."""
        call = f"/repositories/{self.repository.name}/branches/main/objects/stat/user_metadata?path={path}"
        self.repository.lakefs.call("PUT", call, {"set": {"key": "value"}})

    def import_outside(self, target: str) -> None:
        """Imports an object of another bucket, which makes a commit; the server refuses its own namespace."""
        repository, api = self.repository, ImportApi(self.repository.lakefs.sdk())
        outside = repository.lakefs.folder / "buckets" / f"outside-{repository.name}"
        outside.mkdir()
        (outside / "object").write_bytes(b"of another bucket")
        path = {"path": f"s3://{outside.name}/object", "destination": target, "type": "object"}
        body = {"paths": [path], "commit": {"message": "import"}, "force": False}
        begun = api.import_start(repository.name, "main", ImportCreation.parse_obj(body))
        while not (status := api.import_status(repository.name, "main", begun.id)).completed:
            assert status.error is None, status.error

    def try_to_commit(self, branch: str) -> None:
        """A commit that a hook refuses; its staged data stays sealed."""
        try:
            self.repository.commit(branch)
        except ApiException as error:
            assert error.status == 412, error
        else:
            raise AssertionError("the hook let the commit pass")


@dataclass(frozen=True)
class Truth:
    """Contents and addresses of every path, by reference.

    Attributes:
        contents: by reference and path.
        addresses: addresses of the repository's own objects.
    """

    contents: dict[tuple[str, str], bytes]
    addresses: frozenset[str]

    @classmethod
    def read(cls, repository: RealRepository, *references: str) -> "Truth":
        """Reads every path on these branches and commits, and on all existing branches and tags."""
        sdk = repository.lakefs.sdk()
        branches = [each.id for each in BranchesApi(sdk).list_branches(repository.name, show_hidden=True).results]
        tags = [each.id for each in TagsApi(sdk).list_tags(repository.name).results]
        contents: dict[tuple[str, str], bytes] = {}
        addresses = set[str]()
        for reference in (*branches, *tags, *references):
            listed = ObjectsApi(sdk).list_objects(repository.name, reference, amount=1000).results
            for each in listed:
                content = repository.read(each.path, reference)
                assert content is not None, f"{each.path} at {reference} cannot be read"
                contents[reference, each.path] = content
                addresses.add(each.physical_address.removeprefix(f"{repository.namespace}/"))
        return cls(contents, frozenset(addresses))

    def lost(self, repository: RealRepository) -> list[tuple[str, str]]:
        """References and paths whose content the server no longer returns."""
        return [
            (reference, path)
            for (reference, path), content in self.contents.items()
            if repository.read(path, reference) != content
        ]


def every_commit(repository: RealRepository) -> list[str]:
    """Ids of all commits reachable from branches and tags."""
    sdk = repository.lakefs.sdk()
    branches = BranchesApi(sdk).list_branches(repository.name, show_hidden=True).results
    ids = {each.id for ref in branches for each in RefsApi(sdk).log_commits(repository.name, ref.id).results}
    return sorted(ids)


def make(lakefs: RealLakeFS, *names: str) -> dict[str, Past]:
    """Repositories with these names and that history; finally starts lakeFS today."""
    lakefs.start(days_ago=45)
    pasts = {name: Past(RealRepository.make(lakefs, name)) for name in names}
    for past in pasts.values():
        past.begin()
    lakefs.start(days_ago=31)
    for past in pasts.values():
        past.go_on()
    lakefs.start(days_ago=3)
    for past in pasts.values():
        past.end()
    lakefs.start()
    return pasts


SEEDED = {
    "hidden staged entries ignored": Flow.CLEAN,
    "full addresses not normalised": Flow.CLEAN,
    "dangling commits ignored": Flow.UNIFIED,
    "the server's list alone": Flow.UNIFIED,
    "claimed dates of commits believed": Flow.UNIFIED,
}
"""Seeded bugs that these scenes find, and the flow that finds them."""
SEEDED_IN_RECHECK = ("recheck without new commits", "recheck of uncommitted data alone")
"""Bugs found if a branch is created on expired commits between a dry run and its approval."""
CHAINS = ("clean", "unified", "committed", "quarantine", "revived", "stale", "erased", "metadata")
RULES = 40
"""Days of the default rule: it expires commits of 45 days ago that were replaced on the same day."""


def _patched(name: str) -> AbstractContextManager[None]:
    (bug,) = [each for each in seeded() if each.name == name]
    return bug.bug.patches()


def _of_bug(name: str) -> str:
    return "bug-" + "-".join(name.lower().replace("'", "").split())[:50]


@pytest.fixture(scope="module")
def pasts() -> Iterator[dict[str, Past]]:
    with installation() as lakefs:
        yield make(lakefs, *CHAINS, *map(_of_bug, (*SEEDED, *SEEDED_IN_RECHECK)))


def kept_by_rules(past: Past) -> list[str]:
    """Commits that a rule of 40 days keeps, derived from the test's own record of actions."""
    sdk = past.repository.lakefs.sdk()
    tags = [each.commit_id for each in TagsApi(sdk).list_tags(past.repository.name).results]
    younger = [past.commits[name] for name in ("restaged", "before backdated", "backdated", "kept")]
    return [*tags, *younger]


def test_clean_approved_and_optimized_runs_delete_garbage_and_nothing_else(pasts: dict[str, Past]) -> None:
    past, repository = pasts["clean"], pasts["clean"].repository
    everything = Truth.read(repository, *every_commit(repository), past.commits["dangling"])
    garbage = repository.stored() - everything.addresses
    assert len(garbage) == 9  # seven overwritten while staged, one renamed, one sealed by a commit that failed
    dry = repository.runs(sweep=False).collect()
    assert dry.counts["candidates"] == 9 and repository.stored() >= garbage
    assert repository.approve(dry).counts["deleted"] == 9
    assert not repository.stored() & garbage and everything.lost(repository) == []
    # Meanwhile old objects become garbage, and old garbage becomes live.
    before = repository.stored()
    repository.delete_branch("work")
    for number in range(2):
        repository.upload(f"staged/{number}", b"overwritten today")
    repository.upload("plain", b"written today")
    repository.commit()
    later = Truth.read(repository, *every_commit(repository), past.commits["dangling"])
    gone = before - later.addresses
    assert len(gone) == 7  # four of the branch, two overwritten, and one that a commit dropped
    found = repository.runs().collect(Flow.OPTIMIZED)
    assert (found.base_run, found.counts["deleted"]) == (dry.run_id, 7)
    assert not repository.stored() & gone and later.lost(repository) == []
    assert repository.read("refused", "refused") == REFUSED


@pytest.mark.parametrize("flow", [Flow.UNIFIED, Flow.COMMITTED])
def test_runs_by_rules_delete_what_expired_and_keep_heads_tags_and_staged_data(
    pasts: dict[str, Past], flow: Flow
) -> None:
    past, repository = pasts[flow.value], pasts[flow.value].repository
    repository.set_rules(RULES)
    stays = Truth.read(repository, *kept_by_rules(past))
    everything = Truth.read(repository, *every_commit(repository), past.commits["dangling"])
    expired = everything.addresses - stays.addresses
    runs = repository.runs()
    found = runs.collect(flow)
    assert found.counts["deleted"] >= 1 and stays.lost(repository) == []
    gone = everything.addresses - repository.stored() - {"s3://outside-" + repository.name + "/object"}
    assert gone and gone <= expired
    assert repository.read("dangling", past.commits["dangling"]) is None
    # The next run builds on this one, and a commit replaced today stays.
    repository.upload("plain", b"written today")
    # A commit keeps an existing entry with the same content, so the object staged over it is garbage from now on.
    dropped = {repository.address("restaged")}
    repository.commit()
    stays = Truth.read(repository, *kept_by_rules(past))
    before = repository.stored()
    again = runs.collect(flow)
    assert again.base_run == found.run_id and stays.lost(repository) == []
    assert before - repository.stored() == (dropped if flow is Flow.UNIFIED else set())


def test_quarantined_objects_come_back_until_they_are_purged(pasts: dict[str, Past]) -> None:
    past, repository = pasts["quarantine"], pasts["quarantine"].repository
    everything = Truth.read(repository, *every_commit(repository), past.commits["dangling"])
    garbage = repository.stored() - everything.addresses
    runs = repository.runs(sweep_mode="quarantine", quarantine_days=0)
    moved = runs.collect()
    assert moved.counts["quarantined"] == len(garbage) and not repository.stored() & garbage
    assert {each.fate.value for each in runs.restore(moved.run_id)} == {"restored"}
    assert repository.stored() >= garbage
    # Restored objects are young again by LastModified.
    assert runs.collect().counts["candidates"] == 0
    for key in garbage:
        os.utime(repository.file(key), (time.time() - 3 * 86_400,) * 2)
    again = runs.collect()
    assert again.counts["quarantined"] == len(garbage)
    purged = runs.purge()
    assert {each.address for each in purged if each.run_id == again.run_id} == garbage
    assert runs.restore(again.run_id) == [] or {each.fate.value for each in runs.restore(again.run_id)} != {"restored"}
    assert everything.lost(repository) == []


def test_stale_branches_are_deleted_once_no_open_pull_request_names_them_and_made_again(
    pasts: dict[str, Past], tmp_path: Path
) -> None:
    repository = pasts["stale"].repository
    file = tmp_path / "policy.yaml"
    file.write_text("stale_branches: [{branches: [feature], max_inactivity: 30d}]")
    opened, pulls = repository.runs(retention_policy=str(file)).open(), f"/repositories/{repository.name}/pulls"
    assert stale_branches.list_branches(opened, print).stale == ()
    # By plain calls: the server answers null for a description, which lakefs-sdk refuses.
    (pull,) = json.loads(repository.lakefs.call("GET", f"{pulls}?status=open"))["results"]
    repository.lakefs.call("PATCH", f"{pulls}/{pull['id']}", {"status": "closed"})
    listing = stale_branches.list_branches(opened, print)
    assert [each.identity.branch for each in listing.stale] == ["feature"]
    head = listing.stale[0].identity.commit_id
    assert [each.fate.value for each in stale_branches.delete(opened, listing.digest, "owner", print, print)] == [
        "deleted"
    ]
    assert [each.fate.value for each in stale_branches.restore(opened, ["feature"], "owner", print)] == ["made again"]
    assert BranchesApi(repository.lakefs.sdk()).get_branch(repository.name, "feature").commit_id == head


def test_object_that_only_expired_commits_hold_is_erased_and_certified(pasts: dict[str, Past]) -> None:
    past, repository = pasts["erased"], pasts["erased"].repository
    repository.set_rules(RULES)
    address = repository.address("dangling", past.commits["dangling"])
    runs = repository.runs()
    selection = Selection.parse(repository.name, [f"lakefs://{repository.name}/dangling"])
    found = find(runs.open(), LocalEngine(), selection, print)
    assert [(each.address, each.holders) for each in found.addresses] == [(address, ())]
    stays = Truth.read(repository, *kept_by_rules(past))
    ended = runs.collect(Flow.UNIFIED)
    content = certificate.make(runs.open(), found, ended.run_id, (), ())
    (stated,) = content["addresses"]
    assert stated["is_gone"] and not repository.file(address).exists() and stays.lost(repository) == []
    assert certificate.list_without_receipt(content) == [] and certificate.verify(runs.open(), content) == ()


def test_metadata_that_nothing_names_moves_and_comes_back(pasts: dict[str, Past]) -> None:
    past, repository = pasts["metadata"], pasts["metadata"].repository
    everything = Truth.read(repository, *every_commit(repository), past.commits["dangling"])
    opened = repository.runs(keep_old_unnamed_ranges=False).open()
    listing = unneeded_metadata.list_movable(opened, LocalEngine(), print)
    files = [repository.file(f"_lakefs/{each.id}") for each in listing.files]
    # An import leaves them: it first writes its ranges, and then merges them into the branch.
    assert files and all(each.exists() for each in files)
    moved = unneeded_metadata.move(opened, LocalEngine(), listing, "owner", print, print)
    assert len(moved) == len(files) and not any(each.exists() for each in files)
    assert everything.lost(repository) == []
    unneeded_metadata.restore(opened, "owner", print)
    assert all(each.exists() for each in files) and everything.lost(repository) == []


@pytest.mark.parametrize("name", SEEDED)
def test_seeded_bug_is_noticed(pasts: dict[str, Past], name: str) -> None:
    past, flow = pasts[_of_bug(name)], SEEDED[name]
    repository = past.repository
    kept = kept_by_rules(past)
    if flow.by_retention:
        repository.set_rules(RULES)
    stays = Truth.read(repository, *(kept if flow.by_retention else every_commit(repository)))
    with _patched(name):
        try:
            repository.runs().collect(flow)
        except Exception as error:
            noticed: object = error
        else:
            noticed = stays.lost(repository)
    assert noticed


def approve_once_what_expires_has_a_branch(past: Past) -> list[tuple[str, str]]:
    """Objects that the branch and all other references have lost after the approval."""
    repository = past.repository
    repository.set_rules(RULES)
    dry = repository.runs(sweep=False).collect(Flow.UNIFIED)
    repository.branch("back", past.commits["dangling"])
    stays = Truth.read(repository, *kept_by_rules(past))
    assert repository.approve(dry).counts["deleted"] > 0
    return stays.lost(repository)


def test_what_expires_stays_if_a_branch_is_made_of_it_before_the_approval(pasts: dict[str, Past]) -> None:
    assert approve_once_what_expires_has_a_branch(pasts["revived"]) == []


@pytest.mark.parametrize("name", SEEDED_IN_RECHECK)
def test_seeded_bug_of_the_recheck_is_noticed(pasts: dict[str, Past], name: str) -> None:
    with _patched(name):
        lost = approve_once_what_expires_has_a_branch(pasts[_of_bug(name)])
    assert lost == [("back", "dangling")]
