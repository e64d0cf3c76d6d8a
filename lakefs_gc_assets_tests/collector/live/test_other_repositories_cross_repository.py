import pytest

from lakefs_gc_assets.collector.frame.frames import LIVE
from lakefs_gc_assets.collector.live.other_repositories import staged_elsewhere
from lakefs_gc_assets.errors import NotFound
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.lakefs.api.models import DiffEntry, ObjectStats
from lakefs_gc_assets_tests.collector.scripted import Script, ScriptedApi, branches

OWN = Namespace.parse("s3://bucket/repo")
SLICE = "data/g4uk6erfnfus73frbnqg"
KEY = f"{SLICE}/dc0n8tpksdu988af5s0g"


def other(**staged: str) -> ScriptedApi:
    """A repository with branches main and work; these paths are changed on work, with these physical addresses."""
    return ScriptedApi(
        branch_lists=Script(branches("main", "work")),
        changes_of={"work": Script([DiffEntry(path, "added") for path in staged])},
        stats={("work", path): Script(ObjectStats(path, address, 1)) for path, address in staged.items()},
    )


def keys(*apis: ScriptedApi) -> list[str]:
    table = staged_elsewhere(apis, OWN, "month")
    assert table.schema == LIVE
    return list(table.column("address").to_pylist())


def test_only_addresses_of_this_namespace_count_in_each_spelling() -> None:
    found = keys(
        other(a=f"s3://bucket/repo/{KEY}", b=f"s3://bucket/other/{KEY}x"), other(c="s3a://bucket/repo/data/a%20b")
    )
    assert found == sorted([KEY, "data/a b", "data/a%20b"])


def test_nothing_staged_is_an_empty_table() -> None:
    assert keys(other()) == []


def test_removals_are_not_asked_for() -> None:
    api = other()
    api.changes_of["work"] = Script([DiffEntry("gone", "removed")])
    assert keys(api) == []
    assert api.asked == []


def test_a_branch_that_is_deleted_meanwhile_holds_nothing() -> None:
    api = other()
    api.branch_lists = Script(branches("main", "work"), branches("main"))
    api.changes_of["work"] = Script(NotFound("no such branch"))
    assert keys(api) == []


def test_a_branch_that_cannot_be_read_ends_the_run() -> None:
    api = other()
    api.changes_of["work"] = Script(NotFound("who knows what"))
    with pytest.raises(NotFound):
        keys(api)
