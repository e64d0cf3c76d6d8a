"""`lakefs-gc explain` on the embedded server."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from lakefs_gc_assets.cli import main
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.frame.frames import RECEIPTS
from lakefs_gc_assets.collector.live import uncommitted
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.records.outcomes import Kept, Outcome
from lakefs_gc_assets.extensions.explain.explain import Decision, Explanation
from lakefs_gc_assets.extensions.explain.explain_command import verdict
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.storage.interface import keys_below
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets_tests.collector.written import Staged, put_metarange, put_range
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.extensions.playground.embedded.routes import ROUTES
from lakefs_gc_assets_tests.runs.retained_repository import SECRET_VARIABLE, RetainedRepository, with_history

Invoke = Callable[..., Result]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RetainedRepository]:
    folder = tmp_path_factory.mktemp("explained")
    with EmbeddedServer(folder / "server", routes=ROUTES) as server:
        repository = with_history(server, folder)
        repository.rules(7, main=28)
        repository.configuration()
        yield repository


@pytest.fixture
def explain(made: RetainedRepository, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    monkeypatch.setenv(SECRET_VARIABLE, made.server.secret_access_key)
    file = str(made.folder / "lakefs-gc.yaml")
    return lambda *arguments: CliRunner().invoke(main, ["explain", "--config", file, *arguments])


def store_of(made: RetainedRepository) -> LocalStore:
    return LocalStore(made.server.objects_folder / "repo")


def leave_receipt(made: RetainedRepository, address: str, outcome: Outcome, error: str | None = None) -> str:
    """Writes the receipt of a run that decided about an address; returns the run's id."""
    store, run_id = store_of(made), layout.XidGenerator().descending(datetime.now(UTC))
    candidates = pa.table(
        {"address": [address], "size": [2], "slice": pa.array([None], pa.string()), "slice_window": ["legacy"]},
        schema=pa.schema([RECEIPTS.field(name) for name in ("address", "size", "slice", "slice_window")]),
    )
    store.put(run_folder.plan(run_id), b"{}")
    receipts.write(store, run_id, "batch", receipts.table(candidates, [outcome], [error], datetime.now(UTC)))
    return run_id


def lines(result: Result) -> list[str]:
    assert result.exit_code == 0, result.stderr
    return result.stdout.splitlines()


def test_what_holds_an_object_is_said_with_its_reason(made: RetainedRepository, explain: Invoke) -> None:
    commits, active = made.commits, "stays: 1 active commit holds it"
    expired = ["  in 1 expired commit", f"    {commits['of gone']} at"]
    for version, judged, holders, is_all in (
        ("v4", active, [f"    {commits['fourth']} at file: head of main"], False),
        ("v2", "stays: 2 active commits hold it", [f"    {commits['of dev']} at file: head of dev"], False),
        ("v1", active, [f"    {commits['first']} at file: tag v1.0", expired[0], f"{expired[1]} file"], False),
        ("lost", "goes by retention rules, once it is old enough", [expired[0], f"{expired[1]} lost"], True),
        ("staged", "stays: it is staged", ["  staged: repo, branch main, path staged file"], True),
    ):
        said = lines(explain(made.addresses[version]))
        assert said[0].startswith(f"{made.addresses[version]}: {judged}")
        assert said[1].startswith("  name: slice, issued 20")
        assert said[2].startswith(f"  stored: {len(version)} bytes, last modified 20")
        assert {*holders} <= {*said[3:]} and (said[3:] == holders or not is_all)
    said = lines(explain(made.addresses["v3"]))
    assert f"    {commits['third']} at file: was replaced on branch main by {commits['fourth']}, " in said[4]
    assert said[4].endswith("made 2.0 days ago: 28d by the server's rule of main")


def test_what_it_made_the_server_prepare_is_noted(made: RetainedRepository, explain: Invoke) -> None:
    store = store_of(made)
    before = {*uncommitted.recorded_preparations(store, None)}
    lines(explain(made.addresses["v4"]))
    (asked,) = {*uncommitted.recorded_preparations(store, None)} - before
    assert keys_below(store, f"{run_folder.folder(asked)}uncommitted/")
    assert uncommitted.remove_preparation_without_run(store, asked) > 1
    assert not keys_below(store, run_folder.folder(asked))


def test_one_damaged_receipt_ends_nothing(made: RetainedRepository, explain: Invoke) -> None:
    run_id = leave_receipt(made, made.addresses["v4"], Outcome.KEPT_LIVE)
    key = f"{run_folder.receipts(run_id)}damaged.parquet"
    store_of(made).put(key, b"damaged")
    (warning,) = explain(made.addresses["v4"]).stderr.splitlines()
    assert f"some decisions of run {run_id} are unknown" in warning
    answer = explain("--verbose", made.addresses["v4"])
    assert len(answer.stderr.splitlines()) > 1
    assert any(run_id in line for line in lines(answer))
    store_of(made).delete([key])


def test_path_with_control_characters_is_shown_as_text(made: RetainedRepository, explain: Invoke) -> None:
    path = "\x1b]0;title\x07\x1b[2J\x9b\u202e/a\r\nstays: forged"
    address = clients.upload(made.server, path, b"x")
    try:
        for arguments in ((), ("--json",)):
            answer = explain(*arguments, address)
            assert answer.exit_code == 0
            assert answer.stdout.replace("\n", "").isprintable()
        assert json.loads(answer.stdout)["staged"][0]["path"] == path
        (staged,) = (line for line in lines(explain(address)) if line.startswith("  staged"))
        assert staged.endswith(path.encode("unicode_escape").decode())
    finally:
        clients.call(made.server, "DELETE", "/repositories/repo/branches/main/objects", path=path)


def test_what_is_staged_with_the_content_of_a_committed_object_stays_however_old(
    made: RetainedRepository, explain: Invoke
) -> None:
    """The server lists it nowhere: for lakeFS, nothing changed at that path."""
    address = clients.upload(made.server, "file", b"v4")
    assert address != made.addresses["v4"]
    assert lines(explain(address))[0] == f"{address}: stays: {Kept.HIDDEN_STAGED}"
    clients.call(made.server, "DELETE", "/repositories/repo/branches/main/objects", path="file")
    clients.call(made.server, "PUT", "/repositories/repo/branches/main", {"type": "object", "path": "file"})
    assert "goes, once it is old enough" in lines(explain(address))[0]


def test_what_nothing_holds_any_more(made: RetainedRepository, explain: Invoke) -> None:
    address = clients.upload(made.server, "passing", b"x")
    clients.call(made.server, "DELETE", "/repositories/repo/branches/main/objects", path="passing")
    said = lines(explain(address))
    assert said[0].endswith("goes, once it is old enough: no commit holds it, and it is not staged")
    assert len(said) == 3


def test_what_a_run_deleted(made: RetainedRepository, explain: Invoke) -> None:
    address = clients.upload(made.server, "deleted", b"x")
    clients.call(made.server, "DELETE", "/repositories/repo/branches/main/objects", path="deleted")
    failed = leave_receipt(made, address, Outcome.FAILED, "AccessDenied")
    said = lines(explain(address))
    assert "goes" in said[0]
    assert f"  run {failed}, " in said[3]
    assert said[3].endswith("Z: tried to delete, and failed: AccessDenied")
    deleted = leave_receipt(made, address, Outcome.ACCEPTED)
    store_of(made).delete([address])
    said = lines(explain(address))
    assert said[0] == f"{address}: is gone: run {deleted} deleted it"
    assert said[2] == "  stored: no"
    assert {line.split()[1].rstrip(",") for line in said[3:]} == {failed, deleted}


@pytest.mark.parametrize(
    ("address", "verdict"),
    [
        ("data/nothing/at all", "is not stored: no run deleted it; perhaps it was never stored"),
        ("_lakefs/dummy", "stays: it belongs to lakeFS itself"),
        ("data/by hand", "stays: a name that lakeFS never makes"),
    ],
)
def test_names_that_are_no_objects_of_lakefs(
    made: RetainedRepository, explain: Invoke, address: str, verdict: str
) -> None:
    store_of(made).put("data/by hand", b"x")
    assert lines(explain(address))[0] == f"{address}: {verdict}"


def test_addresses_in_full(made: RetainedRepository, explain: Invoke) -> None:
    relative = made.addresses["v4"]
    assert lines(explain(f"local://repo/{relative}")) == lines(explain(relative))
    for outside in ("local://other/data/x", "s3://bucket/repo/data/x"):
        result = explain(outside)
        assert (result.exit_code, result.stdout) == (Status.CONFIGURATION, "")
        assert f"{outside} is outside of local://repo/" in result.stderr


def test_objects_by_their_path_in_lakefs(made: RetainedRepository, explain: Invoke) -> None:
    for reference, version in (("main", "v4"), ("v1.0", "v1"), (made.commits["second"], "v2")):
        assert lines(explain(f"lakefs://repo/{reference}/file")) == lines(explain(made.addresses[version]))
    assert lines(explain("lakefs://repo/main/staged file"))[0] == f"{made.addresses['staged']}: stays: it is staged"
    for address, said in (
        ("lakefs://repo/main/no such file", "lakeFS has no object at lakefs://repo/main/no such file"),
        ("lakefs://repo/main", "lakefs://repo/main is not a lakefs://REPOSITORY/REF/PATH in repo"),
        ("lakefs://other/main/file", "lakefs://other/main/file is not a lakefs://REPOSITORY/REF/PATH in repo"),
    ):
        result = explain(address)
        assert (result.exit_code, result.stdout) == (Status.CONFIGURATION, "")
        assert said in result.stderr


def test_ranges_that_no_commit_names_are_holders(made: RetainedRepository, explain: Invoke) -> None:
    """A second repository on the same namespace has such ranges."""
    generator, then = layout.XidGenerator(), datetime(2026, 1, 1, tzinfo=UTC)
    address = f"data/{generator.descending(then)}/{generator.ascending(then)}"
    store = store_of(made)
    store.put(address, b"theirs")
    record = put_range(store, {"their/path": Staged(address)})
    metarange_id = put_metarange(store, [record])
    try:
        said = lines(explain(address))
        assert "stays: 1 range of no commit holds it" in said[0]
        assert f"  in range {record.id}, which belongs to no commit, at their/path" in said
        made.configuration(keep_unnamed_ranges=False)
        said = lines(explain(address))
        assert "no commit holds it" in said[0]
        assert not any(record.id in line for line in said)
    finally:
        made.configuration()
        store.delete([address, f"_lakefs/{record.id}", f"_lakefs/{metarange_id}"])


@pytest.mark.slow
def test_references_of_another_repository_count(made: RetainedRepository, explain: Invoke, tmp_path: Path) -> None:
    clients.repository(made.server, "other")
    staging = {"physical_address": f"local://repo/{made.addresses['lost']}", "checksum": "0" * 32, "size_bytes": 4}
    status, _ = clients.call(made.server, "PUT", "/repositories/other/branches/main/objects", staging, path="borrowed")
    assert status == 201
    made.configuration(also_live=["other"], wait_before_dump_seconds=0)
    try:
        said = lines(explain(made.addresses["lost"]))
        assert said[0].endswith("stays: it is staged")
        assert "  staged: other, branch main, path borrowed" in said
        borrowed = clients.commit(made.server, "borrow", name="other")["id"]
        said = lines(explain(made.addresses["lost"]))
        assert said[0].endswith("stays: 1 active commit holds it")
        assert f"    {borrowed} at borrowed: repository other holds it" in said
    finally:
        made.configuration()


@pytest.mark.parametrize(
    ("outcomes", "said"),
    [
        (["quarantined"], "is gone: run newest moved it to quarantine"),
        (["purged", "quarantined"], "is gone: run newest moved it to quarantine, and later purged it"),
        (["accepted"], "is gone: run newest deleted it"),
    ],
)
def test_what_became_of_what_is_gone(outcomes: list[str], said: str) -> None:
    decisions = tuple(Decision("newest", datetime(2026, 11, 22, tzinfo=UTC), outcome, None) for outcome in outcomes)
    address = "data/g4uk6erfnfus73frbnqg/dc0n8tpksdu988af5s00"
    assert verdict(Explanation(address, None, (), False, (), decisions)) == said
