"""A lakeFS installation for tests: a real server over a real S3 server, which can be moved through time.

    with installation() as lakefs:
        lakefs.start(days_ago=45)
        ... # uploads and commits bear dates of 45 days ago
        lakefs.start(days_ago=31)
        ...
        lakefs.start()  # today: the collector runs

Both servers shift their clocks by `programs.CLOCK_OFFSET`. The kernel dates the files of the S3 server, so `os.utime`
sets their times when a period in the past ends.

`RealRepository` has the actions of a repository's users, and runs that collect it.
"""

import json
import os
import subprocess
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from unittest import mock
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import Request, urlopen
from uuid import uuid4

import boto3
from botocore.compat import get_current_datetime
from botocore.config import Config
from lakefs_sdk import (
    ApiClient,
    BranchCreation,
    BranchesApi,
    Commit,
    CommitCreation,
    CommitsApi,
    ExperimentalApi,
    ObjectsApi,
    RepositoriesApi,
    RepositoryCreation,
    ResetCreation,
)
from lakefs_sdk import Configuration as SdkConfiguration
from lakefs_sdk.exceptions import ApiException

from lakefs_gc_assets.collector.records import report
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.collector.repository.repository import Clock, SystemClock
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.settings import Configuration, LakeFSSettings, StoreSettings
from lakefs_gc_assets_tests.real import programs
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns
from lakefs_gc_assets_tests.servers.free_ports import free_port

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

LAKEFS_KEYS = ("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
STORE_KEYS = ("store-access-key", "store-secret-key")
BASIC_AUTHORIZATION = "Basic " + b64encode(":".join(LAKEFS_KEYS).encode()).decode()
_PATIENCE_SECONDS = 900


@dataclass
class RealLakeFS:
    """An installation whose servers may be running.

    Attributes:
        folder: database of lakeFS, and the objects of all buckets in `buckets/`.
        environment: further LAKEFS_ variables of the server, such as settings of hooks.
    """

    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    lakefs_port: int = field(default_factory=free_port)
    store_port: int = field(default_factory=free_port)
    _processes: "list[subprocess.Popen[bytes]]" = field(default_factory=list)
    _offset: timedelta = timedelta()
    _started_at: float = 0.0

    @property
    def url(self) -> str:
        """The server's address, without `/api/v1`."""
        return f"http://127.0.0.1:{self.lakefs_port}"

    @property
    def store_url(self) -> str:
        """The S3 server's address."""
        return f"http://127.0.0.1:{self.store_port}"

    @property
    def log(self) -> str:
        """The end of the server's log."""
        return (self.folder / "lakefs.log").read_text(errors="replace")[-4000:]

    def now(self) -> datetime:
        """The present by the servers' clocks, UTC."""
        return datetime.now(UTC) + self._offset

    def start(self, *, days_ago: float = 0) -> None:
        """Starts both servers with clocks set `days_ago` days back; first stops them if they run."""
        self.stop()
        self._offset, self._started_at = timedelta(days=-days_ago), time.time()
        shift = {programs.CLOCK_OFFSET: str(int(self._offset.total_seconds()))}
        buckets = self.folder / "buckets"
        buckets.mkdir(exist_ok=True)
        self._run(_store_command(self.store_port, buckets), shift, "store.log")
        _wait_for(self.store_url, self._processes[-1], self.folder / "store.log")
        self._run([str(programs.lakefs()), "run"], {**shift, **self._lakefs_variables()}, "lakefs.log")
        _wait_for(f"{self.url}/_health", self._processes[-1], self.folder / "lakefs.log")

    def stop(self) -> None:
        """Stops both servers; files that they wrote in the past get the shifted time."""
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(60)
        self._processes.clear()
        if self._offset:
            self.date_files()

    def date_files(self) -> None:
        """Sets the shifted time of files that the S3 server has written since it was started."""
        for path in (self.folder / "buckets").rglob("*"):
            with suppress(FileNotFoundError):
                written = path.stat().st_mtime
                if path.is_file() and written >= self._started_at - 1:
                    os.utime(path, (written + self._offset.total_seconds(),) * 2)

    def _run(self, command: list[str], variables: Mapping[str, str], log: str) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("LAKEFS_")}
        with (self.folder / log).open("ab") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=output, cwd=self.folder, env={**inherited, **variables}
            )
        self._processes.append(process)

    def _lakefs_variables(self) -> dict[str, str]:
        store = "LAKEFS_BLOCKSTORE_S3"
        return {
            "LAKEFS_DATABASE_TYPE": "local",
            "LAKEFS_DATABASE_LOCAL_PATH": str(self.folder / "metadata"),
            "LAKEFS_DATABASE_LOCAL_SYNC_WRITES": "false",
            "LAKEFS_AUTH_ENCRYPT_SECRET_KEY": "a secret of tests alone",
            "LAKEFS_LISTEN_ADDRESS": f"127.0.0.1:{self.lakefs_port}",
            "LAKEFS_STATS_ENABLED": "false",
            "LAKEFS_SECURITY_CHECK_LATEST_VERSION": "false",
            "LAKEFS_LOGGING_LEVEL": "WARN",
            "LAKEFS_COMMITTED_LOCAL_CACHE_DIR": str(self.folder / "cache"),
            "LAKEFS_BLOCKSTORE_TYPE": "s3",
            "LAKEFS_BLOCKSTORE_SIGNING_SECRET_KEY": "another secret of tests",
            f"{store}_ENDPOINT": self.store_url,
            f"{store}_FORCE_PATH_STYLE": "true",
            f"{store}_DISCOVER_BUCKET_REGION": "false",
            f"{store}_REGION": "us-east-1",
            f"{store}_CREDENTIALS_ACCESS_KEY_ID": STORE_KEYS[0],
            f"{store}_CREDENTIALS_SECRET_ACCESS_KEY": STORE_KEYS[1],
            "LAKEFS_GATEWAYS_S3_REGION": "us-east-1",
            "LAKEFS_INSTALLATION_USER_NAME": "admin",
            "LAKEFS_INSTALLATION_ACCESS_KEY_ID": LAKEFS_KEYS[0],
            "LAKEFS_INSTALLATION_SECRET_ACCESS_KEY": LAKEFS_KEYS[1],
            **self.environment,
        }

    def sdk(self) -> ApiClient:
        """A client of lakefs-sdk, for its `…Api` classes."""
        return ApiClient(SdkConfiguration(host=f"{self.url}/api/v1", username=LAKEFS_KEYS[0], password=LAKEFS_KEYS[1]))

    def upload(self, repository: str, branch: str, path: str, content: bytes) -> None:
        """Uploads an object through the API; lakefs-sdk would read it from a file."""
        self.upload_raw(repository, branch, quote(path, safe=""), content)

    def upload_raw(self, repository: str, branch: str, escaped_path: str, content: bytes) -> None:
        """Uploads to a path of any bytes, percent-encoded."""
        request = Request(
            f"{self.url}/api/v1/repositories/{repository}/branches/{branch}/objects?path={escaped_path}",
            content,
            {"Content-Type": "application/octet-stream", "Authorization": BASIC_AUTHORIZATION},
        )
        urlopen(request, timeout=900).close()

    def call(self, method: str, path: str, body: object = None) -> bytes:
        """Makes an API call for which lakefs-sdk is unsuitable; returns the answer's body."""
        headers = {"Content-Type": "application/json", "Authorization": BASIC_AUTHORIZATION}
        data = None if body is None else json.dumps(body).encode()
        with urlopen(Request(f"{self.url}/api/v1{path}", data, headers, method=method), timeout=900) as answer:
            return bytes(answer.read())

    def put(self, url: str, content: bytes) -> str:
        """Uploads to a presigned address; returns the ETag."""
        with urlopen(Request(url, content, {"Content-Type": ""}, method="PUT"), timeout=900) as answer:
            return str(answer.headers["ETag"])

    def new_repository(self, name: str, below: str = "", scheme: str = "s3") -> str:
        """Makes a repository with the branch main; returns its storage namespace, which ends with `below`."""
        namespace = (self.new_namespace() if scheme == "s3" else f"{scheme}://{name}") + below
        creation = {"name": name, "storage_namespace": namespace}
        RepositoriesApi(self.sdk()).create_repository(RepositoryCreation.parse_obj(creation))
        return namespace

    def commit(self, repository: str, branch: str, message: str = "commit") -> Commit:
        """Commits the staged changes of a branch."""
        creation = CommitCreation.parse_obj({"message": message})
        return CommitsApi(self.sdk()).commit(repository, branch, creation)

    def gateway(self) -> "S3Client":
        """A client of lakeFS's S3 gateway, whose buckets are repositories. In the past, it needs `in_its_time`."""
        return _s3_client(self.url, LAKEFS_KEYS)

    @contextmanager
    def in_its_time(self) -> Iterator[None]:
        """Inside, S3 clients sign their requests by the servers' clock."""
        with mock.patch("botocore.auth.get_current_datetime", lambda: get_current_datetime() + self._offset):
            yield

    def store(self) -> "S3Client":
        """A client of the S3 server below."""
        return _s3_client(self.store_url, STORE_KEYS)

    def new_namespace(self) -> str:
        """A storage namespace in a new bucket."""
        bucket = f"bucket-{uuid4().hex[:12]}"
        # Made as a folder, because requests of this process are signed by the true clock.
        (self.folder / "buckets" / bucket).mkdir()
        return f"s3://{bucket}/lake"

    def lakefs_settings(self) -> LakeFSSettings:
        """Settings of the collector's client."""
        return LakeFSSettings(endpoint=self.url, access_key_id=LAKEFS_KEYS[0], secret_access_key=LAKEFS_KEYS[1])

    def store_settings(self) -> StoreSettings:
        """Settings of the collector's store."""
        return StoreSettings(
            endpoint_url=self.store_url,
            region="us-east-1",
            path_style=True,
            access_key_id=STORE_KEYS[0],
            secret_access_key=STORE_KEYS[1],
        )


@contextmanager
def installation(environment: Mapping[str, str] | None = None) -> Iterator[RealLakeFS]:
    """An empty installation that is not started yet; its servers and files are removed at the end."""
    programs.lakefs(), programs.versitygw()
    with TemporaryDirectory() as folder:
        lakefs = RealLakeFS(Path(folder), environment or {})
        try:
            yield lakefs
        finally:
            lakefs.stop()


def _store_command(port: int, buckets: Path) -> list[str]:
    keys = ["--access", STORE_KEYS[0], "--secret", STORE_KEYS[1]]
    return [str(programs.versitygw()), "--port", f"127.0.0.1:{port}", *keys, "--quiet", "posix", str(buckets)]


def _wait_for(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Waits until a server answers. Raises AssertionError if it exits, or does not answer within two minutes."""
    until = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            urlopen(url, timeout=5).close()
        except URLError as error:
            # An error status is an answer too.
            if hasattr(error, "code"):
                return
            time.sleep(0.05)
        except ConnectionError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError(f"{url} does not answer: {log.read_text(errors='replace')[-1000:]}")


def _s3_client(url: str, keys: tuple[str, str]) -> "S3Client":
    return boto3.client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=keys[0],
        aws_secret_access_key=keys[1],
        config=Config(s3={"addressing_style": "path"}),
    )


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

    def put_file(self, key: str) -> None:
        """Writes an object directly into the namespace, bypassing lakeFS, at the time of the servers."""
        file = self.file(key)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"of nobody")

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
