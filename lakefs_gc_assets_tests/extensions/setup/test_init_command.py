"""`lakefs-gc init`: the file it writes loads, holds no secret, and reaches an embedded server."""

import json
import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from lakefs_gc_assets.cli import main
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.configuration_file import load
from lakefs_gc_assets.extensions.playground.embedded.sample import make_sample_repository
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.settings import Configuration
from lakefs_gc_assets_tests.cli.invoked import SECRET, Invoke, assert_one_line, invoke

__all__ = ["invoke"]

FILE = Path("lakefs-gc.yaml")
_COMMENTED = re.compile(r"# ( *)([a-z_]+:.*)")
ANSWERED = ("--endpoint", "https://lakefs.example.com", "--repository", "images")
STORES = {
    "s3": (),
    "s3-compatible": ("--store-endpoint", "https://minio.example.com:9000"),
    "gcs": (),
    "azure": (),
    "local": ("--local-root", "/var/lib/lakefs"),
}


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LAKEFS_ACCESS_KEY_ID", "LAKEFS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, SECRET)


@pytest.mark.parametrize("store", STORES)
def test_what_is_written_is_a_configuration_of_a_dry_run(invoke: Invoke, store: str) -> None:
    found = invoke("init", *ANSWERED, "--store", store, *STORES[store])

    assert found.exit_code == 0, found.output
    assert found.stdout.endswith("then try: lakefs-gc doctor --config lakefs-gc.yaml\n")
    assert ("the store's credentials" in found.stdout) == (store != "local")
    assert SECRET not in FILE.read_text()
    loaded = load(FILE)
    configuration = loaded.with_secrets()
    assert configuration.repository == "images"
    assert configuration.lakefs.endpoint == "https://lakefs.example.com"
    assert configuration.lakefs.secret_access_key == SECRET
    assert not configuration.collection.sweep
    assert configuration.store.endpoint_url == ("https://minio.example.com:9000" if store == "s3-compatible" else "")
    assert configuration.store.path_style == (store == "s3-compatible")
    assert configuration.store.local_root == ("/var/lib/lakefs" if store == "local" else "")


def test_a_url_without_a_scheme_is_asked_for_again(invoke: Invoke) -> None:
    answers = "lakefs.example.com\nhttps://lakefs.example.com\nimages\ns3\n"
    found = CliRunner().invoke(main, ["init"], input=answers)

    assert found.exit_code == 0, found.output
    assert "--endpoint must begin with http:// or https://" in found.stderr
    assert load(FILE).configuration.lakefs.endpoint == "https://lakefs.example.com"
    assert invoke("init", "--endpoint", "lakefs.example.com", "--out", "other.yaml").exit_code == Status.USAGE


@pytest.mark.parametrize("store", STORES)
def test_an_editor_finds_the_schema_beside_the_file(invoke: Invoke, store: str) -> None:
    found = invoke("init", *ANSWERED, "--store", store, *STORES[store], "--out", "conf.yaml", "--json")

    named = re.fullmatch(r"# yaml-language-server: \$schema=(\S+)", Path("conf.yaml").read_text().splitlines()[0])
    assert named and json.loads(found.stdout)["schema"] == named[1]
    schema = json.loads(Path(named[1]).read_text())
    assert [*Draft202012Validator(schema).iter_errors(yaml.safe_load(Path("conf.yaml").read_text()))] == []


@pytest.mark.parametrize("store", STORES)
def test_each_setting_that_is_commented_out_is_one(invoke: Invoke, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    invoke("init", *ANSWERED, "--store", store, *STORES[store])
    text = FILE.read_text()
    for variable in re.findall(r"{env: (\w+)}", text):
        monkeypatch.setenv(variable, SECRET)

    FILE.write_text("\n".join(_COMMENTED.sub(r"\1\2", line) for line in text.splitlines()))

    loaded = load(FILE)
    found = loaded.configuration
    assert text.count("# ") > 15
    assert loaded.secret_variables["store", "signing_key"] == "LAKEFS_GC_SIGNING_KEY"
    assert (found.collection.sweep_mode, found.spark.many_objects) == ("quarantine", True)
    defaults = Configuration().collection
    assert found.collection.model_copy(update={"sweep_mode": "delete"}) == defaults
    assert found.automation == Configuration().automation


def test_a_file_that_is_there_stays_as_it_is(invoke: Invoke) -> None:
    FILE.write_text("mine")

    assert_one_line(invoke("init", *ANSWERED, "--store", "s3"), "lakefs-gc.yaml already exists")
    assert FILE.read_text() == "mine"
    assert invoke("init", *ANSWERED, "--store", "s3", "--out", "other.yaml").exit_code == 0
    assert load(Path("other.yaml")).configuration.repository == "images"


def test_it_asks_for_what_no_option_says(invoke: Invoke) -> None:
    found = CliRunner().invoke(
        main, ["init"], input="https://lakefs.example.com\nimages\ns3-compatible\nhttp://minio\n"
    )

    assert found.exit_code == 0, found.output
    assert "Kind of object store (s3, s3-compatible, gcs, azure, local) [s3]:" in found.stderr
    loaded = load(FILE).configuration
    assert (loaded.repository, loaded.store.endpoint_url) == ("images", "http://minio")


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        ((), "--endpoint"),
        (ANSWERED[:2], "--repository"),
        (ANSWERED, "--store"),
        ((*ANSWERED, "--store", "s3-compatible"), "--store-endpoint"),
        ((*ANSWERED, "--store", "local"), "--local-root"),
    ],
)
def test_where_nobody_answers_it_names_the_option(invoke: Invoke, arguments: tuple[str, ...], option: str) -> None:
    found = invoke("init", *arguments)

    assert found.exit_code == Status.USAGE
    assert f"give {option}." in found.stderr
    assert not FILE.exists()


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("--secret-variable", f"{SECRET}=="), Status.USAGE),
        (("--key-variable", f"{SECRET}=="), Status.USAGE),
        (("--endpoint", f"https://me:{SECRET}@lakefs.example.com"), Status.CONFIGURATION),
        (("--store", "s3-compatible", "--store-endpoint", f"https://me:{SECRET}@minio"), Status.CONFIGURATION),
    ],
)
def test_a_secret_is_neither_written_nor_repeated(invoke: Invoke, arguments: tuple[str, ...], status: Status) -> None:
    found = invoke("init", *ANSWERED, "--store", "s3", *arguments)

    assert found.exit_code == status
    assert SECRET not in found.output
    assert not FILE.exists()


@pytest.mark.parametrize("name", ["true", "2024", "a: b", "a #b", "ünï'\"", "-", "null", "{env: HOME}"])
def test_whatever_a_repository_is_called(invoke: Invoke, name: str) -> None:
    assert invoke("init", "--endpoint", "http://a", "--repository", name, "--store", "s3").exit_code == 0

    assert yaml.safe_load(FILE.read_text())["repository"] == name


@pytest.mark.slow
def test_what_it_writes_reaches_a_server(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedServer(tmp_path / "lakefs") as server:
        sample = make_sample_repository(server, objects=40)
        monkeypatch.setenv("OUR_KEY", server.access_key_id)
        monkeypatch.setenv("OUR_SECRET", server.secret_access_key)
        answers = ("--endpoint", server.url, "--repository", sample.repository, "--store", "local")
        variables = ("--key-variable", "OUR_KEY", "--secret-variable", "OUR_SECRET")
        wrote = invoke("init", *answers, "--local-root", str(server.objects_folder), *variables)
        assert wrote.exit_code == 0, wrote.output

        examined = invoke("doctor")
        assert examined.exit_code == 0, examined.output
        assert examined.stdout.splitlines()[-2:] == ["dry run: ready", "sweep: ready"]
