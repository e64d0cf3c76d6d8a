"""A recording of a real server has the same content as the tests' own recordings, and replays alike."""

import json
from datetime import UTC, datetime
from pathlib import Path

from lakefs_gc_assets.lakefs.formats.ranges import table_kind
from lakefs_gc_assets_tests.real.recorder import record
from lakefs_gc_assets_tests.real.server import installation
from lakefs_gc_assets_tests.replay.recording import Recording


def test_a_real_repository_is_recorded(tmp_path: Path) -> None:
    with installation() as lakefs:
        lakefs.start(days_ago=2)
        lakefs.new_repository("repo")
        lakefs.upload("repo", "main", "committed", b"committed")
        commit = lakefs.commit("repo", "main")
        lakefs.upload("repo", "main", "staged", b"staged")
        record(lakefs, "repo", tmp_path / "recording")
        recorded_before = lakefs.now()
    recording = Recording(tmp_path / "recording", datetime.now(UTC))
    assert recording.repository == "repo"
    assert recording.recorded_at <= recorded_before
    contents = {recording.read(key) for key in recording.objects if key.startswith("data/")}
    assert contents == {b"committed", b"staged"}
    dump = next(row for row in reversed(recording.rows) if row.path.endswith("/dump") and row.method == "GET")
    kinds = [table_kind(recording.read(f"_lakefs/{id_}"), id_).entity for id_ in dump.content["refs"].values()]
    assert sorted(map(str, kinds)) == ["branch", "commit", "tag"]
    truth = json.loads((tmp_path / "recording/truth.json").read_text())
    assert commit.id in {each["id"] for each in truth["commits"]}
    assert [row.path for row in recording.rows if "/objects/stat" in row.path] != []
