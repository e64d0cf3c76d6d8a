"""`lakefs-gc doctor` on an embedded server."""

import json
from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest
import yaml
from click.testing import CliRunner, Result

from lakefs_gc_assets.cli import main
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.extensions.playground.demo import configuration
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets_tests.cli.invoked import assert_one_line
from lakefs_gc_assets_tests.extensions.playground.embedded import clients, routes
from lakefs_gc_assets_tests.extensions.playground.embedded.conftest import server

__all__ = ["server"]

SECRET = "TEST_DOCTOR_SECRET"
Doctor = Callable[..., Result]


@pytest.fixture
def doctor(server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Doctor:
    """Asks about the repository as a user without permission for some actions."""
    clients.upload(server, "a", b"a")
    clients.commit(server, "first")

    def invoke(*arguments: str, denied: tuple[str, ...] = (), secret: str | None = None) -> Result:
        user = routes.add_user(server, "collector", *denied)
        content = configuration(server, "repo").model_dump(exclude_defaults=True)
        content["lakefs"] |= {"access_key_id": user.access_key_id, "secret_access_key": {"env": SECRET}}
        file = tmp_path / "lakefs-gc.yaml"
        file.write_text(yaml.safe_dump(content))
        monkeypatch.setenv(SECRET, secret or user.secret_access_key)
        found = CliRunner().invoke(main, ["doctor", "--config", str(file), *arguments])
        assert user.secret_access_key not in found.output
        return found

    return invoke


def test_a_repository_that_is_ready(doctor: Doctor) -> None:
    found = doctor()

    assert found.exit_code == 0, found.output
    lines = found.stdout.splitlines()
    assert lines[-2:] == ["dry run: ready", "sweep: ready"]
    assert "works       list branches: 1 branch" in lines
    assert lines[0].startswith(f"works       start Spark: Spark {pyspark.__version__} with Java ")
    assert not [line for line in lines if line.startswith("missing")]


def test_what_is_missing_is_said_with_what_gives_it(doctor: Doctor) -> None:
    found = doctor(denied=("fs:ListRepositories", "fs:ListTags"))

    assert found.exit_code == Status.INCOMPLETE
    lines = found.stdout.splitlines()
    [missing] = [line for line in lines if line.startswith("missing")]
    assert missing.startswith("missing     list repositories (sweep, quarantine): GET /repositories: 403")
    assert missing.endswith("[fs:ListRepositories, docs/policies/lakefs-collect.json]")
    assert [line for line in lines if line.startswith("not needed  dump refs (retention)")]
    assert lines[-2:] == ["dry run: ready", "sweep: not ready; missing: list repositories"]

    dry = doctor("--for", "dry-run", denied=("fs:ListRepositories",))
    assert (dry.exit_code, dry.stdout.splitlines()[-1]) == (0, "dry run: ready")


def test_nothing_else_is_tried_with_a_wrong_secret(doctor: Doctor) -> None:
    found = doctor(secret="another one")

    assert found.exit_code == Status.INCOMPLETE
    _, missing, *rest = found.stdout.splitlines()
    assert missing.startswith("missing     read the repository: GET /repositories/repo: 401")
    assert missing.endswith("Check lakefs.access_key_id and lakefs.secret_access_key"), "no permission mends it"
    assert rest == [
        "nothing else was tested: correct this first",
        "dry run: not ready; missing: read the repository",
        "sweep: not ready; missing: read the repository",
    ]


def test_in_json(doctor: Doctor) -> None:
    found = doctor("--json", "--for", "retention", denied=("fs:ListTags",))

    assert found.exit_code == Status.INCOMPLETE
    answer = json.loads(found.stdout)
    assert answer.keys() == {"repository", "well", "stopped", "lacking", "findings", "left"}
    assert (answer["repository"], answer["well"], answer["left"]) == ("repo", False, [])
    assert answer["lacking"] == {"retention": ["dump refs"]}
    for finding in answer["findings"]:
        assert finding.keys() == {"name", "purposes", "state", "detail", "given_by"}
        assert finding["state"] in ("works", "missing", "not needed")


def test_a_purpose_that_is_unknown(doctor: Doctor) -> None:
    found = doctor("--for", "holidays")

    assert found.exit_code == Status.USAGE
    assert "dry-run" in found.stderr


def test_without_a_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert_one_line(CliRunner().invoke(main, ["doctor"]), "no configuration", status=Status.CONFIGURATION)
