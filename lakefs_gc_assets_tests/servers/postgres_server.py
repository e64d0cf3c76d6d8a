"""A separate PostgreSQL server for a test, from the programs of Debian's packages."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lakefs_gc_assets_tests.servers.free_ports import free_port

USER = DATABASE = "dagster"
PASSWORD = "test-postgres-password"
_SECONDS = 60


def _programs() -> Path | None:
    """The program folder of the newest installed server."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: int(folder.parent.name))
    found = shutil.which("initdb")
    return folders[-1] if folders else Path(found).parent if found else None


PROGRAMS = _programs()
needs_postgres = pytest.mark.skipif(PROGRAMS is None, reason="there is no PostgreSQL server (Debian: postgresql)")


@contextmanager
def postgres() -> Iterator[int]:
    """Starts a server with an empty database; yields its port. Root starts it as the package's user."""
    assert PROGRAMS is not None
    user = "postgres" if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="lakefs-gc-postgres-") as name:
        folder = Path(name)
        (folder / "password").write_text(PASSWORD)
        if user:
            shutil.chown(folder / "password", user)
            shutil.chown(folder, user)
        data = folder / "data"
        made = ["-D", str(data), "-U", USER, "-A", "scram-sha-256", "--pwfile", str(folder / "password"), "--no-sync"]
        subprocess.run([str(PROGRAMS / "initdb"), *made], check=True, capture_output=True, user=user, cwd=folder)
        port = free_port()
        listens = ["-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={folder}", "-c", "fsync=off"]
        server = subprocess.Popen(
            [str(PROGRAMS / "postgres"), "-D", str(data), "-p", str(port), *listens],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=user,
            cwd=folder,
        )
        try:
            _wait(server, port)
            create = [str(PROGRAMS / "createdb"), "-h", "127.0.0.1", "-p", str(port), "-U", USER, DATABASE]
            subprocess.run(create, check=True, env={**os.environ, "PGPASSWORD": PASSWORD})
            yield port
        finally:
            server.terminate()
            server.wait()


def _wait(server: "subprocess.Popen[bytes]", port: int) -> None:
    assert PROGRAMS is not None
    until = time.monotonic() + _SECONDS
    asked = [str(PROGRAMS / "pg_isready"), "-h", "127.0.0.1", "-p", str(port)]
    while subprocess.run(asked, stdout=subprocess.DEVNULL).returncode:
        assert server.poll() is None and time.monotonic() < until, "PostgreSQL does not start"
        time.sleep(0.1)
