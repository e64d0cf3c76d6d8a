"""Whole runs of each kind after one file of an earlier run was damaged, and the runs that follow.

Each is played in the small world of the kind (`fault_kinds`). No live object may be lost, and the work must be done in
the end: if the run itself cannot complete, a new one can.
"""

import hashlib
import io
import json
import random
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakefs_gc_assets.collector import make_step
from lakefs_gc_assets.collector.frame import files, receipts
from lakefs_gc_assets.collector.frame.frames import RECEIPTS
from lakefs_gc_assets.collector.incremental import earlier_runs, planning
from lakefs_gc_assets.collector.quarantine import purge
from lakefs_gc_assets.collector.records import across_runs, report
from lakefs_gc_assets.collector.repository import lock
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.simulation.bucket import Bucket
from lakefs_gc_assets_tests.simulation.bug import Bug, ignored, replaced
from lakefs_gc_assets_tests.simulation.clocks import HOUR
from lakefs_gc_assets_tests.simulation.decode_cache import remembering
from lakefs_gc_assets_tests.simulation.failing_calls import Fault, Faults
from lakefs_gc_assets_tests.simulation.fault_kinds import KINDS, Kind
from lakefs_gc_assets_tests.simulation.faults import QUIET_SECONDS, scene_before, whole
from lakefs_gc_assets_tests.simulation.oracle import Violation
from lakefs_gc_assets_tests.simulation.playing import History, Player, Quiet, deterministic, uncollected
from lakefs_gc_assets_tests.simulation.scenes import Ended, NotFinished, Scene, copies, require_well

ROOT = "_lakefs/retention/gc/uncommitted/"
"""Folder of the runs' files."""
INDEX, RESTORED = f"{ROOT}runs.json", f"{ROOT}restored.json"

_SEEN_SECONDS = 3 * HOUR
"""Multipart uploads must have been seen an hour before; this is longer."""


class Damage(StrEnum):
    """How a file was damaged."""

    OTHER_BYTES = "holds other bytes"
    CUT = "is cut short"
    GONE = "is gone"
    NEWER = "is of a newer version"
    FOREIGN = "is of another repository"


def damaged(key: str, data: bytes, damage: Damage) -> bytes | None:
    """Returns the content of a damaged file; None for a deleted one.

    Raises:
        ValueError: a file cannot be damaged in this way.
    """
    match damage:
        case Damage.OTHER_BYTES:
            return b"damaged"
        case Damage.CUT:
            return data[: len(data) // 2]
        case Damage.GONE:
            return None
        case Damage.NEWER:
            return _newer_receipts(data) if "/receipts/" in key else _changed(key, data, "format_version")
        case Damage.FOREIGN:
            return _changed(key, data, "repository", "storage_namespace")


def _changed(key: str, data: bytes, *names: str) -> bytes:
    """A JSON file with other values of some entries, and with a correct digest."""
    content: dict[str, Any] = json.loads(data) if key.endswith(".json") else {}
    for name in names:
        if name not in content or "sha256" not in content:
            raise ValueError(f"{key} has no {name}")
        content[name] = content[name] + (1 if name == "format_version" else "-other/")
    del content["sha256"]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return json.dumps(content | {"sha256": digest}, indent=2, sort_keys=True).encode()


def _newer_receipts(data: bytes) -> bytes:
    table = pq.read_table(io.BytesIO(data))
    buffer = io.BytesIO()
    pq.write_table(table.append_column("added", pa.nulls(table.num_rows, pa.string())), buffer)
    return buffer.getvalue()


def left_by_runs(kind: str) -> list[str]:
    """Files that runs left before a run of a kind, except those of lakeFS and the lock.

    The record of a restoration is included although no world of a kind has one: a damaged one is put there.
    """
    keys = scene_before(kind).world.bucket.keys_below(ROOT)
    own = [key for key in keys if not re.search(r"/uncommitted/[^/]+/uncommitted/|/preparations/|/lock.json$", key)]
    return [*own, RESTORED]


def read_by(kind: str) -> frozenset[str]:
    """Keys that a run of a kind reads."""
    words = (call.split(" ") for call in whole(kind).calls)
    return frozenset(each[1] for each in words if each[0] in ("get", "get_part", "head"))


def class_of(key: str) -> str:
    """The name of a file without the parts that differ from run to run."""
    return re.sub("[0-9a-v]{20}|[0-9a-f]{32,64}|window=[^/]+", "*", key.removeprefix(ROOT))


@dataclass(frozen=True)
class Damaged:
    """A play: a kind of run, the file damaged before it, the damage, and whether the index of runs is gone."""

    kind: str
    key: str
    damage: Damage
    without_index: bool = False

    def __str__(self) -> str:
        return f"{self.kind} run, {self.key} {self.damage}{' and the index of runs is gone' * self.without_index}"

    @property
    def must_be_refused(self) -> bool:
        """True if the run continues one of another repository, or a restoration may have come after it."""
        return self.kind == "approved" and (
            self.key == RESTORED or (self.damage is Damage.FOREIGN and self.key == self._own_plan)
        )

    @property
    def _own_plan(self) -> str:
        opened = scene_before(self.kind).opened
        return f"{ROOT}{opened.run_id}/plan.json" if opened is not None else ""

    @property
    def takes_sightings(self) -> bool:
        """True if earlier sightings of multipart uploads are lost."""
        return re.search("/sightings/|/plan.json", self.key) is not None

    @property
    def may_be_refused(self) -> bool:
        """True if the run depends on files of its own or of the run that it undoes, few of which can be replaced."""
        return self.kind in ("approved", "restore", "purge")


def damages(kind: str) -> Iterator[Damaged]:
    """Every damage of one file that a run of a kind reads, or reads without the index of runs."""
    bucket, asked = scene_before(kind).world.bucket, read_by(kind)
    for key in left_by_runs(kind):
        stored = bucket.objects.get(key)
        for damage in Damage if stored is not None else (Damage.OTHER_BYTES,):
            try:
                damaged(key, b"" if stored is None else stored.data, damage)
            except ValueError:
                continue
            if key in asked:
                yield Damaged(kind, key, damage)
            if re.search("/(plan|report|approval|manifest).json$|/receipts/", key):
                yield Damaged(kind, key, damage, without_index=True)


def play(played: Damaged) -> None:
    """Damages a file, makes a run, makes another one days later, and checks the result.

    Raises:
        Violation: the result is wrong.
    """
    kind, expected = KINDS[played.kind], whole(played.kind)
    with deterministic(2):
        scene = scene_before(played.kind)
        watch = kind.watch(scene, expected, kind.flow, kind.deletes)
        _apply(scene.world.bucket, played)
        moved = _copies_of_unreadable(scene, played)
        # The watch tells from the struck call that sightings could not be read.
        faults = Faults(Fault.TRUNCATED, struck="/sightings/" if played.takes_sightings else played.key)
        ended = kind.run(scene, faults)
        watch.look(ended, faults)
        if not moved <= scene.world.bucket.objects.keys():
            raise Violation(f"{played}: copies are gone of a run that nobody can judge")
        if played.must_be_refused and ended is Ended.WELL:
            raise Violation(f"{played}: the run ends well")
        if ended is not Ended.WELL:
            _require_way_out(scene, kind, played, ended)
        elif kind.flow is not None:
            watch.finish()
        scene.world.pass_time(QUIET_SECONDS)
        scene.world.log.clear()
        if kind.follow(scene, Faults()) is not Ended.WELL:
            if not (played.kind == "purge" and played.without_index and "guard gap" in scene.world.log[-1]):
                raise NotFinished(f"{played}: the run days later fails: {scene.world.log[-1]}")
            # Objects missing on a branch at an expired commit are not known to be deleted by a run; the guard names its
            # setting.
            watch.require_live()
            return
        if played.takes_sightings:
            # Only that run has seen the multipart uploads again.
            scene.world.pass_time(_SEEN_SECONDS)
            require_well(kind.follow(scene, Faults()))
        watch.end()
        if holder := lock.holder(scene.store):
            raise NotFinished(f"{played}: the lock is still {holder}")


def _require_way_out(scene: Scene, kind: Kind, played: Damaged, ended: Ended) -> None:
    """Raises NotFinished if a run should not have failed, or if a new one fails in its place."""
    reported = scene.world.log[-1] if scene.world.log else ""
    if not played.may_be_refused:
        raise NotFinished(f"{played}: the run ends {ended}: {reported}")
    if played.kind != "purge" and kind.repeat(scene, Faults()) is not Ended.WELL:
        raise NotFinished(f"{played}: a new run fails as well: {scene.world.log[-1]}")


def _copies_of_unreadable(scene: Scene, played: Damaged) -> frozenset[str]:
    """Copies in quarantine of the run whose plan was damaged; a purge keeps them all."""
    if played.kind != "purge" or not played.key.endswith("/plan.json"):
        return frozenset()
    run_id = played.key.split("/")[-2]
    return frozenset(key for key in copies(scene) if f"/{run_id}/" in key)


def _apply(bucket: Bucket, played: Damaged) -> None:
    stored = bucket.objects.get(played.key)
    found = damaged(played.key, b"" if stored is None else stored.data, played.damage)
    if played.without_index:
        bucket.remove(INDEX)
    if found is None:
        bucket.remove(played.key)
    else:
        bucket.put(played.key, found)


@dataclass(frozen=True)
class DamageBug:
    """A bug, and the damage that shows it.

    Attributes:
        kind: kind of run.
        key: pattern of the files; damage to one shows the bug.
        damage: the damage that shows it.
        without_index: True if the index of runs must be gone as well.
    """

    kind: str
    key: str
    damage: Damage
    bug: Bug
    without_index: bool = False


def _raising_of_receipts(store: ObjectStore, damage_of: object, key: str) -> pa.Table:
    return receipts.read_file(store, key)


def _read_and_raise(opener: Any, group: Any) -> Iterator[pa.RecordBatch]:
    yield from files.reader(opener, RECEIPTS)(group)


def _swallow_unreadable(store: ObjectStore, run_id: str) -> None:
    with suppress(CorruptFile):
        found = across_runs.read_restoration(store)
        assert found is None


def _no_manifests(store: ObjectStore, run_id: str, settled: Any, warn: Any) -> tuple[int | None, bool]:
    found = report.read(store, run_id)
    return (None, False) if found is None else (found.counts.get("branches"), found.is_complete and not found.dry_run)


DAMAGE_BUGS = {
    "a damaged file of the base run is planned on": DamageBug(
        "optimized", "/pending/slice_window", Damage.OTHER_BYTES, replaced((planning, "require_files", ignored))
    ),
    "a damaged file of what was deleted ends runs": DamageBug(
        "following",
        "/deleted_report/slice_window",
        Damage.CUT,
        replaced((earlier_runs, "_read_reported", _read_and_raise)),
    ),
    "damaged receipts end runs": DamageBug(
        *("following", "/receipts/", Damage.OTHER_BYTES),
        replaced((receipts, "_read_or_exclude", _raising_of_receipts)),
        without_index=True,
    ),
    "a damaged report ends runs": DamageBug(
        *("clean", "/report.json", Damage.OTHER_BYTES),
        replaced((earlier_runs, "count_branches", _no_manifests)),
        without_index=True,
    ),
    "a run of another repository is approved": DamageBug(
        "approved", "/plan.json", Damage.FOREIGN, replaced((make_step, "require_own_plan", ignored))
    ),
    "a run of another repository is purged": DamageBug(
        "purge",
        "/plan.json",
        Damage.FOREIGN,
        Bug(lambda: ((purge, "require_own_plan", ignored),), (purge.in_quarantine,)),
    ),
    "a damaged record of a restoration stops no older run": DamageBug(
        *("approved", "/restored.json", Damage.OTHER_BYTES),
        replaced((across_runs, "require_not_restored_since", _swallow_unreadable)),
    ),
    "a damaged record of a restoration stays": DamageBug(
        "clean",
        "/restored.json",
        Damage.OTHER_BYTES,
        replaced((across_runs, "replace_unreadable_restoration", ignored)),
    ),
}
"""Seeded bugs by name."""


_DAMAGES = (Damage.OTHER_BYTES, Damage.CUT, Damage.GONE)
_TIMES = 3
"""Number of files damaged in a history."""
_READ_BY_OTHERS = re.compile(
    r"/(plan|report|approval|runs|undeletable)\.json$|/(sealed|read|tracked)-"
    "|/(receipts|deleted_report|pending|checkpoint_committed|facts)/"
)
"""Files that a run reads of other runs. Sightings are excluded: without them objects stay longer than a history
expects."""


def play_damaged(history: History) -> list[str]:
    """Plays a history with some damage in its later two thirds, and the quiet runs that end it.

    Returns:
        Descriptions of the damage.

    Raises:
        Violation: the collector broke a rule.
    """
    chance = random.Random(history.setup.seed)
    steps = history.steps
    times = {chance.randrange(len(steps) // 3, len(steps)) for _ in range(_TIMES)}
    found: list[str] = []
    with uncollected(), deterministic(history.setup.seed), remembering():
        player = Player(history.setup)
        try:
            for number, step in enumerate(steps):
                if number in times:
                    found += _damage_one(player, chance)
                player.do(step)
            Quiet(player.world, player.collectors, player.figures).end(history.kind)
        finally:
            player.stop()
    return found


def _damage_one(player: Player, chance: random.Random) -> list[str]:
    """Damages a file of a run that is not in progress; returns its description, or nothing if there is no such file."""
    bucket = player.world.bucket
    under_way = [each.run.run_id for each in player.collectors.values() if each.run is not None and each.active]
    keys = [
        key
        for key in bucket.keys_below(ROOT)
        if _READ_BY_OTHERS.search(key) and not any(f"/{run_id}/" in key for run_id in under_way)
    ]
    if not keys:
        return []
    key, damage = chance.choice(keys), chance.choice(_DAMAGES)
    data = damaged(key, bucket.objects[key].data, damage)
    if data is None:
        bucket.remove(key)
    else:
        bucket.put(key, data)
    return [f"{key} {damage}"]
