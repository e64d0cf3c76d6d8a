"""Records a repository of a real server in the tests' own format, so that later versions can be compared.

`python -m lakefs_gc_assets_tests.real.recorder FOLDER` plays the scene of `scene` and records it into FOLDER, which
must not exist yet. For another version of lakeFS, change `programs.LAKEFS`.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lakefs_gc_assets_tests.real import programs, scene
from lakefs_gc_assets_tests.real.calls import Server
from lakefs_gc_assets_tests.real.server import BASIC_AUTHORIZATION, LAKEFS_KEYS, RealLakeFS, installation
from lakefs_gc_assets_tests.replay.recorder import Recorder, write_answers_and_files


def record(lakefs: RealLakeFS, repository: str, folder: Path) -> None:
    """Writes a recording of the current state of a repository into a new folder."""
    server = Server(lakefs.url, LAKEFS_KEYS, lakefs.folder / "buckets", enforces_protection=True)
    base = f"/repositories/{repository}"
    namespace = server.send("GET", base).json()["storage_namespace"]
    root = server.buckets / namespace.removeprefix("s3://")

    def read(location: str) -> str:
        return (server.buckets / location.removeprefix("s3://")).read_text()

    branches = [each["id"] for each in _pages(server, f"{base}/branches", show_hidden="true")]
    commits = {each["id"]: None for name in branches for each in _pages(server, f"{base}/refs/{name}/commits")}
    changes = {name: [*_pages(server, f"{base}/branches/{name}/diff")] for name in branches}
    staged = [(name, each["path"]) for name in branches for each in changes[name] if each["type"] != "removed"]
    recorder = Recorder(lakefs.url, BASIC_AUTHORIZATION, repository, lakefs.now, read)
    stated = recorder.ask_everything(commits, staged)
    files = ((key, path) for key, path in server.files(root.relative_to(server.buckets).as_posix()).items())
    write_answers_and_files(recorder, files, folder)
    truth = {
        "kind": "real",
        "lakefs": programs.LAKEFS[1],
        "repository": repository,
        "storage_namespace": namespace,
        "recorded_at": lakefs.now().timestamp(),
        **stated,
    }
    (folder / "truth.json").write_text(json.dumps(truth, indent=1))


def _pages(server: Server, path: str, **query: str) -> Iterator[dict[str, Any]]:
    after = ""
    while True:
        page = server.send("GET", path, None, {**query, "amount": 1000, "after": after}).json()
        yield from page["results"]
        if not page["pagination"]["has_more"]:
            return
        after = page["pagination"]["next_offset"]


def _main(folder: Path) -> None:
    with installation() as lakefs:
        lakefs.start()
        (lakefs.folder / "buckets" / "lake").mkdir()
        scene.play(Server(lakefs.url, LAKEFS_KEYS, lakefs.folder / "buckets", enforces_protection=True))
        record(lakefs, "repo", folder)


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
