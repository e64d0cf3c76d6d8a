"""Everyday commands of lakectl, on a real server and on the embedded one as it ships."""

import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.real import programs
from lakefs_gc_assets_tests.real.server import LAKEFS_KEYS, installation

_MADE_UP = re.compile(
    "|".join(
        (
            r"\b[0-9a-f]{64}\b",
            r"\b[0-9a-v]{20}\b",
            r"(?:s3|local|http)://\S+",
            r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d",
            r"\w{3} \w{3} \d\d \d\d:\d\d:\d\d \d{4}",
        )
    )
)
_COMMANDS = """\
branch list lakefs://repo
fs upload -s FILE lakefs://repo/main/folder/path
fs upload -s FILE lakefs://repo/main/path
fs ls lakefs://repo/main/
fs ls lakefs://repo/main/folder/
fs ls -r lakefs://repo/main/
fs stat lakefs://repo/main/path
fs stat lakefs://repo/main/none
fs cat lakefs://repo/main/path
fs cat lakefs://repo/main/none
fs download lakefs://repo/main/path COPY
diff lakefs://repo/main
commit lakefs://repo/main -m first
commit lakefs://repo/main -m again
log lakefs://repo/main
show commit lakefs://repo/main
branch create lakefs://repo/dev -s lakefs://repo/main
branch show lakefs://repo/dev
branch create lakefs://repo/dev -s lakefs://repo/main
fs upload -s FILE lakefs://repo/dev/dev
fs rm lakefs://repo/dev/path
diff lakefs://repo/dev
commit lakefs://repo/dev -m dev
diff lakefs://repo/main lakefs://repo/dev
merge lakefs://repo/dev lakefs://repo/main
merge lakefs://repo/dev lakefs://repo/main
fs ls -r lakefs://repo/main/
fs rm -r lakefs://repo/main/folder/
branch reset lakefs://repo/main --prefix folder/ --yes
branch reset lakefs://repo/main --yes
branch revert lakefs://repo/main main -m 1 --yes
cherry-pick lakefs://repo/dev lakefs://repo/main
tag create lakefs://repo/v1 lakefs://repo/main
tag create lakefs://repo/v1 lakefs://repo/main
tag list lakefs://repo
tag show lakefs://repo/v1
tag delete lakefs://repo/v1 --yes
gc get-config lakefs://repo
gc set-config lakefs://repo -f RULES
gc get-config lakefs://repo
branch-protect list lakefs://repo
branch delete lakefs://repo/dev --yes
branch delete lakefs://repo/main --yes
repo list
doctor"""


@dataclass(frozen=True)
class _Target:
    url: str
    keys: tuple[str, str]


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[_Target, _Target]]:
    """A real server, and the embedded one without routes of tests, each with the repository repo."""
    with installation() as lakefs, EmbeddedServer(tmp_path_factory.mktemp("embedded")) as embedded:
        lakefs.start()
        lakefs.new_repository("repo")
        clients.repository(embedded)
        yield (
            _Target(lakefs.url, LAKEFS_KEYS),
            _Target(embedded.url, (embedded.access_key_id, embedded.secret_access_key)),
        )


@pytest.fixture
def lakectl(tmp_path: Path) -> Callable[[_Target, str], tuple[int, str]]:
    """Runs a command; returns its status and output, without ids, addresses and times."""
    files = {"FILE": tmp_path / "file", "COPY": tmp_path / "copy", "RULES": tmp_path / "rules.json"}
    files["FILE"].write_bytes(b"content\n")
    files["RULES"].write_text('{"default_retention_days": 3, "branches": []}')
    configuration = tmp_path / "lakectl.yaml"
    configuration.touch()

    def run(target: _Target, command: str) -> tuple[int, str]:
        arguments = [str(files.get(word, word)) for word in command.split()]
        done = subprocess.run(
            [str(programs.lakectl()), "--config", str(configuration), "--no-color", *arguments],
            capture_output=True,
            text=True,
            env={
                "HOME": str(tmp_path),
                "LAKECTL_SERVER_ENDPOINT_URL": target.url,
                "LAKECTL_CREDENTIALS_ACCESS_KEY_ID": target.keys[0],
                "LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY": target.keys[1],
            },
        )
        return done.returncode, _MADE_UP.sub("<>", done.stdout + done.stderr)

    return run


def test_every_command_ends_and_prints_alike(
    targets: tuple[_Target, _Target], lakectl: Callable[[_Target, str], tuple[int, str]], tmp_path: Path
) -> None:
    real, embedded = (
        [(command, *lakectl(target, command)) for command in _COMMANDS.splitlines()] for target in targets
    )
    assert embedded == real
    assert (tmp_path / "copy").read_bytes() == b"content\n"
    # Commands that end with an error here do so on a real server too.
    assert sum(status != 0 for _, status, _ in real) < 10
