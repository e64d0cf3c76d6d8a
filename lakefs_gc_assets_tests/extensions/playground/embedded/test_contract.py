import csv
import gzip
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from lakefs_gc_assets.extensions.playground.embedded import repositories
from lakefs_gc_assets.extensions.playground.embedded.core import ServerSettings
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.lakefs.formats.ranges import read_metarange
from lakefs_gc_assets.storage.local.store import LocalStore
from lakefs_gc_assets_tests.extensions.playground.embedded import clients, uploads
from lakefs_gc_assets_tests.extensions.playground.embedded.contract import (
    DIFFERENCES,
    Call,
    Mapping,
    Player,
    read_calls,
)
from lakefs_gc_assets_tests.extensions.playground.embedded.routes import ROUTES
from lakefs_gc_assets_tests.extensions.playground.embedded.s3_gateway import GatewayServer
from lakefs_gc_assets_tests.runs.recordings import FIXTURES, needs_recordings

pytestmark = needs_recordings
_GRAPHS = ("random-dag/11", "random-dag/12", "random-dag/13", "random-dag/14", "merge-dangling")


def _truth(name: str) -> dict[str, Any]:
    packed = FIXTURES / name / "truth.json.gz"
    text = gzip.decompress(packed.read_bytes()) if packed.exists() else (FIXTURES / name / "truth.json").read_bytes()
    truth: dict[str, Any] = json.loads(text)
    return truth


def _through_the_gateway(server: EmbeddedServer, repository: str) -> None:
    """Repeats the recording's gateway calls, for which only results were recorded."""
    client = clients.s3(server)
    client.put_object(Bucket=repository, Key="main/gw/put", Body=b"p" * 201, Metadata={"k": "v"})
    client.put_object(Bucket=repository, Key="main/gw/deleted", Body=b"d" * 76)
    for key, source in (
        ("main/gw/copy", "main/live/02.bin"),
        ("feature/gw/copy", "main/live/02.bin"),
        ("main/gw/copy-staged", "main/gw/put"),
    ):
        client.copy_object(Bucket=repository, Key=key, CopySource=f"{repository}/{source}")
    upload = client.create_multipart_upload(Bucket=repository, Key="main/gw/mpu")["UploadId"]
    part = client.upload_part(Bucket=repository, Key="main/gw/mpu", UploadId=upload, PartNumber=1, Body=b"m" * 1000)
    completed = client.complete_multipart_upload(
        Bucket=repository,
        Key="main/gw/mpu",
        UploadId=upload,
        MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]},
    )
    assert completed["ETag"].endswith('-1"')


def _upload_parts(server: EmbeddedServer, call: Call, player: Player) -> None:
    """Uploads the parts that a recorded completion names, and learns their ETags."""
    core = server.core
    repository = repositories.get(core, call.path.split("/")[4])
    upload_id = player.mapping.translate(call.path.rsplit("/", 1)[1])
    for part in call.body["parts"]:
        etag = uploads.put_part(core, repository, upload_id, part["part_number"], b"x" * 287)
        assert player.mapping.learn(part["etag"], f'"{etag}"')


class _Ranges:
    """Recorded ranges by metarange: no answer names a range, so their ids were read from the metaranges' files."""

    def __init__(self, name: str) -> None:
        self._metarange_of: dict[str, tuple[str, int]] = {}
        packed = FIXTURES / name / "sstables.jsonl.gz"
        text = (
            gzip.decompress(packed.read_bytes())
            if packed.exists()
            else (FIXTURES / name / "sstables.jsonl").read_bytes()
        )
        for line in text.splitlines():
            table = json.loads(line)
            if table["user_properties"]["type"] == "metaranges":
                for position, entry in enumerate(table["entries"]):
                    self._metarange_of[entry["range_id"]] = (table["file"], position)

    def learn(self, recorded: str, player: Player) -> None:
        """Maps a range to a range of our metarange: paths are split elsewhere, so numbers of ranges may differ."""
        if recorded not in self._metarange_of or recorded in player.mapping.ours:
            return
        metarange, position = self._metarange_of[recorded]
        own = player.mapping.ours[metarange]
        repository = next(iter(repositories.every(player.server.core)))
        data = repositories.store_of(player.server.core, repository).get(f"_lakefs/{own}")
        ids = [record.id for record in read_metarange(data, own)]
        player.mapping.ours[recorded] = ids[min(position, len(ids) - 1)]


def _play(folder: Path, name: str) -> tuple[Player, EmbeddedServer]:
    """Plays one recording with unrecorded actions: gateway calls, and uploads to presigned links and from outside."""
    server = GatewayServer(folder, settings=ServerSettings(range_entries=100), routes=ROUTES)
    server.__enter__()
    player, ranges = Player(server, compare_contents=name != "wide"), _Ranges(name)
    done = set()
    for call in player.play(read_calls(FIXTURES / name / "api.jsonl")):
        if "/metadata/" in call.path:
            ranges.learn(call.path.rsplit("/", 1)[1], player)
        if "/staging/pmpu/" in call.path and call.method == "PUT":
            _upload_parts(server, call, player)
        if call.note in done:
            continue
        done.add(call.note)
        match call.note:
            case "S3 gateway":
                _through_the_gateway(server, call.path.split("/")[4])
            case "import":
                external = server.objects_folder / "external" / call.path.split("/")[4] / "imp"
                external.mkdir(parents=True)
                for number in range(4):
                    (external / f"i{number}").write_bytes(b"imported %d" % number)
                # The first listing of a process imports pandas, which can take longer than times may differ.
                list(LocalStore(external).list(""))
            case "final staged state" if "S3 gateway" in done:
                clients.s3(server).delete_object(Bucket=call.path.split("/")[4], Key="main/gw/deleted")
    return player, server


Played = Callable[[str], tuple[Player, EmbeddedServer]]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """Plays a recording on first use, and keeps its server."""
    known: dict[str, tuple[Player, EmbeddedServer]] = {}

    def play(name: str) -> tuple[Player, EmbeddedServer]:
        if name not in known:
            known[name] = _play(tmp_path_factory.mktemp("played"), name)
        return known[name]

    yield play
    for _, server in known.values():
        server.stop()


@pytest.mark.parametrize("name", ["empty", "small", "wide", *_GRAPHS])
def test_answers_are_those_recorded(name: str, played: Played) -> None:
    player, _ = played(name)
    assert player.problems == []
    assert player.played > 40


def test_a_wrong_answer_is_found(played: Played) -> None:
    player, _ = played("empty")
    call = read_calls(FIXTURES / "empty" / "api.jsonl")[0]
    for wrong in ({"read_only": 0}, {"id": "other"}, {"creation_date": 1}, {"more": 1}):
        found = Player(player.server, Mapping(dict(player.mapping.ours), dict(player.mapping.recorded)))
        answer = json.loads(player.mapping.translate(json.dumps(call.json))) | wrong
        found.compare(call, call.status, call.headers, json.dumps(answer).encode())
        assert len(found.problems) == 1, wrong


@pytest.mark.parametrize("name", ["small", *_GRAPHS])
def test_prepared_commits_are_those_of_the_real_server(name: str, played: Played) -> None:
    player, server = played(name)
    truth = _truth(name)
    repository = repositories.get(server.core, truth["repository"])
    variants = [
        {"rules": truth["gc_rules"], "at": truth["gc_prepared_at"], "run_id": truth["prepare_commits"]["run_id"]}
    ]
    for variant in variants + truth.get("rule_variants", []):
        run_id = player.mapping.ours[variant["run_id"]]
        key = f"_lakefs/retention/gc/commits/run_id={run_id}/commits.csv"
        rows = list(csv.DictReader(io.StringIO(repositories.store_of(server.core, repository).get(key).decode())))
        recorded = variant.get("active_commits") or [row["commit_id"] for row in truth["prepare_commits"]["rows"]]
        assert {row["commit_id"] for row in rows} == {player.mapping.translate(commit) for commit in recorded}
        assert {row["expired"] for row in rows} == {"false"}


@pytest.mark.parametrize("name", ["small", "empty", *_GRAPHS])
def test_uncommitted_data_are_those_of_the_real_server(name: str, played: Played) -> None:
    player, server = played(name)
    recorded = _truth(name)["prepare_uncommitted"]
    run_id = player.mapping.ours[recorded["run_id"]]
    namespace = server.objects_folder / _truth(name)["repository"]
    files = list((namespace / f"_lakefs/retention/gc/uncommitted/{run_id}/uncommitted").glob("*"))
    assert len(files) == len(recorded["files"])
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    expected = sorted(player.mapping.translate(row["physical_address"]) for row in recorded["rows"])
    assert sorted(row["physical_address"] for row in rows) == expected
    for file, recorded_file in zip(files, recorded["files"], strict=True):
        metadata = pq.ParquetFile(file).metadata
        for number, column in enumerate(recorded_file["columns"]):
            chunk = metadata.row_group(0).column(number)
            assert chunk.path_in_schema == column["path"]
            assert (chunk.physical_type, chunk.compression) == (column["physical_type"], column["compression"])
        assert not any(metadata.schema.column(number).max_definition_level for number in range(2))


def test_what_differs_is_a_short_list_and_all_of_it_is_met(played: Played) -> None:
    assert len(DIFFERENCES) < 10
    assert set().union(*(played(name)[0].allowed for name in ("small", "wide", "merge-dangling"))) == set(DIFFERENCES)
