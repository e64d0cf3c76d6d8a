"""A repository on a real lakeFS server: actions of its users, and runs that collect it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lakefs_sdk import (
    BranchCreation,
    BranchesApi,
    ExperimentalApi,
    ObjectsApi,
    RepositoriesApi,
    ResetCreation,
)
from lakefs_sdk.exceptions import ApiException

from lakefs_gc_assets.collector.records import report
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.collector.repository.repository import Clock, SystemClock
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.settings import Configuration
from lakefs_gc_assets_tests.real.server import RealLakeFS
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns


@dataclass(frozen=True)
class RealRepository:
    """A repository with the branch main.

    Attributes:
        namespace: its storage namespace, without a trailing slash.
    """

    lakefs: RealLakeFS
    name: str
    namespace: str

    @classmethod
    def make(cls, lakefs: RealLakeFS, name: str, below: str = "", scheme: str = "s3") -> "RealRepository":
        """Makes a repository in a new bucket; its storage namespace ends with `below`."""
        return cls(lakefs, name, lakefs.new_repository(name, below, scheme))

    def runs(self, clock: Clock | None = None, store: Mapping[str, Any] | None = None, **collection: Any) -> ArrowRuns:
        """Runs on the local engine that delete, without the configured waits.

        Args:
            store: other settings of the store.
        """
        waits = {"wait_before_dump_seconds": 0, "wait_before_recheck_seconds": 0}
        configuration = Configuration.model_validate(
            {
                "repository": self.name,
                "lakefs": self.lakefs.lakefs_settings().model_dump(),
                "store": dict(store or self.lakefs.store_settings().model_dump()),
                "collection": {**waits, "max_candidate_share": 1, "sweep": True, **collection},
            }
        )
        return ArrowRuns(Loaded(configuration, {}), clock or SystemClock())

    def approve(self, dry: Report, clock: Clock | None = None, **collection: Any) -> Report:
        """Repeats the last step of a dry run, as `lakefs-gc approve` does. Raises the error that ends it."""
        runs = self.runs(clock, **{"sweep": False, "approve_run": dry.run_id, **collection})
        made = runs.make(runs.open_run(Flow(dry.flow), dry.run_id), ["deleted_report"], "owner")
        if made.error is not None:
            raise made.error
        found = report.read(runs.open().store, dry.run_id)
        assert found is not None
        return found

    def upload(self, path: str, content: bytes, branch: str = "main") -> None:
        """Uploads an object through the API."""
        self.lakefs.upload(self.name, branch, path, content)

    def commit(self, branch: str = "main", message: str = "commit") -> str:
        """Commits staged changes; returns the commit's id."""
        return self.lakefs.commit(self.name, branch, message).id

    def delete(self, path: str, branch: str = "main") -> None:
        """Deletes a path."""
        ObjectsApi(self.lakefs.sdk()).delete_object(self.name, branch, path)

    def reset(self, branch: str = "main") -> None:
        """Discards all staged changes of a branch."""
        reset = ResetCreation.parse_obj({"type": "reset"})
        BranchesApi(self.lakefs.sdk()).reset_branch(self.name, branch, reset)

    def branch(self, name: str, source: str = "main", *, hidden: bool = False) -> None:
        """Makes a branch."""
        creation = BranchCreation.parse_obj({"name": name, "source": source, "hidden": hidden})
        BranchesApi(self.lakefs.sdk()).create_branch(self.name, creation)

    def delete_branch(self, name: str) -> None:
        """Deletes a branch; its commits stay, dangling."""
        BranchesApi(self.lakefs.sdk()).delete_branch(self.name, name)

    def set_rules(self, default_days: int, **branches: int) -> None:
        """Sets the server's retention rules."""
        rules = [{"branch_id": name, "retention_days": days} for name, days in branches.items()]
        body = {"default_retention_days": default_days, "branches": rules}
        self.lakefs.call("PUT", f"/repositories/{self.name}/settings/gc_rules", body)

    def address(self, path: str, reference: str = "main") -> str:
        """The object of a path, relative to the storage namespace; the whole address if it is elsewhere."""
        address = str(ObjectsApi(self.lakefs.sdk()).stat_object(self.name, reference, path).physical_address)
        return address.removeprefix(f"{self.namespace}/")

    def read(self, path: str, reference: str = "main") -> bytes | None:
        """Content of an object as the server returns it; None if it is gone."""
        try:
            return bytes(ObjectsApi(self.lakefs.sdk()).get_object(self.name, reference, path))
        except ApiException as error:
            assert error.status in (404, 410), error
            return None

    def stored(self) -> set[str]:
        """All objects of the namespace except metadata, relative to it."""
        bucket, _, prefix = self.namespace.removeprefix("s3://").partition("/")
        pages = self.lakefs.store().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/")
        keys = {item["Key"].removeprefix(f"{prefix}/") for page in pages for item in page.get("Contents", [])}
        return {key for key in keys if not key.startswith("_lakefs/")}

    def file(self, key: str) -> Path:
        """The file in which the S3 server keeps an object of the namespace."""
        return self.lakefs.folder / "buckets" / self.namespace.removeprefix("s3://") / key

    def put_file(self, key: str, content: bytes = b"of nobody") -> None:
        """Writes an object directly into the namespace, bypassing lakeFS, at the time of the servers."""
        file = self.file(key)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)

    def remove_file(self, key: str) -> None:
        """Removes an object directly from the namespace, bypassing lakeFS."""
        bucket, _, prefix = self.namespace.removeprefix("s3://").partition("/")
        self.lakefs.store().delete_object(Bucket=bucket, Key=f"{prefix}/{key}")

    def upload_in_parts(self, path: str, content: bytes, branch: str = "main") -> None:
        """Uploads an object in parts, by addresses that lakeFS presigns: its ETag is no hash of the content."""
        api = ExperimentalApi(self.lakefs.sdk())
        begun = api.create_presign_multipart_upload(self.name, branch, path, parts=1)
        assert begun.presigned_urls
        url = begun.presigned_urls[0]
        etag = self.lakefs.put(url, content)
        self.lakefs.call(
            "PUT",
            f"/repositories/{self.name}/branches/{branch}/staging/pmpu/{quote(begun.upload_id, safe='')}"
            f"?path={quote(path, safe='')}",
            {"physical_address": begun.physical_address, "parts": [{"part_number": 1, "etag": etag}]},
        )

    def delete_repository(self) -> None:
        """Deletes the repository; lakeFS leaves its objects in the bucket."""
        RepositoriesApi(self.lakefs.sdk()).delete_repository(self.name)
