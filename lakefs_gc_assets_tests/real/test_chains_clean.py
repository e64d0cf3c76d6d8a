"""Clean runs on the real server: afterwards, live objects return their content, and garbage is gone."""

import json
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest

from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.settings import CollectionSettings, Configuration
from lakefs_gc_assets_tests.real.server import LAKEFS_KEYS, RealLakeFS, installation
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns
from lakefs_gc_assets_tests.simulation.clean_bugs import CLEAN_BUGS

_BASIC = b64encode(":".join(LAKEFS_KEYS).encode()).decode()
BUGS = ("empty live set accepted", "hidden staged entries ignored")


@dataclass
class Scene:
    """A repository, and its writers' record of it.

    Attributes:
        live: content by reference and path.
        garbage: files that nothing references.
    """

    lakefs: RealLakeFS
    namespace: str
    live: dict[tuple[str, str], bytes] = field(default_factory=dict)
    garbage: set[str] = field(default_factory=set)

    def call(self, method: str, path: str, body: object = None, /, **query: str) -> bytes:
        """The content of an answer. Raises HTTPError for an error status."""
        request = Request(
            f"{self.lakefs.url}/api/v1/repositories/repo{path}?{urlencode(query)}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json", "Authorization": f"Basic {_BASIC}"},
            method=method,
        )
        with urlopen(request, timeout=60) as answer:
            content: bytes = answer.read()
        return content

    def upload(self, branch: str, path: str, content: bytes) -> str:
        """Uploads an object and returns its address."""
        self.lakefs.upload("repo", branch, path, content)
        self.live[branch, path] = content
        return str(json.loads(self.call("GET", f"/refs/{branch}/objects/stat", path=path))["physical_address"])

    def unreadable(self) -> list[tuple[str, str]]:
        """Live paths whose content the server does not return."""
        return [place for place, content in self.live.items() if self._read(*place) != content]

    def _read(self, reference: str, path: str) -> bytes | int:
        try:
            return self.call("GET", f"/refs/{reference}/objects", path=path)
        except HTTPError as error:
            return error.code

    def remaining_garbage(self) -> set[str]:
        """Addresses of garbage that is still stored."""
        buckets = self.lakefs.folder / "buckets"
        return {address for address in self.garbage if (buckets / address.removeprefix("s3://")).exists()}

    def sweep(self) -> None:
        """A clean sweep without waits, because nothing is written meanwhile. Raises the error that ends it."""
        waits = {"wait_before_dump_seconds": 0, "wait_before_recheck_seconds": 0}
        configuration = Configuration(
            repository="repo",
            lakefs=self.lakefs.lakefs_settings(),
            store=self.lakefs.store_settings(),
            collection=CollectionSettings.model_validate({**waits, "sweep": True, "max_candidate_share": 1}),
        )
        assert ArrowRuns(Loaded(configuration, {})).collect(Flow.CLEAN).success


@pytest.fixture
def scene() -> Iterator[Scene]:
    """Objects of 45 and 31 days ago, seen from today."""
    with installation() as lakefs:
        lakefs.start(days_ago=45)
        made = Scene(lakefs, lakefs.new_repository("repo"))
        for path in ("lasting", "same", "removed"):
            made.upload("main", path, path.encode())
        commit = lakefs.commit("repo", "main").id
        made.live |= {(commit, path): path.encode() for path in ("lasting", "same", "removed")}
        made.call("POST", "/tags", {"id": "tagged", "ref": commit})
        made.live["tagged", "removed"] = b"removed"
        made.call("POST", "/branches", {"name": "gone", "source": "main"})
        made.upload("gone", "dangling", b"dangling")
        dangling = lakefs.commit("repo", "gone").id
        made.garbage.add(made.upload("gone", "never committed", b"never committed"))
        made.call("DELETE", "/branches/gone")
        made.live = {place: content for place, content in made.live.items() if place[0] != "gone"}
        made.live[dangling, "dangling"] = b"dangling"
        lakefs.start(days_ago=31)
        made.call("DELETE", "/branches/main/objects", path="removed")
        del made.live["main", "removed"]
        made.garbage.add(made.upload("main", "replaced", b"replaced while staged"))
        made.upload("main", "replaced", b"replaced anew")
        made.call("POST", "/branches", {"name": "hidden", "source": commit, "hidden": True})
        made.upload("hidden", "staged", b"staged on a hidden branch")
        # The same content as the head's: the server does not list this staged object.
        made.upload("main", "same", b"same")
        lakefs.start()
        yield made


def test_live_objects_answer_with_their_content_and_garbage_is_gone(scene: Scene) -> None:
    assert scene.unreadable() == [] and len(scene.remaining_garbage()) == 2
    scene.sweep()
    assert scene.unreadable() == []
    assert scene.remaining_garbage() == set()


@pytest.mark.parametrize("name", BUGS)
def test_a_seeded_bug_loses_a_live_object(scene: Scene, name: str) -> None:
    with CLEAN_BUGS[name].patches():
        scene.sweep()
    assert scene.unreadable() != []
