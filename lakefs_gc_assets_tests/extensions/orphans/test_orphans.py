"""Data that no repository of an embedded server names is found with its names and bytes; a repository's never is."""

import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import cast
from unittest import mock

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.cli import main
from lakefs_gc_assets.cli.common import loaded_configuration, open_repository
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.errors import AccessDenied, ConfigurationError
from lakefs_gc_assets.extensions.orphans.orphans import Search, _Walk, find_orphans
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.lakefs.api.models import RepositoryFacts
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.extensions.playground.embedded.routes import ROUTES
from lakefs_gc_assets_tests.runs.retained_repository import SECRET_VARIABLE

PATHS = ("raw/a", "raw/b", "gold/c", "top")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A bucket `lake` with repositories `one` and `team/two`; `gone` and `team/old` are copies of `two` that no
    repository has. The folder has the configuration file of `one`.
    """
    folder = tmp_path_factory.mktemp("orphans")
    with EmbeddedServer(folder / "server", routes=ROUTES) as server:
        for name, place in (("one", "lake/one"), ("two", "lake/team/two")):
            creation = {"name": name, "storage_namespace": f"local://{place}"}
            assert clients.call(server, "POST", "/repositories", creation)[0] == 201
            objects = f"/repositories/{name}/branches/main/objects"
            for path in PATHS:
                assert clients.call(server, "POST", objects, path.encode(), path=path)[0] < 300
            clients.commit(server, "first", name=name)
        branch = {"name": "exp-7", "source": "main"}
        assert clients.call(server, "POST", "/repositories/two/branches", branch)[0] == 201
        _, task = clients.call(server, "POST", "/repositories/two/dump")
        while not clients.call(server, "GET", "/repositories/two/dump", task_id=task["id"])[1]["done"]:
            time.sleep(0.05)
        bucket = server.objects_folder / "lake"
        shutil.copytree(bucket / "team/two", bucket / "gone")
        shutil.copytree(bucket / "team/two", bucket / "team/old")
        (bucket / "plain/data/2026").mkdir(parents=True)
        (bucket / "plain/data/2026/file").write_bytes(b"no lakeFS")
        configuration = {
            "repository": "one",
            "lakefs": {
                "endpoint": server.url,
                "access_key_id": server.access_key_id,
                "secret_access_key": {"env": SECRET_VARIABLE},
                "retries": 0,
            },
            "store": {"local_root": str(server.objects_folder)},
        }
        (folder / "lakefs-gc.yaml").write_text(yaml.safe_dump(configuration))
        with mock.patch.dict(os.environ, {SECRET_VARIABLE: server.secret_access_key}):
            yield folder


def opened(lake: Path) -> OpenRepository:
    return open_repository(loaded_configuration(lake / "lakefs-gc.yaml", None), to_read=True)


def listing(repository: OpenRepository, facts: Sequence[RepositoryFacts] | Exception) -> OpenRepository:
    """The repository on a server that lists other repositories."""
    api = mock.Mock(wraps=repository.api)
    api.repositories.side_effect = [facts]
    return replace(repository, api=api)


def search(repository: OpenRepository, **options: object) -> Search:
    return find_orphans(repository, lambda line: None, **options)  # type: ignore[arg-type]


def addresses(found: Search) -> list[str]:
    return [orphan.uri for orphan in found.orphans]


def stored(folder: Path) -> tuple[int, int]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return len(files), sum(path.stat().st_size for path in files)


def test_places_of_no_repository_are_found_with_their_facts(lake: Path) -> None:
    found = search(opened(lake))
    assert addresses(found) == ["local://lake/gone/", "local://lake/team/old/"]
    assert (found.repositories, found.surrounding, found.unopened) == (2, (), 0)
    gone = found.orphans[0]
    assert gone.amount == Amount(*stored(lake / "server/objects/lake/gone"))
    assert gone.branches == ("exp-7", "main")
    assert (gone.entries, gone.folders) == (len(PATHS), ("gold/", "top"))
    assert gone.first_write and gone.last_write and gone.first_write <= gone.last_write <= datetime.now(UTC)


def test_without_sizes_nothing_below_a_place_is_read(lake: Path) -> None:
    with (
        mock.patch.object(LocalStore, "list", side_effect=AssertionError),
        mock.patch.object(LocalStore, "get", side_effect=AssertionError),
    ):
        found = search(opened(lake), measured=False)
    assert addresses(found) == ["local://lake/gone/", "local://lake/team/old/"]
    assert all(orphan.amount is None for orphan in found.orphans)


def test_a_part_of_the_bucket(lake: Path) -> None:
    assert addresses(search(opened(lake), below="team/")) == ["local://lake/team/old/"]
    shallow = search(opened(lake), depth=1)
    assert (addresses(shallow), shallow.unopened) == (["local://lake/gone/"], 2)
    few = search(opened(lake), folders=1)
    assert (addresses(few), few.listed, few.unopened > 0) == ([], 1, True)


def test_a_place_around_a_repository_is_no_orphan(lake: Path) -> None:
    repository = opened(lake)
    inside = RepositoryFacts("deep", "local://lake/gone/deep", "main", False)
    found = search(listing(repository, (*repository.api.repositories(), inside)))
    assert addresses(found) == ["local://lake/team/old/"]
    assert found.surrounding == ("local://lake/gone/",)


def test_a_place_inside_of_a_repository_is_no_orphan(lake: Path) -> None:
    repository = opened(lake)
    around = RepositoryFacts("wide", "local://lake/team", "main", False)
    assert addresses(search(listing(repository, (*repository.api.repositories(), around)))) == ["local://lake/gone/"]
    whole = RepositoryFacts("whole", "local://lake", "main", False)
    found = search(listing(repository, (*repository.api.repositories(), whole)))
    assert (found.orphans, found.listed) == ((), 0)


def test_both_spellings_of_an_escaped_namespace_are_a_repositorys(lake: Path) -> None:
    repository = opened(lake)
    for spelled in ("local://lake/g%6fne", "local://lake/gone/"):
        escaped = RepositoryFacts("escaped", spelled, "main", False)
        found = search(listing(repository, (*repository.api.repositories(), escaped)))
        assert addresses(found) == ["local://lake/team/old/"]


@pytest.mark.parametrize(
    "answer",
    [AccessDenied("403"), (), (RepositoryFacts("other", "local://lake/other", "main", False),)],
    ids=["a refusal", "nothing", "a part"],
)
def test_an_incomplete_list_of_repositories_ends_the_search(
    lake: Path, answer: Sequence[RepositoryFacts] | Exception
) -> None:
    with pytest.raises(ConfigurationError, match=r"fs:ListRepositories on \*"):
        search(listing(opened(lake), answer))


def test_a_namespace_that_cannot_be_read_ends_the_search(lake: Path) -> None:
    repository = opened(lake)
    odd = RepositoryFacts("odd", "nowhere", "main", False)
    with pytest.raises(ConfigurationError, match="nowhere"):
        search(listing(repository, (*repository.api.repositories(), odd)))


def test_slices_without_metadata_are_a_sign(lake: Path, tmp_path: Path) -> None:
    names = "data/gfoe9v4h1mec73d5f1ag/d0a1b2c3d4e5f6g7h8ig"
    for place in ("cut", "other"):
        (tmp_path / place / names).parent.mkdir(parents=True)
        (tmp_path / place / names).write_bytes(b"x")
    walk = _Walk(LocalStore(tmp_path), ("other/",))
    walk.look("", 2, 100)
    assert walk.found == {"cut/": ("slices of lakeFS in data/",)}


NAMES = st.sampled_from(("a", "b", "ab"))
FOLDERS = st.lists(NAMES, min_size=1, max_size=3).map(lambda names: "/".join(names) + "/")


@given(st.frozensets(FOLDERS, max_size=5), st.frozensets(FOLDERS, max_size=3))
def test_no_file_of_a_repository_is_ever_in_an_orphan(marked: frozenset[str], own: frozenset[str]) -> None:
    """Judged by names of files alone: each one below a marked folder is a repository's, around one, or an orphan's."""
    store = cast(LocalStore, _Tree([f"{folder}_lakefs/dummy" for folder in marked] + [f"{folder}x" for folder in own]))
    walk = _Walk(store, tuple(own))
    walk.look("", 5, 1000)
    orphans = set(walk.found)
    assert not any(mine.startswith(orphan) or orphan.startswith(mine) for mine in own for orphan in orphans)
    for folder in marked:
        touches = any(folder.startswith(mine) or mine.startswith(folder) for mine in own)
        assert touches or any(folder.startswith(orphan) for orphan in orphans)


class _Tree:
    """The one call of a store that the walk makes, on names of files."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = keys

    def list_level(self, prefix: str) -> object:
        rests = [key.removeprefix(prefix) for key in self.keys if key.startswith(prefix)]
        folders = sorted({f"{prefix}{rest.partition('/')[0]}/" for rest in rests if "/" in rest})
        return mock.Mock(prefixes=tuple(folders), objects=())


class TestCommand:
    def call(self, lake: Path, *arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(main, ["orphans", "list", "--config", str(lake / "lakefs-gc.yaml"), *arguments])
        return result.exit_code, result.stdout

    def test_lines(self, lake: Path) -> None:
        status, output = self.call(lake)
        lines = output.splitlines()
        count, bytes_ = stored(lake / "server/objects/lake/gone")
        assert status == Status.WELL
        assert lines[0] == "local://lake/gone/: metadata of lakeFS in _lakefs/, data/"
        assert lines[1].startswith(f"  {count} objects, ") and bytes_
        assert lines[2].endswith(": written lately, so it is probably in use")
        assert lines[3:5] == ["  branches: exp-7, main", f"  newest metarange: {len(PATHS)} objects below gold/, top"]
        assert "another server may own a place" in output and "2 places in local://lake/" in output
        result = CliRunner().invoke(main, ["orphans", "--config", str(lake / "lakefs-gc.yaml")])
        assert (result.exit_code, result.stdout) == (status, output), "the same as without a subcommand"

    def test_json(self, lake: Path) -> None:
        status, output = self.call(lake, "--json", "--below", "team")
        found = json.loads(output)
        assert (status, found["start"]) == (Status.WELL, "local://lake/team/")
        [old] = found["orphans"]
        count, bytes_ = stored(lake / "server/objects/lake/team/old")
        assert old["amount"] == {"objects": count, "bytes": bytes_}
        assert (old["entries"], old["folders"]) == (len(PATHS), ["gold/", "top"])

    def test_nothing_is_written(self, lake: Path) -> None:
        def files() -> dict[Path, int]:
            return {path: path.stat().st_mtime_ns for path in (lake / "server/objects").rglob("*")}

        before = files()
        assert self.call(lake)[0] == Status.WELL
        assert files() == before
