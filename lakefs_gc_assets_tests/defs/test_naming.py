import dagster as dg
import pytest

from lakefs_gc_assets.defs.naming import Names


def test_a_single_repository_has_plain_names() -> None:
    names = Names("my-repository")

    assert (names.of("collect"), names.asset("store_df")) == ("collect", dg.AssetKey("store_df"))
    assert names.all_of({"spark": 1}) == {"spark": 1}


@pytest.mark.parametrize(("repository", "identifier"), [("my-repository", "my_repository"), ("1st", "1st")])
def test_several_have_names_of_their_own(repository: str, identifier: str) -> None:
    names = Names(repository, apart=True)

    assert names.of("collect") == f"collect_{identifier}"
    assert names.of("collect").isidentifier()
    assert names.asset("store_df") == dg.AssetKey([identifier, "store_df"])
    assert names.all_of({"spark": 1}) == {f"spark_{identifier}": 1}


def test_what_is_stored_does_not_change_its_name_when_a_second_repository_is_added() -> None:
    alone, apart = Names("my-repository"), Names("my-repository", apart=True)

    assert alone.partitions == apart.partitions
    assert alone.pool == apart.pool == "lakefs_gc_my_repository"
