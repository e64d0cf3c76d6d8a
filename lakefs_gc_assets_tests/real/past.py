"""A repository on a real lakeFS with 45 days of history and everything that clients can create.

The server alone decides which objects must stay: `Truth` reads every path of every reference before anything is
collected, and again afterwards. It uses no output of the collector.
"""

from dataclasses import dataclass, field

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

from lakefs_gc_assets_tests.real.repository import RealRepository
from lakefs_gc_assets_tests.real.server import RealLakeFS
from lakefs_gc_assets_tests.servers.s3_server import upload_in_parts

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
