"""Expired objects of an embedded server, over HTTP: what is listed, stored and found again, and what damage keeps."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from lakefs_gc_assets.cli import main
from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.collector.records.run_folder import LIFECYCLE
from lakefs_gc_assets.errors import ConfigurationError, CorruptFile, OrderViolation
from lakefs_gc_assets.extensions.lifecycle import deciding, expired
from lakefs_gc_assets.extensions.lifecycle.acts import BRANCH_PREFIX
from lakefs_gc_assets.lakefs.api.models import Branch
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX
from lakefs_gc_assets_tests.extensions.lifecycle.aged_repository import AgedRepository, aged_repository


@pytest.fixture
def made(tmp_path: Path) -> Iterator[AgedRepository]:
    """`raw/old` is 100 days old on all branches, of which `hidden` is hidden; `raw/new` is 10 days old on main."""
    with aged_repository(tmp_path) as repository:
        repository.add(100, "raw/old", "raw/keep/old", "other/old")
        for name, hidden in (("dev", False), ("hidden", True)):
            repository.call("POST", "/branches", {"name": name, "source": "main", "hidden": hidden})
        repository.add(10, "raw/new")
        repository.policy(
            {"paths": "raw/", "except": "raw/keep/", "older_than": "90d", "branches": ["main", "hid*", "none-*"]},
            {"paths": "other/", "unchanged_for": "90d"},
        )
        yield repository


def head_of(made: AgedRepository, branch: str) -> Branch:
    head = made.opened().branches_api.branch(branch)
    assert head is not None
    return head


def damage(made: AgedRepository, branch: str) -> str:
    """Damages a range of a branch's head that holds raw/old; returns its key."""
    opened = made.opened()
    head = head_of(made, branch)
    files = deciding.Deciding(opened, opened.clock.now(), pytest.fail, lambda line: None).files
    (range_id,) = files.metarange(opened.api.commit(head.commit_id).metarange_id).column("id").to_pylist()
    opened.store.put(METADATA_PREFIX + range_id, b"damaged")
    return METADATA_PREFIX + str(range_id)


def test_a_listing_is_stored_with_its_entries_and_found_by_its_digest_alone(made: AgedRepository) -> None:
    assert made.expired() == {("main", "rule-1"): ["raw/old"], ("main", "rule-2"): ["other/old"]}
    opened, lines = made.opened(), list[str]()
    listing = expired.list_expired(opened, lines.append)
    assert [(each.branch, each.rule, each.why) for each in listing.kept] == [("hidden", "rule-1", "it is hidden")]
    # The objects are on dev, too, where no rule matches.
    assert [(each.expired, each.freed) for each in listing.groups] == [
        (Amount(1, 11), Amount()),
        (Amount(1, 13), Amount()),
    ]
    assert not [line for line in lines if line.startswith("WARNING")]
    assert expired.read_listing(opened, listing.digest) == listing
    for digest in ("0" * 16, "", "../../x", listing.digest[:-1]):
        with pytest.raises(OrderViolation):
            expired.read_listing(opened, digest)
    with pytest.raises(OrderViolation):
        expired.read_listing(replace(opened, facts=replace(opened.facts, id="other")), listing.digest)
    first, second = listing.groups
    other = expired.read_entries(opened, listing, second)
    key = f"{LIFECYCLE}{listing.digest}/{first.digest}.parquet"
    expired._store(opened, listing, {first.digest: other, second.digest: other})
    with pytest.raises(CorruptFile, match="not those of the listing"):
        expired.read_entries(opened, listing, first)
    opened.store.delete([key])
    with pytest.raises(CorruptFile):
        expired.expired_now(opened, listing, head_of(made, "main"), lines.append)
    made.policy({"paths": "nothing/", "older_than": "1d", "branches": "none"})
    assert made.listed().digest == "" and not made.listed().groups
    name = f"{BRANCH_PREFIX}{'0' * 20}-1"
    made.call("POST", "/branches", {"name": name, "source": "main"})
    made.policy({"paths": "raw/", "older_than": "90d", "branches": "lakefs-*"})
    assert [(each.branch, each.why) for each in made.listed().kept] == [(name, "lifecycle made it")]


def test_only_stored_entries_that_still_expire_unchanged_are_given_for_deletion(made: AgedRepository) -> None:
    listing = made.listed()

    def now(branch: str = "main") -> dict[str, list[str]]:
        found = expired.expired_now(made.opened(), listing, head_of(made, branch), lambda line: None)
        return {rule: rows.column("path").to_pylist() for rule, rows in found.items()}

    assert now() == {"rule-1": ["raw/old"], "rule-2": ["other/old"]}
    assert now("dev") == now("hidden") == {}
    made.add(95, "raw/old", "raw/older")
    assert made.expired()["main", "rule-1"] == ["raw/old", "raw/older"]
    assert now() == {"rule-2": ["other/old"]}, "another object is at raw/old"
    # A commit with a backdated claim is as old as its files.
    made.put("new", "other/old")
    made.commit("backdated", 0, claimed_days=200)
    assert now() == {}
    assert made.expired() == {("main", "rule-1"): ["raw/old", "raw/older"]}


def test_a_branch_with_a_damaged_range_stays_and_others_do_not(made: AgedRepository) -> None:
    made.policy({"paths": "raw/", "older_than": "90d", "branches": ["main", "dev"]})
    file = damage(made, "main")
    listing = made.listed()
    assert [(each.branch, each.expired.objects, each.freed) for each in listing.groups] == [("dev", 2, None)]
    ((branch, why),) = ((each.branch, each.why) for each in listing.kept)
    assert branch == "main" and why.startswith(f"{file}: ")


def test_an_unreadable_history_keeps_entries(made: AgedRepository) -> None:
    damage(made, "dev")
    assert made.expired() == {("main", "rule-1"): ["raw/old"]}
    (_, kept) = made.listed().kept
    assert (kept.branch, kept.rule) == ("main", "rule-2")


def test_a_listing_has_a_limit(made: AgedRepository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "MOST_ENTRIES", 1)
    made.add(90, "tables/1", "tables/2", "tables/3")
    made.policy({"paths": "**", "older_than": "9d"}, {"paths": "**", "keep_newest": 1, "of": "objects"})
    listing = made.listed()
    assert made.expired() == {("main", "rule-1"): ["other/old"]}
    assert [each.why for each in listing.kept] == ["a listing has at most 1 entries: list again after these"]
    monkeypatch.setattr(deciding, "MOST_FOLDERS", 1)
    made.policy({"paths": "**", "keep_newest": 1, "of": "objects"})
    assert made.expired() == {}


def test_the_command_prints_what_expires_and_how_to_approve(made: AgedRepository) -> None:
    made.add(200, "raw/a\x1b[31m/b")
    made.policy({"paths": "raw/", "except": "raw/keep/", "older_than": "90d", "branches": ["main", "hidden"]})
    arguments = ["lifecycle", "--config", str(made.folder / "lakefs-gc.yaml")]
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    digest = made.listed().digest
    assert result.stdout.splitlines() == [
        "main, rule rule-1: 2 objects, 27 B; collection can free 1 object, 16 B",
        "    raw/a\\x1b[31m/: 1 object, 16 B",
        "    raw/: 1 object, 11 B",
        "kept: hidden, rule rule-1: it is hidden",
        "repo: 2 objects, 27 B expire on 1 branch",
        "collection can free 1 object, 16 B of these, once the commits before have expired",
        f"`lakefs-gc lifecycle approve {digest}` deletes them, in a commit for each branch and rule",
    ]
    answer = json.loads(CliRunner().invoke(main, [*arguments, "list", "--json", "--quiet"]).stdout)
    assert answer["digest"] == digest
    assert answer["groups"][0]["expired"] == {"objects": 2, "bytes": 27}
    made.policy({"paths": "nothing", "older_than": "90d"})
    assert CliRunner().invoke(main, arguments).stdout == "repo: nothing expires\n"
    made.configuration()
    with pytest.raises(ConfigurationError, match="no rule lets objects expire"):
        made.listed()
