"""Erasing the objects at paths, from listing to certificate, against the truth of the embedded server."""

import json
import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from lakefs_gc_assets.cli import main
from lakefs_gc_assets.cli.common import loaded_configuration, open_repository
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.live import uncommitted
from lakefs_gc_assets.collector.quarantine.purge import Purged, PurgeFate
from lakefs_gc_assets.collector.records import report, run_folder
from lakefs_gc_assets.collector.records.outcomes import Kept
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.repository.repository import Clock
from lakefs_gc_assets.collector.survey import HolderKind
from lakefs_gc_assets.collector.sweep import sweeping
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.defs.running import AskedRun, decided_here
from lakefs_gc_assets.errors import CollectionError, ConfigurationError, CorruptFile, LakeFSError
from lakefs_gc_assets.extensions.erasure import certificate
from lakefs_gc_assets.extensions.erasure import erase_command as command
from lakefs_gc_assets.extensions.erasure import find as finding
from lakefs_gc_assets.extensions.erasure.find import Selection
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.api.client import LakeFSClient
from lakefs_gc_assets.lakefs.formats import ranges
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX
from lakefs_gc_assets.storage.interface import keys_below
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets_tests.documentation.pages import DOCS, fenced
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.extensions.playground.embedded.routes import ROUTES
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns
from lakefs_gc_assets_tests.runs.made_ranges import range_records
from lakefs_gc_assets_tests.runs.retained_repository import SECRET_VARIABLE, RetainedRepository

PATH = "lakefs://repo/person/a"


def write_key(folder: Path, name: str) -> Path:
    """Writes a new key and, beside it, its public key with the suffix `.pub`."""
    file = folder / f"{name}.pem"
    for each, data in zip((file, file.with_suffix(".pub")), certificate.new_key(), strict=True):
        each.write_bytes(data)
    return file


@contextmanager
def changed_after_listing(change: Callable[[], object]) -> Iterator[None]:
    """Another client makes a change once the first steps are listed, before any is taken."""
    found = finding.list_first_steps

    def list_then_change(held: finding.ErasureFindings) -> tuple[finding.FirstStep, ...]:
        steps = found(held)
        change()
        return steps

    with mock.patch.object(command, "list_first_steps", list_then_change):
        yield


@dataclass
class Erasing(RetainedRepository):
    """The repository `repo`. Objects put into it are 50 days old, so that no run keeps them for their age."""

    before_run: list[Any] = field(default_factory=list)

    @property
    def store(self) -> LocalStore:
        return LocalStore(self.server.objects_folder / "repo")

    @property
    def data(self) -> set[str]:
        """The truth: addresses of all existing objects, except one that always stays."""
        return {*keys_below(self.store, "data/")} - {self.addresses["anchor"]}

    def put(self, version: str, path: str = "file", branch: str = "main") -> None:
        with self.server.clock.at(datetime.now(UTC) - timedelta(days=50)):
            super().put(version, path, branch)

    def remove(self, path: str, branch: str = "main") -> None:
        clients.sdk(self.server).objects_api.delete_object("repo", branch, path)

    def link(self, version: str, path: str, name: str = "repo") -> None:
        """Stages an existing address at another path."""
        address = f"{self.server.core.blockstore.scheme}repo/{self.addresses[version]}"
        body = clients.models.ObjectStageCreation(
            physical_address=address, checksum="0", size_bytes=len(version), mtime=1
        )
        clients.sdk(self.server).internal_api.stage_object(name, "main", path, body)

    def collect(self, **settings: Any) -> str:
        """Makes a deleting run of the flow unified with all permissions; returns its id."""
        loaded = loaded_configuration(self.folder / "lakefs-gc.yaml", None)
        return self._run(decided_here(loaded, sweep=True, **settings))

    def _run(self, loaded: Loaded) -> str:
        return ArrowRuns(loaded).collect(Flow.UNIFIED).run_id

    def _execute(
        self, loaded: Loaded, asked: AskedRun, note: Any, clock: Clock, home: Any
    ) -> tuple[str, CollectionError | None]:
        assert asked == AskedRun(True, Flow.UNIFIED)
        for change in self.before_run:
            change()
        try:
            return self._run(decided_here(loaded, sweep=True)), None
        except CollectionError as error:
            return "", error

    def call_command(self, *arguments: str, file: str = "lakefs-gc.yaml") -> Result:
        """Calls a command in this process; the run of an erasure works on plain tables."""
        with ExitStack() as stack:
            for target, name, new in (
                (command, "execute", self._execute),
                (command, "instance", lambda: nullcontext(None)),
                (Collector, "engine", lambda collector, settings: LocalEngine()),
            ):
                stack.enter_context(mock.patch.object(target, name, new))
            stack.enter_context(mock.patch("lakefs_gc_assets.cli.common.start_as_configured"))
            name, *others = arguments
            return CliRunner().invoke(main, [name, "--config", str(self.folder / file), *others])

    def shown(self, *paths: str, status: Status = Status.WELL) -> dict[str, Any]:
        """The command's listing, as JSON."""
        result = self.call_command("erase", "--quiet", "--json", *paths)
        assert result.exit_code == status, result.output
        answer: dict[str, Any] = json.loads(result.stdout)
        return answer

    def erase(self, *paths: str, digest: str = "") -> Result:
        """Approves the listed objects, or a digest, and erases them."""
        approved = digest or self.shown(*paths)["digest"]
        options = ("--approve", approved, "--key", str(self.folder / "own.pem"))
        return self.call_command("erase", "--quiet", *options, "--certificate", str(self.certificate), *paths)

    @property
    def certificate(self) -> Path:
        return self.folder / "certificate.json"

    @property
    def content(self) -> dict[str, Any]:
        """The certificate's content."""
        content: dict[str, Any] = json.loads(self.certificate.read_bytes())["content"]
        return content

    def verify(self, key: str = "own.pub") -> Result:
        return self.call_command("verify", "--key", str(self.folder / key), str(self.certificate))

    def holders_in(self, shown: dict[str, Any]) -> dict[str, set[str]]:
        """Holders of each listed address, by the name of its version."""
        names = {address: version for version, address in self.addresses.items()}
        return {
            names[each["address"]]: {
                f"{holder['by']} {holder['name']} {holder['path']}".replace("  ", " ")
                for holder in each["holders"]
                if holder["by"] != "commit"
            }
            | ({"commits"} if any(holder["by"] == "commit" for holder in each["holders"]) else set())
            for each in shown["addresses"]
        }


@contextmanager
def erasing(folder: Path, **collection: Any) -> Iterator[Erasing]:
    """A repository whose commits expire after a week on every branch, with one object that its head holds; two keys."""
    with EmbeddedServer(folder / "server", routes=ROUTES) as server:
        made = Erasing(server, folder)
        with server.clock.at(datetime.now(UTC) - timedelta(days=61)):
            clients.repository(server)
        made.put("anchor", "anchor")
        made.commit("zeroth", 45)
        made.rules(7)
        settings = {"wait_before_dump_seconds": 0, "wait_before_recheck_seconds": 0, **collection}
        made.configuration(**settings)
        for name in ("own", "other"):
            write_key(folder, name)
        with mock.patch.dict(os.environ, {SECRET_VARIABLE: server.secret_access_key}):
            yield made


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Erasing]:
    with erasing(tmp_path) as repository:
        yield repository


def is_range_with(data: bytes, key: str, address: str) -> bool:
    try:
        return address in ranges.read_range(data, key).addresses.to_pylist()
    except CorruptFile:
        return False


@pytest.fixture
def erasable(made: Erasing) -> Erasing:
    """A file whose two versions only expired commits hold, and garbage that no request names."""
    made.put("old", "person/a")
    made.put("bystander", "bystander")
    made.commit("first", 40)
    made.put("older garbage", "person/garbage")
    made.put("new", "person/a")
    made.commit("second", 30)
    made.remove("person/a")
    made.remove("bystander")
    made.remove("person/garbage")
    made.commit("third", 20)
    made.put("kept", "kept")
    made.commit("fourth", 1)
    return made


@pytest.mark.parametrize("by", [HolderKind.COMMIT, HolderKind.UNCOMMITTED, HolderKind.RANGE])
def test_first_step_for_other_holder_than_staging_branch_or_tag_raises(by: HolderKind) -> None:
    step = finding.FirstStep("repo", by, "main", {"person/a": "data/a"})
    with pytest.raises(ValueError, match=f"no first step for objects held by a {by.value}"):
        finding.take_first_step(mock.Mock(), step)


def test_what_only_expired_commits_hold_is_erased_and_nothing_else(erasable: Erasing) -> None:
    shown, before = erasable.shown(PATH), erasable.data
    assert erasable.holders_in(shown) == {"old": set(), "new": set()}
    result = erasable.erase(PATH, digest=shown["digest"])
    assert result.exit_code == Status.WELL, result.output
    assert before - erasable.data == {erasable.addresses["old"], erasable.addresses["new"]}
    content = erasable.content
    assert all(each["is_gone"] for each in content["addresses"])
    assert {row["address"] for row in content["receipts"]} == before - erasable.data
    assert {*content["run"]["frames"]} == {"store_df", "uncommitted_df", "committed_df", "candidates", "deleted_report"}
    verified = erasable.verify()
    assert verified.exit_code == Status.WELL, verified.output
    assert all(limit in verified.output for limit in content["limits"])


def test_the_how_to_erases_and_certifies(made: Erasing, monkeypatch: pytest.MonkeyPatch) -> None:
    made.put("profile", "people/ada/profile")
    made.put("export", "exports/2026/ada.csv")
    made.put("bystander", "exports/2026/bob.csv")
    made.commit("first", 40)
    made.remove("people/ada/profile")
    made.remove("exports/2026/ada.csv")
    made.commit("second", 20)
    made.call("POST", "/tags", {"id": "v1", "ref": made.commits["first"]})
    before = made.data
    monkeypatch.chdir(made.folder)
    monkeypatch.setattr(command, "require_yes_or_terminal", lambda: None)
    monkeypatch.setattr(command, "agrees", lambda question: True)
    look, said = list[str](), ""
    for line in "".join(block.text for block in fenced((DOCS / "how-to" / "erase.md").read_text())).splitlines():
        program, *words = shlex.split(line)
        assert program == "lakefs-gc"
        look = look or words
        # The page tells users to list again before unreferenced objects are erased.
        if "DIGEST" in words:
            words[words.index("DIGEST")] = made.call_command(*look).stdout.partition("--approve ")[2].split()[0]
        result = made.call_command(*words)
        assert result.exit_code == Status.WELL, result.output
        said = result.stdout
    assert before - made.data == {made.addresses["profile"], made.addresses["export"]}
    assert "the signature holds" in said


@contextmanager
def held_by_another_repository(folder: Path) -> Iterator[Erasing]:
    """A file that no commit holds any more, but that another repository of `also_live` has staged."""
    with erasing(folder, also_live=["other"]) as made:
        clients.repository(made.server, "other")
        made.put("old", "person/a")
        made.commit("first", 20)
        made.remove("person/a")
        made.commit("second", 10)
        made.link("old", "theirs", name="other")
        yield made


class TestHeld:
    """Objects with any live holder stay, and are listed with the necessary steps before an erasure."""

    def stays(self, made: Erasing, *holders: str, version: str = "old") -> None:
        shown = made.shown(PATH)
        assert made.holders_in(shown)[version] == {*holders}
        before = made.data
        result = made.erase(PATH, digest=shown["digest"])
        assert made.addresses[version] in made.data
        if len(shown["addresses"]) == 1:
            assert result.exit_code == Status.FAILED and "something holds each of the addresses" in result.stderr
            assert made.data == before and not made.certificate.exists()
        else:
            assert result.exit_code == Status.INCOMPLETE
            (left,) = (each for each in made.content["addresses"] if not each["is_gone"])
            assert (left["address"], left["how"]) == (made.addresses[version], "it is held, and was not touched")

    def test_by_branch_tag_staged_entry_and_range_that_no_commit_names(self, erasable: Erasing) -> None:
        (name,) = (
            key
            for key in keys_below(erasable.store, METADATA_PREFIX)
            if is_range_with(erasable.store.get(key), key, erasable.addresses["old"])
        )
        erasable.store.put(f"{METADATA_PREFIX}{'f' * 64}", erasable.store.get(name))
        erasable.link("old", "person/b")
        erasable.commit("linked", 2)
        erasable.call("POST", "/tags", {"id": "v1", "ref": erasable.commits["first"]})
        erasable.link("old", "elsewhere")
        range_ = f"range {'f' * 64} person/a"
        self.stays(erasable, "branch main person/b", "tag v1 person/a", "staged on branch main elsewhere", range_)
        assert any("lakectl tag delete" in remedy for remedy in erasable.shown(PATH)["remedies"])

    def test_by_what_is_staged_at_the_path_alone(self, made: Erasing) -> None:
        made.put("old", "person/a")
        self.stays(made, "staged on branch main person/a")

    def test_by_a_commit_that_has_not_expired(self, made: Erasing) -> None:
        made.put("old", "person/a")
        made.commit("first", 20)
        made.remove("person/a")
        made.commit("second", 3)
        self.stays(made, "commits")
        assert any("shorten their retention rule" in remedy for remedy in made.shown(PATH)["remedies"])
        made.rules(1)
        assert made.erase(PATH).exit_code == Status.WELL
        assert made.addresses["old"] not in made.data

    def test_by_a_commit_of_a_repository_without_rules(self, erasable: Erasing) -> None:
        erasable.call("DELETE", "/settings/gc_rules")
        (remedy,) = erasable.shown(PATH)["remedies"]
        assert remedy.startswith("set retention rules of repo first") and "policy set-default" in remedy
        erasable.rules(7)
        assert erasable.erase(PATH).exit_code == Status.WELL

    def test_by_a_repository_that_counts(self, tmp_path: Path) -> None:
        with held_by_another_repository(tmp_path) as made:
            self.stays(made, "staged on branch main theirs")
            clients.commit(made.server, "theirs", name="other")
            self.stays(made, "branch main theirs")
            first, second = made.shown(PATH)["remedies"]
            assert first.startswith("delete the path on branch main of other and commit")
            assert second.startswith("remove other from collection.also_live of repo")

    def test_by_old_commit_of_repository_that_counts_until_it_counts_no_more(self, tmp_path: Path) -> None:
        with held_by_another_repository(tmp_path) as made:
            clients.commit(made.server, "theirs", name="other")
            clients.sdk(made.server).objects_api.delete_object("other", "main", "theirs")
            clients.commit(made.server, "without", name="other")
            self.stays(made, "commits")
            (remedy,) = made.shown(PATH)["remedies"]
            assert remedy.startswith("remove other from collection.also_live of repo") and "wait," not in remedy
            made.configuration(wait_before_dump_seconds=0, wait_before_recheck_seconds=0)
            assert made.erase(PATH).exit_code == Status.WELL
            assert made.addresses["old"] not in made.data

    def test_by_uncommitted_data_that_no_branch_shows(self, erasable: Erasing) -> None:
        erasable.link("old", "elsewhere")
        with mock.patch.object(finding, "staged_objects", return_value=()):
            assert erasable.holders_in(erasable.shown(PATH))["old"] == {"uncommitted data "}


class TestPreparing:
    """Prepares an erasure with the necessary steps on the server, and with nothing else."""

    def prepare(self, made: Erasing, *options: str) -> Result:
        return made.call_command("erase", "--quiet", "--prepare", *options, PATH)

    def test_what_branches_tags_and_staging_hold_is_free_after_it(self, erasable: Erasing) -> None:
        erasable.call("POST", "/tags", {"id": "v1", "ref": erasable.commits["first"]})
        erasable.call("POST", "/branches", {"name": "dev", "source": erasable.commits["second"]})
        erasable.link("old", "elsewhere")
        before = erasable.data
        result = self.prepare(erasable, "--yes")
        assert result.exit_code == Status.WELL, result.output
        assert result.stdout.splitlines()[:-1] == [
            "reset staged data on branch main of repo at elsewhere",
            "reset 1 path on branch main",
            "delete on branch dev of repo, and commit: person/a",
            "deleted 1 path on branch dev, and committed",
            "delete tag v1 of repo",
            f"deleted tag v1, which named commit {erasable.commits['first']}",
        ]
        assert erasable.data == before
        # The former head of dev counts for the period of its rule.
        assert erasable.holders_in(erasable.shown(PATH)) == {"old": set(), "new": {"commits"}}
        sdk = clients.sdk(erasable.server)
        assert not sdk.branches_api.diff_branch("repo", "main").results
        assert sdk.objects_api.stat_object("repo", "dev", "person/garbage").path == "person/garbage"

    def test_paths_that_another_client_deleted_since_are_not_counted(self, erasable: Erasing) -> None:
        for name in ("dev", "idle"):
            erasable.call("POST", "/branches", {"name": name, "source": erasable.commits["second"]})

        def delete() -> None:
            for branch, paths in (("dev", ["person/a"]), ("idle", ["person/a", "bystander"])):
                for path in paths:
                    erasable.remove(path, branch)
                clients.commit(erasable.server, "theirs", branch=branch)

        with changed_after_listing(delete):
            result = self.prepare(erasable, "--yes", "lakefs://repo/bystander")
        assert result.exit_code == Status.WELL, result.output
        assert "deleted 1 path on branch dev, and committed" in result.stdout
        assert "branch idle shows none of these paths any more" in result.stdout

    def test_tag_that_names_another_commit_by_now_stays(self, erasable: Erasing) -> None:
        for name in ("latest", "v1"):
            erasable.call("POST", "/tags", {"id": name, "ref": erasable.commits["first"]})

        def move() -> None:
            erasable.call("DELETE", "/tags/latest")
            erasable.call("POST", "/tags", {"id": "latest", "ref": erasable.commits["fourth"]})

        with changed_after_listing(move):
            result = self.prepare(erasable, "--yes")
        assert result.exit_code == Status.WELL, result.output
        assert [tag["id"] for tag in erasable.call("GET", "/tags")["results"]] == ["latest"]
        assert f"tag latest names commit {erasable.commits['fourth']} by now, without these objects" in result.stdout

    def test_another_repository_that_holds_it_is_prepared_too(self, tmp_path: Path) -> None:
        with held_by_another_repository(tmp_path) as made:
            assert self.prepare(made, "--yes").exit_code == Status.WELL
            assert made.holders_in(made.shown(PATH)) == {"old": set()}

    def test_only_the_steps_that_somebody_agrees_to(self, erasable: Erasing, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("v1", "v2"):
            erasable.call("POST", "/tags", {"id": name, "ref": erasable.commits["first"]})
        assert self.prepare(erasable).exit_code == Status.FAILED, "there is no terminal to ask on"
        monkeypatch.setattr(command, "require_yes_or_terminal", lambda: None)
        answers = iter([False, True])
        monkeypatch.setattr(command, "agrees", lambda question: next(answers))
        assert self.prepare(erasable).exit_code == Status.WELL
        assert erasable.holders_in(erasable.shown(PATH))["old"] == {"tag v1 person/a"}

    def test_what_could_not_be_checked_is_said_at_the_end(self, erasable: Erasing) -> None:
        with mock.patch.object(uncommitted, "prepare", side_effect=LakeFSError("down")):
            result = self.prepare(erasable, "--yes")
        assert result.exit_code == Status.INCOMPLETE
        *_, gap, last = result.stdout.splitlines()
        assert gap.startswith("not checked: ") and "down" in gap and last.startswith("next, see which holders are left")

    def test_a_commit_takes_nothing_along_that_others_staged(self, erasable: Erasing) -> None:
        erasable.call("POST", "/branches", {"name": "dev", "source": erasable.commits["second"]})
        erasable.put("theirs", "theirs", branch="dev")
        result = self.prepare(erasable, "--yes")
        assert result.exit_code == Status.FAILED and "has other uncommitted changes, such as theirs" in result.stderr
        assert "branch dev person/a" in erasable.holders_in(erasable.shown(PATH))["new"]

    def test_nor_what_they_stage_meanwhile(self, erasable: Erasing) -> None:
        erasable.call("POST", "/branches", {"name": "dev", "source": erasable.commits["second"]})
        deleting = LakeFSClient.delete_path

        def delete(api: LakeFSClient, branch: str, path: str) -> None:
            deleting(api, branch, path)
            erasable.put("theirs", "theirs", branch="dev")

        with mock.patch.object(LakeFSClient, "delete_path", delete):
            assert self.prepare(erasable, "--yes").exit_code == Status.FAILED
        assert len(clients.sdk(erasable.server).branches_api.diff_branch("repo", "dev").results) == 2

    def test_another_object_at_the_path_stays(self, erasable: Erasing) -> None:
        erasable.link("old", "elsewhere")
        with changed_after_listing(lambda: erasable.put("newer", "elsewhere")):
            result = self.prepare(erasable, "--yes")
        assert result.exit_code == Status.FAILED and "is another object by now" in result.stderr
        stats = clients.sdk(erasable.server).objects_api.stat_object("repo", "main", "elsewhere")
        assert stats.physical_address.endswith(erasable.addresses["newer"])


class TestBetweenShowingAndDeleting:
    def test_an_address_that_is_new_at_the_path_needs_a_new_approval(self, erasable: Erasing) -> None:
        shown, before = erasable.shown(PATH), erasable.data
        erasable.put("overwritten", "person/a")
        result = erasable.erase(PATH, digest=shown["digest"])
        assert result.exit_code == Status.FAILED and "are not the approved ones" in result.stderr
        assert before <= erasable.data and not erasable.certificate.exists()

    def test_what_becomes_live_after_the_search_stays(self, erasable: Erasing) -> None:
        erasable.before_run.append(lambda: erasable.link("old", "elsewhere"))
        result = erasable.erase(PATH)
        assert result.exit_code == Status.INCOMPLETE, result.output
        assert erasable.addresses["old"] in erasable.data and erasable.addresses["new"] not in erasable.data
        assert "lakefs-gc explain" in result.output

    def test_a_run_that_fails_certifies_nothing(self, erasable: Erasing) -> None:
        erasable.before_run.append(lambda: erasable.store.delete([*keys_below(erasable.store, METADATA_PREFIX)]))
        before = erasable.data
        assert erasable.erase(PATH).exit_code == Status.FAILED
        assert erasable.data == before and not erasable.certificate.exists()

    def test_what_could_not_be_checked_is_not_erased(self, erasable: Erasing) -> None:
        before = erasable.data
        with mock.patch.object(uncommitted, "prepare", side_effect=LakeFSError("down")):
            assert erasable.call_command("erase", "--quiet", PATH).exit_code == Status.INCOMPLETE
            result = erasable.erase(PATH, digest="any")
        assert result.exit_code == Status.FAILED and "not everything could be checked" in result.stderr
        assert erasable.data == before


class TestQuarantine:
    @contextmanager
    def expired(self, folder: Path) -> Iterator[Erasing]:
        """An object that only an expired commit holds."""
        with erasing(folder, sweep_mode="quarantine") as made:
            made.put("old", "person/a")
            made.commit("first", 40)
            made.remove("person/a")
            made.commit("second", 20)
            yield made

    def test_copies_are_purged_whatever_their_age_and_others_stay(self, tmp_path: Path) -> None:
        with erasing(tmp_path, sweep_mode="quarantine") as made:
            made.put("old", "person/a")
            made.put("bystander", "bystander")
            made.commit("first", 40)
            made.remove("person/a")
            made.remove("bystander")
            made.commit("second", 20)
            moved_by = made.collect()
            assert not made.data
            assert made.shown(PATH)["addresses"][0]["remains"]["copies"] == [
                sweeping.key(moved_by, made.addresses["old"])
            ]
            result = made.erase(PATH)
            assert result.exit_code == Status.WELL, result.output
            copies = {*keys_below(made.store, layout.QUARANTINE_PREFIX)}
            assert copies == {sweeping.key(moved_by, made.addresses["bystander"])}
            assert {row["outcome"] for row in made.content["receipts"]} == {"copied", "quarantined", "purged"}
            assert made.verify().exit_code == Status.WELL

    def test_later_receipt_for_held_address_does_not_contradict_the_certificate(self, tmp_path: Path) -> None:
        with erasing(tmp_path, sweep_mode="quarantine", quarantine_days=0) as made:
            for version in ("old", "held"):
                made.put(version, f"person/{version}")
            made.commit("first", 40)
            for version in ("old", "held"):
                made.remove(f"person/{version}")
            made.commit("second", 20)
            made.collect()
            made.link("held", "elsewhere")
            assert made.erase("lakefs://repo/person/").exit_code == Status.INCOMPLETE
            assert "differ from" not in made.verify().output
            # Puts the held object back and keeps its copy; the second purge deletes the copy.
            for _ in range(2):
                assert made.call_command("purge", "--yes").exit_code == Status.WELL
            assert made.data == {made.addresses["held"]} and not {*keys_below(made.store, layout.QUARANTINE_PREFIX)}
            assert "differ from" not in made.verify().output

    def test_copies_that_stay_are_named_on_the_certificate(self, tmp_path: Path) -> None:
        with self.expired(tmp_path) as made:
            moved_by = made.collect()
            stays = Purged(moved_by, sweeping.key(moved_by, ""), 0, PurgeFate.FAILED, "the store failed")
            with mock.patch("lakefs_gc_assets.defs.maintenance.purge", return_value=iter([stays])):
                result = made.erase(PATH)
            assert result.exit_code == Status.INCOMPLETE
            (line,) = made.content["incomplete"]
            assert line.startswith("copies in quarantine: ") and "the store failed" in line

    def test_the_object_does_not_go_to_quarantine(self, tmp_path: Path) -> None:
        with self.expired(tmp_path) as made:
            assert made.erase(PATH).exit_code == Status.WELL
            assert not {*keys_below(made.store, layout.QUARANTINE_PREFIX)}


def test_a_run_limited_to_no_address_deletes_nothing_and_the_next_one_builds_on_it(erasable: Erasing) -> None:
    before = erasable.data
    run_id = erasable.collect(only_addresses=(), full_listing_days=30)
    assert erasable.data == before
    ended = report.read(erasable.store, run_id)
    assert ended is not None and ended.kept[Kept.NOT_ASKED] == 4
    next_one = report.read(erasable.store, erasable.collect(full_listing_days=30))
    assert next_one is not None and next_one.base_run == run_id
    assert erasable.data == {erasable.addresses["kept"]}


def stage_import(made: Erasing) -> None:
    """Stages an entry at the path whose object is outside the storage namespace."""
    body = clients.models.ObjectStageCreation(
        physical_address=f"{made.server.core.blockstore.scheme}theirs/a", checksum="0", size_bytes=1, mtime=1
    )
    clients.sdk(made.server).internal_api.stage_object("repo", "main", "person/a", body)


def is_incomplete(made: Erasing, gap: str) -> None:
    """Listing, erasure and check all name the gap and exit with its status; the certificate begins with it."""
    look = made.call_command("erase", "--quiet", PATH)
    assert look.exit_code == Status.INCOMPLETE and gap in look.stdout
    erased = made.erase(PATH, digest=made.shown(PATH, status=Status.INCOMPLETE)["digest"])
    assert erased.exit_code == Status.INCOMPLETE, erased.output
    assert erased.stdout.startswith(f"incomplete: {gap}")
    assert all(each["is_gone"] for each in made.content["addresses"])
    assert gap in made.certificate.read_text().splitlines()[3]
    verified = made.verify()
    assert verified.exit_code == Status.INCOMPLETE and verified.stdout.startswith(f"incomplete: {gap}")


@pytest.mark.parametrize("is_committed", [False, True])
def test_import_at_the_path_makes_the_erasure_incomplete(erasable: Erasing, is_committed: bool) -> None:
    stage_import(erasable)
    if is_committed:
        erasable.commit("imported", 1)
    assert erasable.shown(PATH, status=Status.INCOMPLETE)["elsewhere"] == ["person/a"]
    is_incomplete(erasable, "not erased: person/a has an object outside of the storage namespace")


def test_range_that_cannot_be_read_makes_the_erasure_incomplete(erasable: Erasing) -> None:
    for key in keys_below(erasable.store, METADATA_PREFIX):
        if is_range_with(erasable.store.get(key), key, erasable.addresses["old"]):
            erasable.store.delete([key])
    shown = erasable.shown(PATH, status=Status.INCOMPLETE)
    assert len(shown["unread"]) == 1 and "missing" in shown["unread"][0]
    assert [each["address"] for each in shown["addresses"]] == [erasable.addresses["new"]]
    is_incomplete(erasable, f"not read: {shown['unread'][0]}")


def test_paths_that_match_nothing_are_named_with_a_hint(erasable: Erasing) -> None:
    unmatched = ["person/b", "main/person/a", "person/ä", "none/*"]
    asked = [PATH, *(f"lakefs://repo/{path}" for path in unmatched), "lakefs://repo/by*"]
    plain, branch, accent, pattern = erasable.shown(*asked)["unmatched"]
    assert (plain, pattern) == ("lakefs://repo/person/b", "lakefs://repo/none/*")
    assert branch == f"lakefs://repo/main/person/a: main is a branch, and a PATH has none: give {PATH}"
    assert accent.startswith("lakefs://repo/person/ä: ") and "NFC and NFD" in accent
    result = erasable.erase(*asked)
    assert result.exit_code == Status.WELL and f"nothing found: {branch}" in result.stdout
    assert f"nothing found: {plain}" in erasable.verify().stdout


def test_lines(erasable: Erasing) -> None:
    erasable.call("POST", "/tags", {"id": "v1", "ref": erasable.commits["first"]})
    lines = erasable.call_command("erase", "--quiet", PATH).stdout.splitlines()
    assert f"held  {erasable.addresses['old']} at person/a: 3 B" in lines
    assert "    held by tag v1 of repo, path person/a" in lines
    assert f"free  {erasable.addresses['new']} at person/a: 3 B" in lines
    *_, first, searched, verdict, prepare, new_key, how = lines
    again = f"lakefs-gc erase --config {erasable.folder / 'lakefs-gc.yaml'} {PATH}"
    assert prepare == f"next, do this on branches and tags, which asks before each step: {again} --prepare"
    assert new_key == "next, make a key: lakefs-gc erase --new-key erasure.pem"
    assert first.startswith("first: delete tag v1 of repo") and searched.startswith("searched ")
    assert verdict == "repo: 1 object can be erased, held: 1"
    assert how.startswith(f"next, erase the free objects: {again} --approve ")


def test_printed_commands_lead_from_key_to_verified_certificate(made: Erasing, monkeypatch: pytest.MonkeyPatch) -> None:
    made.put("profile", "person/a b")
    made.commit("first", 40)
    made.remove("person/a b")
    made.commit("second", 20)
    monkeypatch.chdir(made.folder)
    said, commands = made.call_command("erase", "lakefs://repo/person/*").stdout, list[str]()
    while following := [line.partition(": ") for line in said.splitlines() if line.startswith("next, ")]:
        for _, _, text in following:
            program, name, *words = shlex.split(text)
            assert program == "lakefs-gc"
            without_file = words[2:] if words[0] == "--config" else words
            result = made.call_command(name, *without_file)
            assert result.exit_code == Status.WELL, result.output
            commands.append(f"{name} {without_file[0]}")
        said = result.stdout
    assert commands == ["erase --new-key", "erase lakefs://repo/person/*", commands[2]]
    assert commands[2].startswith("verify erasure-") and "the signature holds" in said


class TestNewKey:
    def test_signs_what_its_public_half_verifies(self, erasable: Erasing) -> None:
        key = erasable.folder / "made.pem"
        result = CliRunner().invoke(main, ["erase", "--new-key", str(key)])
        assert result.exit_code == Status.WELL and str(key.with_suffix(".pub")) in result.stdout
        assert key.stat().st_mode & 0o777 == 0o600
        certificate.read_public_key(key.with_suffix(".pub").read_bytes())
        key.replace(erasable.folder / "own.pem")
        assert erasable.erase(PATH).exit_code == Status.WELL
        assert erasable.verify("made.pub").exit_code == Status.WELL

    @pytest.mark.parametrize("name", ["key.pem", "key.pub"])
    def test_replaces_no_file(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).write_bytes(b"of somebody")
        result = CliRunner().invoke(main, ["erase", "--new-key", str(tmp_path / "key.pem")])
        assert result.exit_code == Status.CONFIGURATION and f"{name} cannot be written: File exists" in result.stderr
        assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {name: b"of somebody"}

    def test_is_no_public_half(self, tmp_path: Path) -> None:
        result = CliRunner().invoke(main, ["erase", "--new-key", str(tmp_path / "key.pub")])
        assert result.exit_code == Status.CONFIGURATION and not [*tmp_path.iterdir()]


def test_a_whole_list_by_globs(erasable: Erasing) -> None:
    file = erasable.folder / "list"
    file.write_text("lakefs://repo/person/*\n\nlakefs://repo/by**\n")
    result = erasable.call_command("erase", "--quiet", "--json", "--from", str(file))
    names = {address: version for version, address in erasable.addresses.items()}
    found = {names[each["address"]] for each in json.loads(result.stdout)["addresses"]}
    assert found == {"old", "new", "older garbage", "bystander"}


def test_list_is_read_in_unicode_and_refused_in_another_encoding(made: Erasing) -> None:
    file = made.folder / "list"
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        file.write_bytes("lakefs://repo/ä\r\n".encode(encoding))
        result = made.call_command("erase", "--quiet", "--json", "--from", str(file))
        assert json.loads(result.stdout)["asked"] == ["lakefs://repo/ä"], encoding
    for encoding in ("latin-1", "utf-16-le"):
        file.write_bytes("lakefs://repo/äöü".encode(encoding))
        result = made.call_command("erase", "--quiet", "--from", str(file))
        assert result.exit_code == Status.CONFIGURATION and "store it in UTF-8" in result.stderr, encoding


@pytest.mark.parametrize(
    ("asked", "matches", "others"),
    [
        ("a/b", ["a/b"], ["a/b/c", "a/bc", "a"]),
        ("a/", ["a/b", "a/b/c"], ["a", "ab"]),
        ("a/*/c", ["a/b/c", "a//c"], ["a/b/b/c", "a/c"]),
        ("**.csv", ["x.csv", "a/b.csv"], ["x.csv2", "xcsv"]),
        ("a*/", ["ab/c", "a/c"], ["b/a/"]),
        (r"a\*", ["a*"], ["ab", r"a\*"]),
        ("ä(*", ["ä(", "ä(b"], ["a(", "ä"]),
        ("a b\n*", ["a b\nc\nd"], ["a b"]),
    ],
)
def test_patterns(asked: str, matches: list[str], others: list[str]) -> None:
    selection = Selection.parse("repo", [f"lakefs://repo/{asked}"])
    paths = [*matches, *others]
    chosen = selection.chooses(pa.array([path.encode() for path in paths], pa.binary())).to_pylist()
    assert chosen == [True] * len(matches) + [False] * len(others)
    for path in matches:
        for first, last in ((b"", b"\xff"), (path.encode(), path.encode()), (b"", path.encode())):
            record = RangeRecord("a" * 64, first, last, 1, 1)
            assert len(selection.may_be_among(range_records([record]))) == 1
    assert not len(selection.may_be_among(range_records([RangeRecord("a" * 64, b"\0", b"\1", 1, 1)]))) or (
        asked.startswith("*")
    )


@pytest.mark.parametrize("asked", ["lakefs://other/a", "lakefs://repo/", "data/a", "s3://repo/a"])
def test_what_is_no_path_of_the_repository(asked: str) -> None:
    with pytest.raises(ConfigurationError, match="is no lakefs://repo/PATH"):
        Selection.parse("repo", [asked])
    with pytest.raises(ConfigurationError, match="no path is given"):
        Selection.parse("repo", [])


def test_too_many_addresses(erasable: Erasing) -> None:
    with mock.patch.object(finding, "MOST_ADDRESSES", 1):
        result = erasable.call_command("erase", "--quiet", PATH)
    assert result.exit_code == Status.CONFIGURATION and "name fewer paths" in result.stderr


def test_certificate_that_cannot_be_written_stops_the_erasure_before_it_begins(erasable: Erasing) -> None:
    digest, before = erasable.shown(PATH)["digest"], erasable.data
    with mock.patch.object(Erasing, "certificate", erasable.folder / "no" / "folder" / "c.json"):
        result = erasable.erase(PATH, digest=digest)
    assert result.exit_code == Status.CONFIGURATION and "Nothing was erased" in result.stderr
    assert erasable.data == before


def test_second_erasure_finds_receipts_of_first_one_whose_certificate_could_not_be_written(tmp_path: Path) -> None:
    with erasing(tmp_path, sweep_mode="quarantine") as made:
        for name in ("moved", "deleted"):
            made.put(name, f"person/{name}")
        made.commit("both", 40)
        made.remove("person/moved")
        made.commit("one", 30)
        made.collect()
        made.remove("person/deleted")
        made.commit("none", 20)
        digest = made.shown("lakefs://repo/person/")["digest"]
        made.before_run.append(lambda: made.certificate.write_bytes(b"of another erasure"))
        first = made.erase("lakefs://repo/person/", digest=digest)
        assert first.exit_code == Status.FAILED and "it finds the receipts" in first.stderr
        assert made.certificate.read_bytes() == b"of another erasure" and not [*tmp_path.glob(".*")]
        made.certificate.unlink()
        made.before_run.clear()
        second = made.erase("lakefs://repo/person/", digest=digest)
        assert second.exit_code == Status.WELL, second.output
        assert {(row["address"], row["outcome"]) for row in made.content["receipts"]} >= {
            (made.addresses["moved"], "purged"),
            (made.addresses["deleted"], "accepted"),
        }
        assert "the receipts match those in the store" in made.verify().stdout


def test_part_that_fails_after_the_run_is_certified_as_incomplete(erasable: Erasing) -> None:
    with mock.patch.object(command, "erase_versions", side_effect=LakeFSError("the server is down")):
        result = erasable.erase(PATH)
    assert result.exit_code == Status.INCOMPLETE
    assert result.stdout.startswith("incomplete: older versions: the server is down")
    assert next(iter(erasable.content)) == "incomplete" and erasable.verify().exit_code == Status.INCOMPLETE


def test_address_without_a_receipt_is_named(erasable: Erasing) -> None:
    erasable.store.delete([erasable.addresses["old"]])
    result = erasable.erase(PATH)
    assert result.exit_code == Status.WELL, result.output
    named = f"no receipt: {erasable.addresses['old']} "
    verified = erasable.verify()
    assert named in result.stdout and named in verified.stdout
    assert "the receipts match those in the store" not in verified.stdout


class TestSameContent:
    """Another object with the same checksum is only mentioned as a hint."""

    def hints(self, made: Erasing, status: Status = Status.WELL) -> list[tuple[str, str, str]]:
        shown = made.shown(PATH, status=status)["same_content"]
        return [(each["repository"], each["path"], each["address"]) for each in shown]

    def copied(self, made: Erasing, path: str, name: str = "repo", content: bytes = b"old") -> str:
        with made.server.clock.at(datetime.now(UTC) - timedelta(days=50)):
            return clients.upload(made.server, path, content, name=name)

    def test_committed_copy_is_named_by_look_certificate_and_verify(self, erasable: Erasing) -> None:
        address = self.copied(erasable, "copy")
        self.copied(erasable, "other", content=b"dlo")
        erasable.commit("copied", 2)
        assert self.hints(erasable) == [("repo", "copy", address)]
        line = f"hint: copy of repo has, or had, the checksum and the size of {erasable.addresses['old']}"
        assert line in erasable.call_command("erase", PATH).stdout
        result = erasable.erase(PATH)
        assert result.exit_code == Status.WELL and line in result.stdout
        verified = erasable.verify()
        assert verified.exit_code == Status.WELL and line in verified.stdout
        assert address in erasable.data

    def test_copies_beyond_the_named_ones_are_counted(self, erasable: Erasing, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(finding, "_HINTS", 1)
        for path in ("copy", "copy again", "copy once more"):
            self.copied(erasable, path)
        erasable.commit("copied", 2)
        assert len(self.hints(erasable)) == 3
        lines = erasable.call_command("erase", PATH).stdout.splitlines()
        assert [line for line in lines if line.startswith("hint: ")][1:] == [
            "hint: 2 further entries with such a checksum and size"
        ]

    def test_staged_copy_of_what_is_staged_at_the_path(self, made: Erasing) -> None:
        made.put("old", "person/a")
        address = self.copied(made, "copy")
        assert self.hints(made) == [("repo", "copy", address)]

    def test_copy_of_a_repository_that_counts(self, tmp_path: Path) -> None:
        with held_by_another_repository(tmp_path) as made:
            address = self.copied(made, "copy", "other")
            clients.commit(made.server, "copied", name="other")
            ((repository, path, stored),) = self.hints(made)
            assert (repository, path) == ("other", "copy") and address in stored

    def test_same_path_another_size_and_empty_objects_are_no_hints(self, made: Erasing) -> None:
        made.put("", "person/a")
        made.commit("empty", 40)
        made.put("old", "person/a")
        made.commit("first", 30)
        self.copied(made, "person/a")
        self.copied(made, "nothing", content=b"")
        made.commit("second", 2)
        assert self.hints(made) == []


def test_no_certificate_takes_the_place_of_another(erasable: Erasing) -> None:
    erasable.certificate.write_bytes(b"of another erasure")
    before = erasable.data
    result = erasable.erase(PATH)
    assert result.exit_code == Status.CONFIGURATION and "already exists" in result.stderr
    assert erasable.data == before and erasable.certificate.read_bytes() == b"of another erasure"


def test_approving_needs_a_key_and_a_file(erasable: Erasing) -> None:
    assert erasable.call_command("erase", "--approve", "x", PATH).exit_code == Status.USAGE
    result = erasable.verify("none")
    assert result.exit_code == Status.CONFIGURATION and "cannot be read: No such file" in result.stderr
    erasable.folder.joinpath("own.pem").write_bytes(b"no key")
    before = erasable.data
    result = erasable.erase(PATH, digest="x")
    assert result.exit_code == Status.CONFIGURATION and "erase --new-key" in result.stderr and erasable.data == before


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Erasing]:
    """An erased repository whose certificate tests do not change."""
    with erasing(tmp_path_factory.mktemp("certified")) as made:
        for number in range(3):
            made.put(f"content {number}", f"person/{number}")
        made.commit("first", 40)
        for number in range(3):
            made.remove(f"person/{number}")
        made.commit("second", 20)
        assert made.erase("lakefs://repo/person/").exit_code == Status.WELL
        yield made


class TestCertificate:
    def test_of_another_key(self, certified: Erasing) -> None:
        result = certified.verify("other.pub")
        assert result.exit_code == Status.FAILED and "not signed by this key" in result.stderr

    @staticmethod
    def verify_changed(certified: Erasing, content: bytes) -> Result:
        """Verifies another content of the certificate, which stays as it is."""
        sound = certified.certificate.read_bytes()
        assert content != sound
        certified.certificate.write_bytes(content)
        try:
            return certified.verify()
        finally:
            certified.certificate.write_bytes(sound)

    @pytest.mark.parametrize("name", ["addresses", "limits", "merkle_root", "issued_at"])
    def test_altered(self, certified: Erasing, name: str) -> None:
        signed = json.loads(certified.certificate.read_bytes())
        signed["content"][name] = signed["content"][name][1:]
        assert "was altered" in self.verify_changed(certified, json.dumps(signed).encode()).stderr

    @pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"content": {}, "signature": "!"}', b"[" * 200_000])
    def test_that_is_none(self, certified: Erasing, content: bytes) -> None:
        assert "it is no certificate" in self.verify_changed(certified, content).stderr

    def test_an_object_that_came_back(self, certified: Erasing) -> None:
        address = certified.addresses["content 1"]
        certified.store.put(address, b"again")
        try:
            result = certified.verify()
            assert (
                result.exit_code == Status.INCOMPLETE and f"{address} is not gone: the object is there" in result.output
            )
        finally:
            certified.store.delete([address])

    def test_a_copy_that_came_back(self, certified: Erasing) -> None:
        key = sweeping.key("g" * 20, certified.addresses["content 1"])
        certified.store.put(key, b"again")
        try:
            assert f"the copy {key} is there" in certified.verify().output
        finally:
            certified.store.delete([key])

    @pytest.mark.parametrize(
        ("before", "after", "message"),
        [
            (b'{\n "content"', b'{"content": {},\n "content"', "twice"),
            (b'"merkle_root"', b'"merkle_root": "", "merkle_root"', "twice"),
            (b'{\n "content"', b'{"note": "",\n "content"', "its signature does not cover its member"),
            (b'"public_key": "', b'"public_key": "AAAA', "not signed by this key"),
        ],
    )
    def test_with_members_that_nobody_signed(
        self, certified: Erasing, before: bytes, after: bytes, message: str
    ) -> None:
        result = self.verify_changed(certified, certified.certificate.read_bytes().replace(before, after))
        assert result.exit_code == Status.FAILED and message in result.stderr

    def test_of_a_store_that_never_had_the_objects(self, certified: Erasing) -> None:
        run_id = certified.content["run"]["run_id"]
        plan = certified.store.get(run_folder.plan(run_id))
        certified.store.delete([run_folder.plan(run_id)])
        try:
            result = certified.verify()
            assert result.exit_code == Status.INCOMPLETE and "is not in the store" in result.stdout
        finally:
            certified.store.put(run_folder.plan(run_id), plan)

    def test_receipts_that_changed(self, certified: Erasing) -> None:
        run_id = certified.content["run"]["run_id"]
        (key,) = receipts.keys(certified.store, run_id)
        sound = certified.store.get(key)
        certified.store.delete([key])
        try:
            result = certified.verify()
            assert result.exit_code == Status.INCOMPLETE and "differ from the certificate's" in result.output
        finally:
            certified.store.put(key, sound)
        assert certified.verify().exit_code == Status.WELL

    def test_of_another_repository_or_with_no_public_key(self, certified: Erasing) -> None:
        result = certified.verify("own.pem")
        assert result.exit_code == Status.CONFIGURATION and "as erasure.pub" in result.stderr
        with pytest.raises(ConfigurationError, match="the certificate is about"):
            opened = open_repository(loaded_configuration(certified.folder / "lakefs-gc.yaml", None))
            certificate.verify(opened, {**certified.content, "repository": "theirs"})

    def test_in_json(self, certified: Erasing) -> None:
        result = certified.call_command(
            "verify", "--json", "--key", str(certified.folder / "own.pub"), str(certified.certificate)
        )
        answer = json.loads(result.stdout)
        assert answer == {"certificate": certified.content, "problems": []}

    def test_merkle_roots_differ_by_content_order_and_number(self) -> None:
        rows = [{"address": name} for name in "abcde"]
        roots = {
            certificate.merkle_root(each)
            for each in (rows, rows[::-1], rows[:4], rows[:3], rows[:1], [], [*rows, rows[-1]])
        }
        assert len(roots) == 7
