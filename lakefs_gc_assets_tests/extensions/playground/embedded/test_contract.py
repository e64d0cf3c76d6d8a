import csv
import gzip
import io
import json
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import md5
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import pyarrow.parquet as pq
import pytest

from lakefs_gc_assets.extensions.playground.embedded import objects, repositories
from lakefs_gc_assets.extensions.playground.embedded.core import ServerSettings
from lakefs_gc_assets.extensions.playground.embedded.objects import ObjectPlace
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.lakefs.formats.ranges import read_metarange
from lakefs_gc_assets.storage.local.store import LocalStore
from lakefs_gc_assets_tests.extensions.playground.embedded import uploads
from lakefs_gc_assets_tests.extensions.playground.embedded.routes import ROUTES
from lakefs_gc_assets_tests.runs.recordings import FIXTURES, needs_recordings

_KINDS = (
    r"[0-9a-f]{64}",
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    r"[0-9a-f]{32}-\d+",
    r"[0-9a-f]{32}",
    r"[0-9a-v]{20},[A-Za-z0-9_-]{43}",
    r"[0-9a-v]{20}",
    r"GCPC[A-Za-z0-9_-]{20}",
    r"DR[A-Za-z0-9_-]{20}",
)
"""Commits and metaranges, uploads, ETags, issued addresses, names of objects, slices and runs, tasks."""
_TOKENS = re.compile("|".join(_KINDS))
_COMMIT_OR_METARANGE = re.compile(r"[0-9a-f]{64}")
_TIMES = frozenset({"mtime", "creation_date", "update_time", "presigned_url_expiry", ".lakefs.last.import.timestamp"})
_TOLERANCE_SECONDS = 5
_LONGEST_POLL_SECONDS = 30
_POLLS = ("/gc/prepare_commits/status", "/dump", "/import")
_UNORDERED = frozenset({"branches"})

DIFFERENCES = {
    "blockstore": "objects lie in a local folder: namespaces and addresses begin with local://<name>/, not with the "
    "absolute path of the folder as on real local blockstores, so that a collector may sweep",
    "polls": "background work ends after another number of polls",
    "deletion": "a deleted repository is gone at once; the real one still answered 409 for some seconds",
    "schema": "a body that breaks the schema is refused with the first line of the message, without the schema's text",
    "presigned": "presigned links lead to the embedded server itself, so only their presence is compared",
    "order": "rules of branches are compared without their order, which is random on real servers",
    "location": "on a folder the location of uncommitted data has no trailing slash, as on real local blockstores",
    "unrecorded": "in `wide` most uploads were not recorded, so contents of lists and differences are not compared",
}
"""Intended differences, by name, with the reason."""


@dataclass(frozen=True)
class Call:
    """One recorded call and its answer."""

    number: int
    note: str
    at: float
    method: str
    path: str
    query: dict[str, Any]
    body: Any
    status: int
    headers: dict[str, str]
    json: Any
    text: str | None


def read_calls(file: Path) -> list[Call]:
    calls = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines()):
        record = json.loads(line)
        calls.append(
            Call(
                number,
                record["note"] or "",
                record["at"],
                record["method"],
                record["path"],
                record["query"],
                record["request_body"],
                record["status"],
                record["response_headers"],
                record.get("response_json"),
                record.get("response_text"),
            )
        )
    return calls


@dataclass
class Mapping:
    """Recorded tokens and ours. Each recorded token maps to one of ours; only equal metaranges may share a token."""

    ours: dict[str, str] = field(default_factory=dict)
    recorded: dict[str, str] = field(default_factory=dict)

    def translate(self, text: str) -> str:
        """A recorded string in the form that our server expects."""
        text = text.replace("s3://lakefs/", "local://").replace("s3://external/", "local://external/")
        return _TOKENS.sub(lambda match: self.ours.get(match[0], match[0]), text)

    def learn(self, recorded: str, own: str) -> bool:
        """True if two strings are equal except for new tokens, which are then learned."""
        pattern, tokens, position = "", [], 0
        recorded = recorded.replace("s3://lakefs/", "local://").replace("s3://external/", "local://external/")
        for match in _TOKENS.finditer(recorded):
            known = self.ours.get(match[0])
            pattern += re.escape(recorded[position : match.start()])
            pattern += f"({_kind(match[0])})" if known is None else re.escape(known)
            tokens += [match[0]] if known is None else []
            position = match.end()
        found = re.fullmatch(pattern + re.escape(recorded[position:]), own)
        if found is None:
            return False
        for token, value in zip(tokens, found.groups(), strict=True):
            if self.recorded.get(value, token) != token and not _COMMIT_OR_METARANGE.fullmatch(token):
                return False
            self.ours[token] = value
            self.recorded[value] = token
        return True


@dataclass
class Player:
    """Sends recorded calls to a server; `problems` lists the differences of answers."""

    server: EmbeddedServer
    mapping: Mapping = field(default_factory=Mapping)
    problems: list[str] = field(default_factory=list)
    compare_contents: bool = True
    """False for incomplete recordings: results of lists and differences are then not compared."""
    played: int = 0
    allowed: set[str] = field(default_factory=set)
    """Names of the differences that occurred."""

    def _allow(self, difference: str) -> bool:
        assert difference in DIFFERENCES
        self.allowed.add(difference)
        return True

    def play(self, calls: list[Call]) -> Iterator[Call]:
        """Plays the calls in order; yields each before it is sent, so that callers can add unrecorded actions."""
        address = urlsplit(self.server.url).netloc
        connection = HTTPConnection(address, timeout=30)
        for position, call in enumerate(calls):
            if _is_superseded(call, calls[position + 1 : position + 2]):
                self._allow("polls" if _is_poll(call) else "deletion")
                continue
            yield call
            self.server.clock.set(datetime.fromtimestamp(call.at, UTC))
            status, headers, body = self._send(connection, call)
            if status == 202:
                # Before the clock advances: background work has the time of the call.
                self.server.core.tasks.wait_for_all(_LONGEST_POLL_SECONDS)
            give_up = time.monotonic() + _LONGEST_POLL_SECONDS
            while _is_poll(call) and not _is_finished(body) and _is_finished(json.dumps(call.json).encode()):
                assert time.monotonic() < give_up, f"{call.path} does not end: {body!r}"
                self._allow("polls")
                time.sleep(0.01)
                status, headers, body = self._send(connection, call)
            self.compare(call, status, headers, body)
            self.played += 1
        connection.close()

    def _send(self, connection: HTTPConnection, call: Call) -> tuple[int, dict[str, str], bytes]:
        path = quote(self.mapping.translate(call.path), safe="/%")
        query = {name: self.mapping.translate(str(value)) for name, value in call.query.items()}
        headers = {}
        if call.status != 401:
            headers["Authorization"] = self.server.basic_authorization
        body: bytes | None = None
        if isinstance(call.body, str) and (match := re.fullmatch(r"<(\d+) bytes>", call.body)):
            body = _content(call.json["checksum"], int(match[1]))
            headers["Content-Type"] = "application/octet-stream"
        elif call.body is not None:
            body = json.dumps(self._translated(call.body)).encode()
            headers["Content-Type"] = "application/json"
        connection.request(call.method, f"{path}?{urlencode(query)}" if query else path, body, headers)
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()

    def _translated(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.mapping.translate(value)
        if isinstance(value, dict):
            return {key: self._translated(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._translated(item) for item in value]
        return value

    def compare(self, call: Call, status: int, headers: dict[str, str], body: bytes) -> None:
        """Compares one answer with the recorded one."""
        where = f"{call.number} [{call.note}] {call.method} {call.path} {call.query}"
        if status != call.status:
            self.problems.append(f"{where}: status {status}, recorded {call.status}: {body[:300]!r}")
            return
        recorded_type = call.headers.get("Content-Type")
        if recorded_type != headers.get("Content-Type"):
            self.problems.append(f"{where}: content type {headers.get('Content-Type')}, recorded {recorded_type}")
        if "Location" in call.headers and "Location" not in headers:
            self.problems.append(f"{where}: there is no Location")
        if call.json is not None:
            self._compare_json(where, "", call.json, json.loads(body), call)
        elif call.text is not None and not self.mapping.learn(call.text, body.decode()):
            self.problems.append(f"{where}: text {body!r}, recorded {call.text!r}")

    def _compare_json(self, where: str, key: str, recorded: Any, own: Any, call: Call) -> None:
        if key in _TIMES:
            if type(recorded) is not type(own) or abs(_seconds(recorded) - _seconds(own)) > _TOLERANCE_SECONDS:
                self.problems.append(f"{where}: {key} is {own!r}, recorded {recorded!r}")
        elif type(recorded) is not type(own):
            self.problems.append(f"{where}: {key} is {own!r}, recorded {recorded!r}")
        elif isinstance(recorded, dict):
            if recorded.keys() != own.keys():
                self.problems.append(f"{where}: {key} has {sorted(own)}, recorded {sorted(recorded)}")
                return
            for name, value in recorded.items():
                self._compare_json(where, name, value, own[name], call)
        elif isinstance(recorded, list):
            self._compare_list(where, key, recorded, own, call)
        elif isinstance(recorded, str):
            self._compare_text(where, key, recorded, own, call)
        elif recorded != own and not self.compare_contents and key in ("results", "has_more"):
            self._allow("unrecorded")
        elif recorded != own:
            self.problems.append(f"{where}: {key} is {own!r}, recorded {recorded!r}")

    def _compare_list(self, where: str, key: str, recorded: list[Any], own: list[Any], call: Call) -> None:
        if key in _UNORDERED and self._allow("order"):
            recorded, own = (sorted(items, key=json.dumps) for items in (recorded, own))
        if not self.compare_contents and key == "results" and call.path.endswith("/diff"):
            self._allow("unrecorded")
            return
        if len(recorded) != len(own):
            self.problems.append(f"{where}: {key} has {len(own)} items, recorded {len(recorded)}")
            return
        # Branch lists and logs are ordered by name or generation, not by id: compare item by item.
        for item, our in zip(recorded, own, strict=True):
            self._compare_json(where, key, item, our, call)

    def _compare_text(self, where: str, key: str, recorded: str, own: str, call: Call) -> None:
        if key in ("presigned_url", "gc_commits_presigned_url", "presigned_urls"):
            same = self._allow("presigned") and own.startswith("http://") and recorded.startswith("http://")
        elif key == "blockstore_type" or key.startswith(("blockstore_namespace", "import_validity")):
            same = self._allow("blockstore") and recorded.replace("s3", "local") == own
        elif key == "gc_uncommitted_location":
            same = self._allow("location") and self.mapping.learn(recorded.rstrip("/"), own)
        elif key == "message" and call.status == 400 and "\nSchema:" in recorded:
            same = self._allow("schema") and recorded.partition("\nSchema:")[0] == own
        elif not self.compare_contents and key == "next_offset":
            same = self._allow("unrecorded")
        else:
            same = self.mapping.learn(recorded, own)
        if not same:
            known = self.mapping.translate(recorded)
            self.problems.append(f"{where}: {key} is {own!r}, recorded {recorded!r}, that is {known!r}")


def _kind(token: str) -> str:
    """The form that our token must also have."""
    return next(kind for kind in _KINDS if re.fullmatch(kind, token))


def _seconds(value: Any) -> float:
    if isinstance(value, str) and not value.isdigit():
        return datetime.fromisoformat(re.sub(r"(\.\d{6})\d*Z$", r"\1+00:00", value)).timestamp()
    return float(value)


def _content(checksum: str, size: int) -> bytes:
    """Bytes of this size, determined by the recorded checksum."""
    return random.Random(checksum).randbytes(size)


def _is_poll(call: Call) -> bool:
    return call.method == "GET" and call.status == 200 and call.path.endswith(_POLLS)


def _is_finished(body: bytes) -> bool:
    answer = json.loads(body)
    return bool(answer.get("completed") or answer.get("done"))


def _is_superseded(call: Call, following: list[Call]) -> bool:
    """True if the next recorded call repeats this one because it had to wait."""
    if not following or (call.method, call.path) != (following[0].method, following[0].path):
        return False
    if _is_poll(call):
        return call.query == following[0].query
    return call.status == 409 and call.path.endswith("/repositories") and call.body == following[0].body


pytestmark = needs_recordings
_GRAPHS = ("random-dag/11", "random-dag/12", "random-dag/13", "random-dag/14", "merge-dangling")


def _truth(name: str) -> dict[str, Any]:
    packed = FIXTURES / name / "truth.json.gz"
    text = gzip.decompress(packed.read_bytes()) if packed.exists() else (FIXTURES / name / "truth.json").read_bytes()
    truth: dict[str, Any] = json.loads(text)
    return truth


def _through_the_gateway(server: EmbeddedServer, repository_id: str) -> None:
    """Repeats the effects of the recording's gateway calls, for which only results were recorded."""
    core = server.core
    repository = repositories.get(core, repository_id)

    def place(path: str, branch: str = "main") -> ObjectPlace:
        return ObjectPlace(repository, branch, path)

    objects.upload(core, place("gw/put"), b"p" * 201, "", {"X-Amz-Meta-k": "v"})
    objects.upload(core, place("gw/deleted"), b"d" * 76, "", {})
    for target, source in (
        (place("gw/copy"), place("live/02.bin")),
        (place("gw/copy", "feature"), place("live/02.bin")),
        (place("gw/copy-staged"), place("gw/put")),
    ):
        objects.copy(core, source, target)
    part = b"m" * 1000
    objects.upload(core, place("gw/mpu"), part, "", {})
    # The gateway's entries have the checksum of parts without their number.
    entry = replace(objects.find(core, repository, "main", "gw/mpu").entry, etag=md5(md5(part).digest()).hexdigest())
    objects.stage(core, repository, "main", "gw/mpu", entry)


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
    server = EmbeddedServer(folder, settings=ServerSettings(range_entries=100), routes=ROUTES)
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
                repository = repositories.get(server.core, call.path.split("/")[4])
                objects.delete(server.core, repository, "main", "gw/deleted")
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
