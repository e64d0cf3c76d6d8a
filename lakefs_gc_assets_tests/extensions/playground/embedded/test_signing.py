"""Forged files in the folders of runs: the ones that a run with a key trusts, and one without."""

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.collector.frame.files import FileWriter, Manifest, StoredFrame
from lakefs_gc_assets.collector.frame.frames import CANDIDATES_DF, PENDING_DF, STORE_DF, NoFigures
from lakefs_gc_assets.collector.live import facts
from lakefs_gc_assets.collector.live.facts_of_ranges import SIZES
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.records.plan import Approval, Flow
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.storage.interface import keys_below
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets.storage.signing import is_signed
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.extensions.playground.embedded.test_twins import configuration
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns

KEY, OTHER_KEY = "k" * 32, "o" * 40
DAYS = timedelta(days=1)
RULES = {"default_retention_days": 10, "branches": []}


@dataclass
class Repository:
    """A repository with some objects that only its first commit holds, collected with changing keys."""

    server: EmbeddedServer
    keys: str = KEY

    @property
    def store(self) -> LocalStore:
        """The access of an attacker who may write to the bucket."""
        return LocalStore(self.server.objects_folder / "repo")

    def runs(self, **collection: object) -> ArrowRuns:
        """Runs with the current keys."""
        given = configuration(self.server, wait_before_recheck_seconds=0, wait_before_dump_seconds=0, **collection)
        store = given.store.model_copy(update={"signing_key": self.keys})
        return ArrowRuns(Loaded(given.model_copy(update={"store": store}), {}))

    def upload(self, path: str, content: str, days: float) -> str:
        """Stages an object; returns its address."""
        with self.server.clock.at(datetime.now(UTC) - days * DAYS):
            clients.upload(self.server, path, content.encode())
        facts = clients.call(self.server, "GET", "/repositories/repo/refs/main/objects/stat", path=path)[1]
        return str(facts["physical_address"]).partition("/repo/")[2]

    def leave_garbage(self, path: str, days: float) -> str:
        """Stages an object and drops it; returns its address."""
        address = self.upload(path, path, days)
        assert clients.call(self.server, "DELETE", "/repositories/repo/branches/main/objects", path=path)[0] == 204
        return address

    def forge_pending(self, base: Report, addresses: list[str]) -> None:
        """Forges the checkpoint of a run, with valid digests, so that it names live objects as pending."""
        repository = self.runs().open()
        listed = StoredFrame.from_run(repository.store, repository.opener, base.run_id, STORE_DF).table()
        rows = listed.filter(pc.is_in(listed["address"], pa.array(addresses)))
        writer = FileWriter(self.store, run_folder.frame(base.run_id, PENDING_DF.name), PENDING_DF.schema)
        for batch in rows.to_batches():
            writer.write(batch)
        span = files.read_manifest(repository.store, base.run_id, PENDING_DF).span
        manifest: Manifest[NoFigures] = Manifest(span, tuple(writer.close()), NoFigures())
        files.write_manifest(self.store, manifest)
        assert base.checkpoint is not None and rows.num_rows == len(addresses)
        checkpoint = replace(
            base.checkpoint,
            pending=rows.num_rows,
            pending_digest=manifest.digest,
            pending_windows=tuple(rows["slice_window"].unique().to_pylist()),
        )
        reports.write(self.store, replace(base, checkpoint=checkpoint))

    def is_there(self, address: str) -> bool:
        """True if an object was not deleted."""
        return (self.server.objects_folder / "repo" / address).exists()


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[Repository]:
    with EmbeddedServer(tmp_path) as server:
        clients.repository(server)
        yield Repository(server)


def live_in_history(repository: Repository) -> list[str]:
    """Objects that a commit holds, but no head."""
    addresses = [repository.upload(path, f"{path}, before", 30) for path in ("one", "two")]
    for path in ("three", "four"):
        repository.upload(path, path, 30)
    clients.commit(repository.server, "first")
    for path in ("one", "two"):
        repository.upload(path, "later", 29)
    clients.commit(repository.server, "second")
    return addresses


@pytest.mark.parametrize("keys", ["", KEY])
def test_a_forged_checkpoint_deletes_live_objects_only_without_a_key(repository: Repository, keys: str) -> None:
    repository.keys = keys
    addresses = live_in_history(repository)
    base = repository.runs().collect()
    repository.forge_pending(base, addresses)
    ended = repository.runs().collect(Flow.OPTIMIZED)
    assert [repository.is_there(address) for address in addresses] == [bool(keys)] * 2
    assert ended.flow == (Flow.CLEAN if keys else Flow.OPTIMIZED)
    assert not keys or "report.json: signature: it is not signed" in (ended.why_clean or "")


def test_without_a_key_a_branch_is_asked_for_what_its_head_holds(repository: Repository) -> None:
    repository.keys = ""
    addresses = [repository.upload(path, path, 30) for path in ("one", "two")]
    clients.commit(repository.server, "first")
    base = repository.runs().collect()
    repository.forge_pending(base, addresses)
    runs = repository.runs()
    ended = runs.collect(Flow.OPTIMIZED)
    assert ended.flow == Flow.OPTIMIZED, ended.why_clean
    assert [repository.is_there(address) for address in addresses] == [True, True]
    assert any("looked up 2 paths that may have the content of a candidate" in line for line in runs.lines)


def test_runs_build_on_runs_of_their_keys_alone(repository: Repository) -> None:
    live_in_history(repository)
    repository.keys = ""
    repository.runs().collect()

    def flow_by(keys: str) -> tuple[str, str | None]:
        repository.keys = keys
        ended = repository.runs().collect(Flow.OPTIMIZED)
        return ended.flow, ended.why_clean and ended.why_clean.partition("signature: ")[2][:40]

    assert flow_by(KEY) == ("clean", "it is not signed, and store.signing_key ")
    assert flow_by(KEY) == ("optimized", None)
    assert flow_by(f"{OTHER_KEY},{KEY}") == ("optimized", None), "the new key signs, the old one verifies"
    assert flow_by(OTHER_KEY) == ("optimized", None), "only the last run is needed"
    assert flow_by(KEY) == ("clean", "it was not signed by a key of store.sign")


def test_an_approval_of_a_dry_run_is_believed_only_where_both_are_signed(repository: Repository) -> None:
    address = repository.leave_garbage("garbage", 30)
    dry = repository.runs(sweep=False).collect()
    candidates = files.read_manifest(repository.runs().open().store, dry.run_id, CANDIDATES_DF)
    forged = Approval(dry.run_id, dry.attempt, candidates.digest, datetime.now(UTC))
    plans.write_approval(repository.store, forged)
    with pytest.raises(CorruptFile, match=r"approval\.json: signature: it is not signed"):
        plans.read_approval(repository.runs().open().store, dry.run_id)
    repository.keys = OTHER_KEY
    with pytest.raises(CorruptFile, match=r"plan\.json: signature: it was not signed by a key"):
        plans.read(repository.runs().open().store, dry.run_id)
    assert repository.is_there(address)


HARMLESS = {
    r"lock\.json": "whoever removes it lets two runs work at once, and each of them rechecks by itself",
    r"facts/.*": "each file has its signature in its name",
    r"[^/]+/report\.html": "shows only",
    r"[^/]+/candidates/counted\.json": "shows only",
    r"[^/]+/(preparations|explained)/.*": "names what the server prepared, to remove no other files than such",
    r"[^/]+/uncommitted/.*": "the server's own",
    r"[^/]+/clock/.*": "asked for its time alone",
}


def test_every_file_that_a_run_leaves_is_signed_vouched_for_or_harmless(repository: Repository) -> None:
    address = repository.leave_garbage("garbage", 30)
    live_in_history(repository)
    assert clients.call(repository.server, "PUT", "/repositories/repo/settings/gc_rules", RULES)[0] == 204
    for flow in (Flow.CLEAN, Flow.OPTIMIZED, Flow.UNIFIED, Flow.UNIFIED, Flow.COMMITTED):
        repository.runs(sweep_mode="quarantine").collect(flow)
        repository.leave_garbage(f"garbage of {flow}", 30)
    assert not repository.is_there(address)
    signed = repository.runs().open().store
    keys = keys_below(repository.store, layout.RUNS_PREFIX)
    contents = [signed.get(key) for key in keys if is_signed(key)]
    assert len(contents) > 40
    vouched = set[str](re.findall("[0-9a-f]{64}", " ".join(map(repr, contents))))
    for key in keys:
        name = key.removeprefix(layout.RUNS_PREFIX)
        if is_signed(key) or any(re.fullmatch(pattern, name) for pattern in HARMLESS):
            continue
        assert hashlib.sha256(repository.store.get(key)).hexdigest() in vouched, key


def test_what_is_forged_unsigned_or_moved_is_not_read(repository: Repository) -> None:
    live_in_history(repository)
    repository.leave_garbage("garbage", 30)
    first, second = repository.runs().collect(), repository.runs().collect()
    signed, store = repository.runs().open().store, repository.store
    changes: dict[str, Callable[[str], bytes]] = {
        "unsigned": signed.get,
        "changed": lambda key: store.get(key)[:20] + b" " + store.get(key)[21:],
        "cut": lambda key: store.get(key)[:50],
        "empty": lambda key: b"",
        "moved": lambda key: store.get(key.replace(second.run_id, first.run_id)),
    }
    keys = [key for key in keys_below(store, run_folder.folder(second.run_id)) if is_signed(key)]
    assert {key.rpartition("/")[2] for key in keys} >= {"plan.json", "report.json", "manifest.json"}
    for key in keys:
        stored = store.get(key)
        for name, change in changes.items():
            if name == "moved" and key.rpartition("/")[2] not in ("plan.json", "report.json", "manifest.json"):
                continue
            store.put(key, change(key))
            with pytest.raises(CorruptFile):
                signed.get(key)
        store.put(key, stored)
        signed.get(key)


def test_facts_of_others_are_not_believed(repository: Repository) -> None:
    live_in_history(repository)
    repository.leave_garbage("garbage", 30)
    repository.runs().collect()
    (file,) = facts.files_of(SIZES, facts.list_files(repository.store, facts.ROOT))
    rows = facts.read(SIZES, repository.runs().open().store, file)
    moved = replace(file, key=file.key.replace(SIZES.root, f"{SIZES.root}moved/"))
    repository.store.put(moved.key, repository.store.get(file.key))
    facts.put(SIZES, repository.store, SIZES.folder("forged", "forged"), rows)
    others = facts.files_of(SIZES, facts.list_files(repository.store, SIZES.folder("forged", "forged")))
    assert len(others) == 1
    for forged in (moved, *others):
        with pytest.raises(CorruptFile, match="not signed by our key"):
            facts.read(SIZES, repository.runs().open().store, forged)
    repository.keys = f"{OTHER_KEY} {KEY}"
    assert facts.read(SIZES, repository.runs().open().store, file).num_rows == rows.num_rows
    repository.keys = OTHER_KEY
    with pytest.raises(CorruptFile, match="not signed by our key"):
        facts.read(SIZES, repository.runs().open().store, file)
