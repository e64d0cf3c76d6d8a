import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Barrier
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakefs_gc_assets.collector.engine.local import ArrowRows, LocalEngine
from lakefs_gc_assets.collector.engine.port import ChangeBatches
from lakefs_gc_assets.collector.live import contents, hidden
from lakefs_gc_assets.collector.live.contents import ContentSample, choose_sizes
from lakefs_gc_assets.collector.live.hidden import Cleared, clear_hidden
from lakefs_gc_assets.collector.records.outcomes import Kept
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.errors import ObjectArchived
from lakefs_gc_assets.lakefs.addresses import AddressType, Namespace
from lakefs_gc_assets.lakefs.api.models import ObjectStats
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets.storage import interface
from lakefs_gc_assets.storage.interface import ObjectFacts
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets.storage.opening import StoreOpener
from lakefs_gc_assets_tests.collector.made_frames import made_step
from lakefs_gc_assets_tests.collector.scripted import HandClock, Script, ScriptedApi
from lakefs_gc_assets_tests.collector.written import Staged, put_metarange, put_range

NAMESPACE = Namespace.parse("s3://bucket/repo")
SCHEMA = pa.schema([("address", pa.string()), ("size", pa.int64()), ("etag", pa.string())])


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def foreign(content: bytes) -> str:
    """An ETag as with KMS keys: it looks like an MD5."""
    return md5(b"encrypted" + content)


class EncryptingStore(LocalStore):
    """Reports the MD5 of objects, except for objects encrypted with KMS keys."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._plain = LocalStore(folder)
        self.encrypted: set[str] = set()
        self.reported: dict[str, str] = {}
        self.looked_at: list[str] = []
        self.read: list[str] = []
        self.archived: set[str] = set()

    def head(self, key: str) -> ObjectFacts:
        facts = self._plain.head(key)
        self.looked_at.append(key)
        content = self._plain.get(key)
        if key in self.encrypted:
            return replace(facts, etag=foreign(content))
        return replace(facts, etag=md5(content), md5=self.reported.get(key) or md5(content))

    def get(self, key: str) -> bytes:
        if key.startswith("data/"):
            self.read.append(key)
        if key in self.archived:
            raise ObjectArchived(key)
        return self._plain.get(key)


@dataclass(frozen=True)
class _Opener:
    store: EncryptingStore
    namespace_uri: str = NAMESPACE.uri

    def open(self) -> EncryptingStore:
        return self.store


class CutUp(LocalEngine):
    """Uses a task for each row, with empty batches before it and in separate tasks."""

    def map_batches(self, rows: ArrowRows, change: ChangeBatches, schema: pa.Schema) -> ArrowRows:
        def tasks() -> Iterator[Iterator[pa.RecordBatch]]:
            for batch in (batch for task in rows.tasks() for batch in task):
                none = batch.slice(0, 0)
                yield iter([none])
                for place in range(batch.num_rows):
                    yield iter([none, batch.slice(place, 1)])

        return super().map_batches(ArrowRows(rows.schema, tasks), change, schema)


@dataclass
class World:
    """A branch with committed objects, and candidates beside them."""

    store: EncryptingStore
    api: ScriptedApi = field(default_factory=ScriptedApi)
    committed: dict[str | bytes, Staged] = field(default_factory=dict)
    candidates: list[dict[str, object]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    limit: int = 1000
    branches: list[str] = field(default_factory=lambda: ["main"])
    listed: dict[str, tuple[int, str]] = field(default_factory=dict)
    engine: LocalEngine = field(default_factory=LocalEngine)

    def commit(
        self, path: str, content: bytes, *, encrypted: bool = False, checksum: str = "", linked: bool = False
    ) -> str:
        """Adds an object to the head; its checksum is lakeFS's, unless another one is given."""
        key = f"data/s/committed-{path}" + (",signature" if linked else "")
        self._put(key, content, encrypted)
        self.committed[path] = Staged(key, size=len(content), etag=checksum or md5(content))
        return key

    def candidate(self, name: str, content: bytes, *, encrypted: bool = False, staged_at: str = "") -> str:
        """Adds an unlisted object without a commit; staged at a path, if one is given."""
        key = f"data/s/{name}"
        self._put(key, content, encrypted)
        etag = foreign(content) if encrypted else md5(content)
        self.candidates.append({"address": key, "size": len(content), "etag": etag})
        if staged_at:
            self.api.stats["main", staged_at] = Script(ObjectStats(staged_at, NAMESPACE.uri + key, len(content)))
        return key

    def _put(self, key: str, content: bytes, encrypted: bool) -> None:
        self.store.put(key, content)
        self.listed[key] = (len(content), foreign(key.encode()) if encrypted else md5(content))
        if encrypted:
            self.store.encrypted.add(key)

    def clear(self, listing: bool = False) -> tuple[set[str], Cleared[ArrowRows]]:
        """The remaining candidates.

        Args:
            listing: True if the ETags of a listing are available.
        """
        head = put_metarange(self.store, [put_range(self.store, self.committed)])
        heads = dict.fromkeys(self.branches, head)
        settings = CollectionSettings(hidden_suspect_limit=self.limit)
        repository = OpenRepository(
            self.api.repository(),
            NAMESPACE,
            self.api,
            self.store,
            cast(StoreOpener, _Opener(self.store)),
            settings,
            HandClock(),
        )
        engine = self.engine
        step = made_step(engine, repository, note=self.lines.append)
        candidates = engine.table(pa.Table.from_pylist(self.candidates, schema=SCHEMA))
        rows = [{"address": key, "size": size, "etag": etag} for key, (size, etag) in self.listed.items()]
        listed = engine.table(pa.Table.from_pylist(rows, schema=SCHEMA))
        with clear_hidden(step, candidates, heads, SCHEMA, (lambda: listed) if listing else None) as found:
            return set(engine.collect(found.candidates).column("address").to_pylist()), found


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(EncryptingStore(tmp_path))


def look_at_all(candidates: object, questions: Mapping[int, int], limit: int, seed: str) -> ContentSample:
    """Reads candidates wherever that can reveal something, although there are few paths to ask for."""
    return ContentSample(pa.array([size for size in questions if size], pa.int64()), 1.0, seed)


@pytest.fixture
def all_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hidden, "choose_sizes", look_at_all)


def test_a_candidate_that_a_path_means_is_kept(world: World) -> None:
    world.commit("p", b"content")
    staged = world.candidate("copy", b"content", staged_at="p")
    other = world.candidate("other", b"another")

    left, found = world.clear()

    assert left == {other}
    assert found.kept == {Kept.HIDDEN_STAGED.value: 1}
    assert (set(found.live), world.api.asked, found.asked) == ({staged}, [("main", "p")], 1)


def test_more_suspects_than_may_be_asked_are_kept(world: World) -> None:
    world.commit("p", b"content")
    world.candidate("copy", b"content", staged_at="p")
    other = world.candidate("other", b"garbage, longer")
    world.limit = 0

    left, found = world.clear()

    assert (left, found.kept, found.asked) == ({other}, {Kept.UNCERTAIN.value: 1}, 0)


def test_etags_that_are_no_digests_do_not_hide_a_staged_object(world: World) -> None:
    """With KMS keys, ETags look like MD5s but are not."""
    world.commit("p", b"content")
    world.candidate("copy", b"content", encrypted=True, staged_at="p")

    left, found = world.clear()

    assert (left, found.kept) == (set(), {Kept.HIDDEN_STAGED.value: 1})


@pytest.mark.usefixtures("all_looked_at")
def test_plain_objects_say_nothing_of_an_encrypted_one_beside_them(world: World) -> None:
    """A copy encrypted with a KMS key, staged over the same content, among many plain objects."""
    world.commit("p", b"content")
    plain = {world.candidate(f"plain-{number}", b"another") for number in range(40)}
    world.candidate("copy", b"content", encrypted=True, staged_at="p")

    for listing in (False, True):
        left, found = world.clear(listing)

        assert left == plain
        assert found.kept == {Kept.HIDDEN_STAGED.value: 1}


@pytest.mark.usefixtures("all_looked_at")
def test_an_encrypted_object_of_which_nothing_is_read_has_any_content(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "READ_BYTES", 0)
    world.commit("p", b"content")
    plain = world.candidate("plain", b"another")
    staged = world.candidate("copy", b"content", encrypted=True, staged_at="p")
    other = world.candidate("garbage", b"garbage", encrypted=True)

    left, found = world.clear()

    assert left == {plain, other}
    assert found.live == {staged}
    assert world.api.asked == [("main", "p")]

    world.limit = 0
    left, found = world.clear()
    assert left == {plain}
    assert found.kept == {Kept.UNCERTAIN.value: 2}


@pytest.mark.usefixtures("all_looked_at")
@pytest.mark.parametrize("read_bytes", [0, 1000])
@pytest.mark.parametrize("encrypted", [False, True])
def test_a_checksum_that_is_no_md5_of_the_committed_object_tells_nothing_apart(
    world: World, monkeypatch: pytest.MonkeyPatch, encrypted: bool, read_bytes: int
) -> None:
    """An encrypted object was linked under its ETag. A copy keeps that checksum, and has another ETag and MD5."""
    monkeypatch.setattr(contents, "READ_BYTES", read_bytes)
    world.commit("p", b"content", encrypted=True, checksum=foreign(b"content"))
    plain = world.candidate("plain", b"garbage")
    staged = world.candidate("copy", b"content", encrypted=encrypted, staged_at="p")

    left, found = world.clear()

    assert left == {plain}
    assert found.live == {staged}


@pytest.mark.usefixtures("all_looked_at")
def test_a_committed_object_of_another_size_than_was_named_is_not_read(world: World) -> None:
    """The client that links an object states its size: the object may be far above the limit for reading."""
    large = world.commit("p", b"far larger than named", checksum=md5(b"of what?"), linked=True)
    world.store.encrypted.add(large)
    world.committed["p"] = replace(world.committed["p"], size=len(b"content"))
    staged = world.candidate("staged", b"content", staged_at="p")
    world.candidate("other", b"garbage")

    left, _ = world.clear()

    assert left == {"data/s/other"} and staged not in left
    assert large in world.store.looked_at and large not in world.store.read


@pytest.mark.usefixtures("all_looked_at")
@pytest.mark.parametrize("engine", [LocalEngine(), CutUp()], ids=["whole", "cut up"])
@pytest.mark.parametrize("copy_first", [False, True])
@pytest.mark.parametrize(("content", "other"), [(b"content", b"garbage"), (b"garbage", b"content")])
def test_a_checksum_that_one_candidate_has_is_still_in_doubt_where_another_has_not(
    world: World, content: bytes, other: bytes, copy_first: bool, engine: LocalEngine
) -> None:
    """A user linked an object with the checksum of other content: it cannot tell a staged copy from the object."""
    world.engine = engine
    world.commit("p", content, checksum=md5(other), linked=True)
    if copy_first:
        staged = world.candidate("copy", content, staged_at="p")
    garbage = world.candidate("garbage", other)
    if not copy_first:
        staged = world.candidate("copy", content, staged_at="p")

    left, found = world.clear()

    assert (left, set(found.live)) == ({garbage}, {staged})

    world.limit = 0
    left, found = world.clear()
    assert (left, found.kept) == (set(), {Kept.UNCERTAIN.value: 2})


@pytest.mark.usefixtures("all_looked_at")
def test_objects_that_are_too_large_to_be_read_leave_the_bytes_to_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interface, "LARGEST_READ", 7)
    monkeypatch.setattr(contents, "READ_BYTES", 2 * 7)
    for content in (b"content", b"too large"):
        world.commit(content.decode(), content)
    garbage = world.candidate("garbage", b"garbage", encrypted=True)
    world.candidate("large", b"Too large", encrypted=True)

    world.clear()

    assert garbage in world.store.read
    assert "7 bytes were read to compute MD5s, which the store does not report" in world.lines


@pytest.mark.usefixtures("all_looked_at")
def test_the_checksum_of_an_object_elsewhere_tells_nothing_apart(world: World) -> None:
    """An imported object has the checksum of its own store."""
    world.committed["p"] = Staged("s3://elsewhere/import", AddressType.FULL, size=7, etag=foreign(b"content"))
    staged = world.candidate("copy", b"content", staged_at="p")

    left, found = world.clear()

    assert not left
    assert found.live == {staged}


@pytest.mark.usefixtures("all_looked_at")
def test_contents_that_are_known_ask_nothing(world: World) -> None:
    for number in range(3):
        world.commit(f"p{number}", b"content%d" % number)
    plain = {world.candidate(f"plain-{number}", b"another%d" % number) for number in range(5)}

    left, found = world.clear()

    assert (left, found.asked, world.api.asked) == (plain, 0, [])


@pytest.mark.usefixtures("all_looked_at")
def test_only_objects_of_the_size_of_a_committed_one_are_looked_at(world: World) -> None:
    committed = world.commit("p", b"content")
    world.commit("q", b"a size of its own")
    alike = world.candidate("alike", b"another")
    world.candidate("longer", b"longer content")
    world.candidate("empty", b"")
    world.commit("e", b"")

    world.clear()

    assert sorted(world.store.looked_at) == sorted([committed, alike])


@pytest.mark.usefixtures("all_looked_at")
def test_an_object_that_is_gone_has_nothing_to_decide(world: World) -> None:
    world.commit("p", b"content")
    gone = world.candidate("gone", b"content")
    world.store.delete([gone])

    left, found = world.clear()

    assert (left, found.asked) == ({gone}, 0)


@pytest.mark.usefixtures("all_looked_at")
def test_the_content_of_an_archived_object_is_unknown_so_its_paths_are_asked_for(world: World) -> None:
    """One is staged over the same content, one is garbage; neither can be read."""
    world.commit("p", b"content")
    staged = world.candidate("staged", b"content", encrypted=True, staged_at="p")
    garbage = world.candidate("garbage", b"another", encrypted=True)
    world.store.archived = {staged, garbage}

    left, found = world.clear()

    assert (left, world.api.asked) == ({garbage}, [("main", "p")])
    assert (found.kept, found.unreadable) == ({Kept.HIDDEN_STAGED.value: 1}, 2)
    assert sorted(world.store.read) == [garbage, staged]


@pytest.mark.usefixtures("all_looked_at")
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["archived", "same", "other"]), min_size=1, max_size=6))
def test_what_stays_since_it_cannot_be_read_is_counted_by_itself(tmp_path_factory: Any, kinds: list[str]) -> None:
    """No path may be asked for. A readable object stays if it has the content of a committed one."""
    world = World(EncryptingStore(tmp_path_factory.mktemp("world")), limit=0, engine=CutUp())
    world.commit("p", b"content")
    keys = [
        world.candidate(f"{kind}{number}", b"another" if kind == "other" else b"content", encrypted=True)
        for number, kind in enumerate(kinds)
    ]
    world.store.archived = {key for key, kind in zip(keys, kinds, strict=True) if kind == "archived"}

    left, found = world.clear()

    kept = {Kept.UNREADABLE.value: kinds.count("archived"), Kept.UNCERTAIN.value: kinds.count("same")}
    assert found.kept == {why: count for why, count in kept.items() if count}
    assert (found.unreadable, len(left)) == (kinds.count("archived"), kinds.count("other"))


@pytest.mark.usefixtures("all_looked_at")
def test_a_store_whose_sample_is_archived_is_not_believed(world: World) -> None:
    world.commit("p", b"content")
    reported = world.candidate("told", b"content", staged_at="p")
    world.store.reported[reported] = md5(b"another")
    world.store.archived = {reported}

    left, _ = world.clear()

    assert (left, world.api.asked) == (set(), [("main", "p")])


@pytest.mark.usefixtures("all_looked_at")
def test_a_committed_object_that_is_gone_is_unknown(world: World) -> None:
    world.store.delete([world.commit("p", b"content")])
    plain = world.candidate("plain", b"another")

    left, _ = world.clear()

    assert (left, world.api.asked) == ({plain}, [("main", "p")])


@pytest.mark.usefixtures("all_looked_at")
def test_so_many_bytes_are_read_the_smallest_objects_first(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a bucket that is encrypted throughout; all objects of a size are read, or none."""
    monkeypatch.setattr(contents, "READ_BYTES", 2 * 10 + 2 * 100)
    names = {}
    for size in (10, 100, 1000):
        names[size] = {
            world.commit(f"p{size}", b"c" * size, encrypted=True),
            world.candidate(f"x{size}", b"x" * size, encrypted=True),
        }

    left, _ = world.clear()

    assert set(world.store.read) == names[10] | names[100]
    assert world.api.asked == [("main", "p1000")]
    assert left == {row["address"] for row in world.candidates}
    assert [line for line in world.lines if "not read" in line] == [
        "not reading objects of 512 bytes and more: their content counts as unknown"
    ]
    assert world.lines.count("110 bytes were read to compute MD5s, which the store does not report") == 2


@pytest.mark.usefixtures("all_looked_at")
@pytest.mark.parametrize(
    ("sizes", "bytes_of_candidates", "read"),
    [
        ((100, 128, 129), 357, {100, 128, 129}),
        ((100, 128, 129), 356, {100}),
        ((100, 128, 129), 100, {100}),
        ((100, 128, 129), 99, set()),
        ((1, 2), 1, {1}),
        ((1, 2), 0, set()),
    ],
)
def test_sizes_of_as_many_bits_are_read_all_or_not_at_all(
    world: World, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], bytes_of_candidates: int, read: set[int]
) -> None:
    monkeypatch.setattr(contents, "READ_BYTES", 2 * bytes_of_candidates)
    names = {size: world.candidate(f"x{size}", b"x" * size, encrypted=True) for size in sizes}
    for size in sizes:
        world.commit(f"p{size}", b"c" * size)

    world.clear()

    assert {key for key in world.store.read if "committed" not in key} == {names[size] for size in read}


@pytest.mark.usefixtures("all_looked_at")
@pytest.mark.parametrize("listing", [False, True])
def test_how_rows_are_divided_among_tasks_changes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, listing: bool
) -> None:
    monkeypatch.setattr(contents, "READ_BYTES", 2 * 60)
    for number in range(5):
        world.commit(f"plain-{number}", b"content%d" % number, linked=number == 3)
        world.commit(f"encrypted-{number}", b"much longer content%d" % number, encrypted=True)
        world.candidate(f"plain-{number}", b"garbage%d" % number, encrypted=number == 2)
        world.candidate(f"encrypted-{number}", b"much longer garbage%d" % number, encrypted=True)
    world.commit("short", b"short")
    world.candidate("short-1", b"SHORT", encrypted=True)
    world.candidate("short-2", b"Short")
    world.candidate("copy", b"content3", staged_at="plain-3")
    world.store.delete([world.candidate("gone", b"content3")])

    answers = []
    for engine in (LocalEngine(), CutUp()):
        world.engine = engine
        for each in (world.lines, world.api.asked, world.store.read, world.store.looked_at):
            each.clear()
        left, found = world.clear(listing)
        requests = (sorted(world.api.asked), sorted(world.store.read), sorted(world.store.looked_at))
        answers.append((left, found, sorted(world.lines), requests))

    (left, found, lines, requests), (other_left, other, *others) = answers
    assert (left, found.kept, found.asked, found.unasked, found.live) == (
        other_left,
        other.kept,
        other.asked,
        other.unasked,
        other.live,
    )
    assert [lines, requests] == others
    assert any("not read" in line for line in lines) and found.kept and found.asked


@pytest.mark.usefixtures("all_looked_at")
@pytest.mark.parametrize(("objects", "read"), [(9, True), (10, False)])
def test_bytes_that_candidates_left_are_for_committed_objects(
    world: World, monkeypatch: pytest.MonkeyPatch, objects: int, read: bool
) -> None:
    monkeypatch.setattr(contents, "READ_BYTES", 100)
    committed = {world.commit(f"p{number}", b"content %02d" % number, encrypted=True) for number in range(objects)}
    candidate = world.candidate("x", b"garbage 00", encrypted=True)

    left, found = world.clear()

    assert set(world.store.read) == ({candidate} | committed if read else {candidate})
    assert (left, found.asked) == ({candidate}, 0 if read else objects)


@pytest.mark.usefixtures("all_looked_at")
@pytest.mark.parametrize(("largest", "read"), [(7, True), (6, False)])
def test_objects_are_read_up_to_a_size(world: World, monkeypatch: pytest.MonkeyPatch, largest: int, read: bool) -> None:
    monkeypatch.setattr(interface, "LARGEST_READ", largest)
    committed = world.commit("p", b"content", encrypted=True)
    candidate = world.candidate("x", b"garbage", encrypted=True)

    left, found = world.clear()

    assert set(world.store.read) == ({candidate, committed} if read else set())
    assert (left, found.asked) == ({candidate}, 0 if read else 1)


@pytest.mark.usefixtures("all_looked_at")
@pytest.mark.parametrize(("call", "at_once", "encrypted"), [("head", 16, False), ("get", 4, True)])
def test_several_objects_are_looked_at_and_read_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch, call: str, at_once: int, encrypted: bool
) -> None:
    world.commit("p", b"content")
    names = {world.candidate(f"x{number:02}", b"garb %02d" % number, encrypted=encrypted) for number in range(at_once)}
    all_at_once, ask = Barrier(at_once), getattr(world.store, call)

    def waiting(key: str) -> object:
        if key in names:
            all_at_once.wait(timeout=900)
        return ask(key)

    monkeypatch.setattr(world.store, call, waiting)
    left, found = world.clear()
    assert (left, found.asked) == (names, 0)


@pytest.mark.usefixtures("all_looked_at")
class TestSampleOfWhatTheStoreTells:
    """Some objects are read to verify the store's reported MD5s."""

    def test_is_of_sixteen_objects_by_the_ends_of_their_names(self, world: World) -> None:
        committed = world.commit("p", b"content")
        names = [world.candidate(f"x{number:02}", b"garb %02d" % number) for number in reversed(range(42))]
        left, found = world.clear()
        chosen = sorted(names, key=lambda name: name[::-1])[:16]
        assert sorted(world.store.read) == sorted([*chosen, committed])
        assert (left, found.asked) == (set(names), 0)
        assert not any("are read" in line for line in world.lines)

    def test_is_of_small_objects_where_there_are_any(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(contents, "_SAMPLED_BYTES", 7)
        world.commit("p", b"content")
        world.commit("q", b"longer content")
        small, large = world.candidate("b-small", b"garbage"), world.candidate("a-large", b"longer garbage")
        world.clear()
        assert small in world.store.read and large not in world.store.read

    def test_is_of_two_large_objects_otherwise(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(contents, "_SAMPLED_BYTES", 6)
        committed = world.commit("p", b"content")
        names = [world.candidate(f"x{number}", b"garbag%d" % number) for number in range(4)]
        left, found = world.clear()
        assert sorted(world.store.read) == sorted([*names[:2], committed])
        assert (left, found.asked) == (set(names), 0)

    def test_is_read_up_to_a_size(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(interface, "LARGEST_READ", 7)
        world.commit("p", b"content")
        garbage = world.candidate("garbage", b"garbage")
        left, found = world.clear()
        assert (left, found.asked, garbage in world.store.read) == ({garbage}, 0, True)
        assert not any("not using them" in line for line in world.lines)

    def test_that_is_too_large_to_be_read_proves_nothing(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(interface, "LARGEST_READ", 6)
        world.commit("p", b"content")
        staged = world.candidate("copy", b"content", staged_at="p")
        garbage = world.candidate("garbage", b"garbage")
        left, found = world.clear()
        assert (left, set(found.live), found.asked) == ({garbage}, {staged}, 1)
        refused = "the store's MD5 values are wrong or cannot be verified: not using them"
        assert world.lines.count(refused) == 1 and world.store.read == []


@pytest.mark.usefixtures("all_looked_at")
def test_a_store_that_tells_something_else_is_not_believed(world: World) -> None:
    committed = world.commit("p", b"content")
    staged = world.candidate("copy", b"content", staged_at="p")
    world.store.reported = {committed: foreign(b"committed"), staged: foreign(b"staged")}

    left, found = world.clear()

    assert not left
    assert found.live == {staged}


@pytest.mark.usefixtures("all_looked_at")
class TestRequests:
    """Number of objects that are read."""

    def test_what_the_listing_says_of_a_committed_object_needs_no_look(self, world: World) -> None:
        """In a repository with few sizes, reading each committed object would take forever."""
        for number in range(1000):
            world.commit(f"p{number}", b"%04d" % number)
        candidates = {world.candidate(f"x{number}", b"x%03d" % number) for number in range(20)}

        left, found = world.clear(listing=True)

        assert (left, found.asked) == (candidates, 0)
        assert set(world.store.looked_at) == candidates

    def test_of_a_linked_object_the_listing_says_nothing(self, world: World) -> None:
        """The client that links an encrypted object states its ETag, which equals the listing's."""
        linked = world.commit("p", b"content", encrypted=True, linked=True)
        world.committed["p"] = replace(world.committed["p"], etag=world.listed[linked][1])
        staged = world.candidate("copy", b"content", staged_at="p")
        garbage = world.candidate("garbage", b"garbage")

        left, found = world.clear(listing=True)

        assert (left, set(found.live)) == ({garbage}, {staged})
        assert linked in world.store.looked_at

    def test_of_another_etag_than_the_checksum_the_listing_says_nothing(self, world: World) -> None:
        """A copy keeps the linked object's checksum, under a name of the server's."""
        copied = world.commit("p", b"content", encrypted=True, checksum=foreign(b"linked"))
        staged = world.candidate("copy", b"content", staged_at="p")

        left, found = world.clear(listing=True)

        assert (left, set(found.live)) == (set(), {staged})
        assert copied in world.store.looked_at

    def test_where_etags_are_nobodys_md5_the_listing_says_nothing(self, world: World) -> None:
        """There, a copy of an object linked with its ETag has the same ETag, whoever wrote it."""
        checksum = foreign(b"content")
        committed = world.commit("p", b"content", checksum=checksum)
        staged = world.candidate("copy", b"content", staged_at="p")
        garbage = world.candidate("garbage", b"garbage")
        world.listed[committed] = (len(b"content"), checksum)
        world.store.reported = {committed: checksum, staged: checksum, garbage: foreign(b"garbage")}

        left, found = world.clear(listing=True)

        assert (left, set(found.live)) == ({garbage}, {staged})
        assert committed in world.store.looked_at

    def test_a_committed_object_that_cannot_be_reported_from_a_candidate_is_not_looked_at(self, world: World) -> None:
        world.commit("p", b"content")
        garbage = world.candidate("garbage", b"content")

        left, found = world.clear()

        assert (left, found.asked) == ({garbage}, 1)
        assert world.store.looked_at == [garbage]

    def test_nothing_is_known_of_candidates_so_no_committed_object_is_looked_at(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(contents, "READ_BYTES", 0)
        for number in range(10):
            world.commit(f"p{number}", b"content%d" % number, encrypted=True)
        garbage = world.candidate("garbage", b"garbage!", encrypted=True)

        left, found = world.clear(listing=True)

        assert (left, found.asked) == ({garbage}, 10)
        assert world.store.looked_at == [garbage]

    def test_at_committed_objects_up_to_a_bound_and_others_are_asked_for(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(contents, "COMMITTED_CHECKED", 20)
        committed = {world.commit(f"p{number}", b"%04d" % number, linked=True) for number in range(400)}
        garbage = world.candidate("garbage", b"x000")

        left, found = world.clear(listing=True)

        looked_at = committed & set(world.store.looked_at)
        assert 0 < len(looked_at) < 60
        assert (left, found.asked) == ({garbage}, 400 - len(looked_at))

        world.limit = 100
        left, found = world.clear(listing=True)
        assert (left, found.kept) == (set(), {Kept.UNCERTAIN.value: 1})


class TestBoundOfCandidates:
    def test_what_is_not_looked_at_is_asked_for(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(contents, "CANDIDATES_CHECKED", 20)
        for number in range(401):
            world.commit(f"p{number}", b"%04d" % number)
        candidates = {world.candidate(f"x{number}", b"x%03d" % number) for number in range(400)}
        staged = world.candidate("staged", b"0007", staged_at="p7")
        world.branches = ["main", "other"]

        left, found = world.clear(listing=True)

        assert (left, set(found.live)) == (candidates, {staged})
        assert 0 < len(candidates & set(world.store.looked_at)) < 60
        assert found.asked == 802

        # Known objects may be deleted, although there are too many other questions.
        world.limit = 0
        world.store.looked_at.clear()
        left, found = world.clear(listing=True)
        assert left and left < candidates
        assert left == candidates & set(world.store.looked_at)

    def test_few_paths_are_asked_for_and_many_candidates_not_looked_at(self, world: World) -> None:
        """Garbage copies of an object committed at few paths, such as markers."""
        world.commit("p", b"marker")
        world.commit("q", b"marker")
        candidates = {world.candidate(f"x{number}", b"marker") for number in range(50)}
        staged = world.candidate("staged", b"marker", staged_at="q")

        left, found = world.clear(listing=True)

        assert (left, set(found.live), found.asked) == (candidates, {staged}, 2)
        assert world.store.looked_at == []


class TestChoosingSizes:
    @pytest.mark.parametrize(
        ("candidates", "questions", "limit", "looked_at"),
        [
            ({7: 10}, {7: 9}, 100, []),
            ({7: 10}, {7: 10}, 100, []),
            ({7: 10}, {7: 11}, 100, [7]),
            ({7: 10, 8: 1}, {7: 9}, 8, [7]),
            ({7: 10, 8: 10, 9: 10}, {7: 9, 8: 3, 9: 4}, 8, [7]),
            ({7: 10, 8: 10, 9: 10}, {7: 6, 8: 3, 9: 4}, 8, [7]),
            ({7: 10, 8: 10, 9: 10}, {7: 4, 8: 3, 9: 4}, 8, [9]),
            ({0: 1}, {0: 100}, 10, []),
            # With equally many questions, the paths of the smaller size are asked.
            ({9: 10, 7: 10}, {9: 4, 7: 4}, 7, [9]),
            ({7: 10, 8: 10}, {7: 3, 8: 5}, 8, []),
            ({7: 1}, {7: 1}, 1, []),
            ({1: 1}, {1: 2}, 10, [1]),
        ],
    )
    def test_takes_what_is_less(
        self, candidates: dict[int, int], questions: dict[int, int], limit: int, looked_at: list[int]
    ) -> None:
        looking = choose_sizes(candidates, questions, limit, "run")
        assert looking.sizes is not None
        assert sorted(looking.sizes.to_pylist()) == looked_at
        assert looking.share == 1

    def test_the_share_is_of_all_candidates_of_these_sizes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(contents, "CANDIDATES_CHECKED", 1)
        assert choose_sizes({7: 1}, {7: 2}, 0, "run").share == 1
        assert choose_sizes({7: 1, 8: 3, 9: 100}, {7: 2, 8: 4, 9: 1}, 1, "run").share == 0.25
        assert choose_sizes({}, {}, 0, "run") == ContentSample(pa.array([], pa.int64()), 1.0, "run")

    def test_all_of_any_size_are_chosen_where_no_size_is_named(self) -> None:
        batch = pa.RecordBatch.from_pydict({"key": ["a", "b"], "size": [1, 2]})
        assert ContentSample(None, 1.0, "run").chooses(batch) == [True, True]
        assert ContentSample(pa.array([2], pa.int64()), 1.0, "run").chooses(batch) == [False, True]
        assert ContentSample(None, 0.0, "run").chooses(batch) == [False, False]

    def test_no_more_are_looked_at_than_the_bound(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(contents, "CANDIDATES_CHECKED", 100)
        keys = [f"data/s/{number}" for number in range(10_000)]
        batch = pa.RecordBatch.from_pydict({"key": keys, "size": [7] * len(keys)})
        chosen = [
            {
                key
                for key, wanted in zip(
                    keys, choose_sizes({7: 10_000}, {7: 20_000}, 0, seed).chooses(batch), strict=True
                )
                if wanted
            }
            for seed in ("one run", "another")
        ]
        assert all(50 < len(each) < 200 for each in chosen)
        assert len(chosen[0] & chosen[1]) < 50


@pytest.mark.usefixtures("all_looked_at")
def test_a_content_at_many_paths_does_not_keep_all_others(world: World) -> None:
    for number in range(10):
        world.commit(f"marker-{number}", b"marker")
    world.commit("p", b"content")
    world.candidate("marker", b"marker")
    staged = world.candidate("staged", b"content", staged_at="p")
    other = world.candidate("other", b"another")
    world.limit = 10

    left, found = world.clear()

    assert left == {other}
    assert staged in found.live
    assert (found.asked, found.unasked) == (1, 10)
    assert found.kept == {Kept.HIDDEN_STAGED.value: 1, Kept.UNCERTAIN.value: 1}


@pytest.mark.parametrize("few", [0, 10_000])
class TestLimit:
    """Limits of requests; few places are chosen in the driver, many by tasks."""

    @pytest.fixture(autouse=True)
    def places(self, monkeypatch: pytest.MonkeyPatch, all_looked_at: None, few: int) -> None:
        monkeypatch.setattr(hidden, "_FEW_PLACES", few)

    def test_contents_at_few_places_come_first(self, world: World) -> None:
        test_a_content_at_many_paths_does_not_keep_all_others(world)

    def test_a_question_is_a_path_on_a_branch(self, world: World) -> None:
        world.branches = [f"branch-{number}" for number in range(10)]
        world.commit("p", b"content")
        garbage = world.candidate("garbage", b"content")
        world.limit = 9
        left, found = world.clear()
        assert (left, found.asked, found.unasked) == (set(), 0, 10)
        assert found.kept == {Kept.UNCERTAIN.value: 1}

        world.limit = 10
        left, found = world.clear()
        assert (left, found.asked, found.unasked, found.kept) == ({garbage}, 10, 0, {})

    def test_of_an_unknown_content_every_place_of_its_size_is_asked_for(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(contents, "READ_BYTES", 0)
        world.commit("p", b"content")
        world.commit("q", b"another")
        garbage = world.candidate("garbage", b"garbage", encrypted=True)
        world.limit = 1
        left, found = world.clear()
        assert (left, found.kept) == (set(), {Kept.UNCERTAIN.value: 1})

        world.limit = 2
        assert world.clear()[0] == {garbage}

    def test_what_cannot_be_asked_for_is_kept_whatever_the_limit(self, world: World) -> None:
        world.committed[b"\xff"] = Staged("s3://elsewhere/import", AddressType.FULL, size=7)
        world.candidate("garbage", b"content")
        left, found = world.clear()
        assert (left, found.unasked, found.kept) == (set(), 0, {Kept.UNASKABLE.value: 1})

    def test_many_paths_are_listed(self, world: World) -> None:
        world.branches = ["a", "b"]
        names = [f"p{number:05}" for number in range(2000)]
        for name in names:
            world.committed[name] = Staged("data/s/marker", size=6, etag=md5(b"marker"))
        world.candidate("garbage", b"marker")
        staged = world.candidate("staged", b"marker")
        world.limit = 4000
        for branch in world.branches:
            world.api.objects[branch] = [ObjectStats(name, f"{NAMESPACE.uri}data/s/marker", 6) for name in names]
        world.api.objects["b"][1234] = ObjectStats(names[1234], NAMESPACE.uri + staged, 6)

        left, found = world.clear()

        assert left == {"data/s/garbage"}
        assert found.live == {"data/s/marker", staged}
        assert (found.asked, len(world.api.listed), world.api.asked) == (4000, 4, [])


class TestSamples:
    def test_what_is_read_decides(self, tmp_path: Path) -> None:
        store = LocalStore(tmp_path)
        store.put("a", b"a")
        assert interface.are_digests(store, [("a", md5(b"a")), ("gone", md5(b"b"))])
        assert not interface.are_digests(store, [("a", md5(b"b"))])

    def test_what_is_gone_is_no_proof(self, tmp_path: Path) -> None:
        assert not interface.are_digests(LocalStore(tmp_path), [("gone", md5(b"b"))])
        assert not interface.are_digests(LocalStore(tmp_path), [])
