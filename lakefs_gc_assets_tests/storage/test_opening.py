import multiprocessing
import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest

from lakefs_gc_assets.configuration_file import loaded_from
from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage.opening import KINDS, StoreOpener, open_store
from lakefs_gc_assets_tests.servers.s3_server import S3Server


def another_process() -> ProcessPoolExecutor:
    """A process that shares only pickled arguments and its environment with this one."""
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


def test_a_local_namespace_lies_below_the_local_root(tmp_path: Path) -> None:
    for namespace, folder in (
        ("local://repository", "repository"),
        ("local://repository/nested/", "repository/nested"),
        ("local:///blocks/repository", "blocks/repository"),
    ):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "dummy").write_bytes(folder.encode())
        store = open_store(StoreSettings(local_root=str(tmp_path)), Namespace.parse(namespace))
        assert store.get("dummy") == folder.encode()


@pytest.mark.parametrize(
    ("namespace", "root", "message"),
    [
        ("local://repository", None, "set store.local_root"),
        ("local://missing", "", "there is no folder"),
        ("local://../outside", "", "leads out of store.local_root"),
        ("local://a/../../outside", "", "leads out of store.local_root"),
        ("https://account/container/x", "", "set store.endpoint_url"),
        ("mem://repository", "", "kind 'mem': supported are s3:// .* gs://, https:// and abfss:// .* and local://"),
    ],
)
def test_what_cannot_be_opened_is_explained(tmp_path: Path, namespace: str, root: str | None, message: str) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "root").mkdir()
    settings = StoreSettings(local_root="" if root is None else str(tmp_path / "root"))
    with pytest.raises(ConfigurationError, match=message):
        open_store(settings, Namespace.parse(namespace))


def test_every_store_in_a_cloud_names_the_rights_that_a_run_needs() -> None:
    for kind in KINDS:
        assert kind.name == "local" or {"list", "read", "write", "delete"} <= kind.rights.keys()


@pytest.mark.parametrize(
    ("namespace", "extra"),
    [
        ("https://account.blob.core.windows.net/container/x", "azure"),
        ("gs://bucket/x", "gcs"),
    ],
)
def test_a_cloud_without_its_libraries_says_what_to_install(namespace: str, extra: str) -> None:
    """Runs in a separate process that has not imported the libraries."""
    code = (
        "import sys\n"
        "for name in ('azure.core', 'azure.identity', 'azure.storage.blob', 'google.auth'): sys.modules[name] = None\n"
        "from lakefs_gc_assets.lakefs.addresses import Namespace\n"
        "from lakefs_gc_assets.settings import StoreSettings\n"
        "from lakefs_gc_assets.storage.opening import open_store\n"
        f"open_store(StoreSettings(), Namespace.parse({namespace!r}))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"install this package's wheel with its extra [{extra}]" in ended.stderr.splitlines()[-1]
    assert "ConfigurationError" in ended.stderr.splitlines()[-1]


def test_an_opener_opens_once_and_after_a_journey(s3_server: S3Server, bucket: str) -> None:
    opener = StoreOpener(s3_server.settings(), f"s3://{bucket}/opened")
    store = opener.open()
    store.put("key", b"content")
    arrived = pickle.loads(pickle.dumps(opener))
    assert arrived == opener
    assert arrived.open() is store
    assert StoreOpener(s3_server.settings(), f"s3://{bucket}/other").open() is not store


def _read(opener: StoreOpener) -> bytes:
    return opener.open().get("key")


def test_an_opener_tells_no_secrets() -> None:
    settings = StoreSettings(access_key_id="AKIAEXAMPLE", secret_access_key="hush-1", session_token="hush-2")
    opener = StoreOpener(settings, "s3://bucket/repository/")
    for text in (repr(opener), str(opener), f"{opener}"):
        assert "hush" not in text
        assert "s3://bucket/repository/" in text


class TestCredentialsByReference:
    """Each process reads credentials from its own environment; no opener holds them."""

    @pytest.fixture
    def opener(self, s3_server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> StoreOpener:
        plain = s3_server.settings()
        monkeypatch.setenv("TEST_STORE_KEY", plain.access_key_id)
        monkeypatch.setenv("TEST_STORE_SECRET", plain.secret_access_key)
        named = {"access_key_id": {"env": "TEST_STORE_KEY"}, "secret_access_key": {"env": "TEST_STORE_SECRET"}}
        content = {"store": {**plain.model_dump(exclude_unset=True), **named}}
        return StoreOpener(loaded_from(content, "test").with_secrets().store, f"s3://{bucket}/{uuid4().hex}")

    def test_a_pickle_names_variables_alone(self, opener: StoreOpener, s3_server: S3Server) -> None:
        opener.open().put("key", b"content")
        journey = pickle.dumps(opener)
        assert b"TEST_STORE_SECRET" in journey
        assert s3_server.settings().secret_access_key.encode() not in journey
        assert s3_server.settings().access_key_id.encode() not in journey
        assert pickle.loads(journey).open() is opener.open()

    def test_another_process_reads_its_own_environment(self, opener: StoreOpener) -> None:
        opener.open().put("key", b"content")
        with another_process() as pool:
            assert pool.submit(_read, opener).result() == b"content"

    def test_a_process_without_the_variable_says_so(self, opener: StoreOpener, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("TEST_STORE_SECRET")
        message = r"store\.secret_access_key is to come from the environment variable TEST_STORE_SECRET, .* executors"
        with another_process() as pool, pytest.raises(ConfigurationError, match=message):
            pool.submit(_read, opener).result()

    def test_settings_that_are_no_credentials_travel_as_they_are(self) -> None:
        with pytest.raises(ConfigurationError, match="region: not a credential of `store`"):
            loaded_from({"store": {"from_environment": {"region": "X"}}}, "test")
