"""Histories of a small repository: what may happen, and what is asked of every run in them."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from lakefs_gc_assets_tests.retention_base.model import Design, Metarange, Range, World, full, objects_of

OBJECTS = ("a", "b", "c", "d", "e", "f")


def _metaranges(a: str, b: str, c: str) -> list[Metarange]:
    """What commits may have: ranges share objects and are shared, and one has an object of others at another key."""
    alone, first, second = Range({(0, a)}), Range({(0, a), (1, b)}), Range({(0, c), (1, b)})
    others, elsewhere = [Range({(1, b)}), Range({(0, c)})], Range({(9, a)})
    made = [[alone], [first], [second], [alone, *others], others, [elsewhere], [first, elsewhere]]
    return [Metarange(each) for each in made]


METARANGES = (*_metaranges(*OBJECTS[:3]), *_metaranges(*OBJECTS[3:]))

Kind = Literal[
    "upload", "reset", "stage again", "commit", "expire", "bring back", "forget", "time", "begin", "end", "end failing"
]
_KINDS: dict[Kind, int] = {
    "upload": 5,
    "reset": 2,
    "stage again": 1,
    "commit": 8,
    "expire": 6,
    "bring back": 2,
    "forget": 2,
    "time": 4,
    "begin": 4,
    "end": 4,
    "end failing": 1,
}
"""How often each is drawn."""


@dataclass(frozen=True, slots=True)
class Step:
    """Something that happens, to an object or a metarange by its place; nothing does where it makes no sense then."""

    kind: Kind
    which: int = 0

    def __str__(self) -> str:
        if self.kind in ("upload", "reset", "stage again"):
            return f"{self.kind} {OBJECTS[self.which % len(OBJECTS)]}"
        if self.kind in ("commit", "expire", "bring back", "forget"):
            ranges = [sorted(f"{key}:{name}" for key, name in each) for each in METARANGES[self.which]]
            return f"{self.kind} {' '.join(sorted('[' + ' '.join(each) + ']' for each in ranges))}"
        return self.kind


@dataclass(slots=True)
class Result:
    """What became of a history.

    Attributes:
        problem: what is wrong first; None where nothing is.
        found: how many candidates runs found that built on another one and did not list them.
        reads, full_reads: ranges that such runs read, and that full ones would have.
        built: how many there were.
    """

    problem: str | None = None
    found: int = 0
    reads: int = 0
    full_reads: int = 0
    built: int = 0


def draw(seed: int, length: int = 80) -> tuple[Step, ...]:
    """A history."""
    random = Random(seed)
    kinds = random.choices(list(_KINDS), list(_KINDS.values()), k=length)
    return tuple(Step(kind, random.randrange(len(METARANGES))) for kind in kinds)


def play(history: Sequence[Step], design: Design) -> Result:
    """Plays a history, with a full run beside each run of the design, up to the first problem."""
    world, result = World(), Result()
    for step in history:
        _happen(world, step, design, result)
        if result.problem is not None:
            break
    return result


def _happen(world: World, step: Step, design: Design, result: Result) -> None:
    name, metarange = OBJECTS[step.which % len(OBJECTS)], METARANGES[step.which]
    held = objects_of(world.live)
    match step.kind:
        case "upload" if name not in world.slices:
            world.slices[name] = world.now
            world.store.add(name)
            world.staged.add(name)
        case "reset":
            world.staged.discard(name)
        case "stage again" if name in world.store & held:
            world.staged.add(name)
        case "commit" if objects_of(metarange) <= world.store & (held | world.staged):
            world.commits[metarange] = True
            world.staged -= objects_of(metarange)
        case "expire" if metarange in world.commits:
            world.commits[metarange] = False
        case "bring back" if metarange in world.commits:
            world.commits[metarange] = True
        case "forget" if world.commits.get(metarange) is False:
            del world.commits[metarange]
        case "time":
            world.now += 1
        case "begin" if world.began is None:
            world.began = world.now, {each: world.slices[each] for each in world.store}, world.live
        case "end" | "end failing" if world.began is not None:
            _end(world, design, result, swept=step.kind == "end")
        case _:
            pass


def _end(world: World, design: Design, result: Result, *, swept: bool) -> None:
    seen = world.seen()
    mine, others = design.mark(world.base, seen), full(seen)
    expected, marked = others.candidates & world.store, mine.candidates & world.store
    if wrong := marked - expected:
        result.problem = f"loses {', '.join(sorted(wrong))}"
    elif missed := expected - marked:
        result.problem = f"never finds {', '.join(sorted(missed))}"
    if world.base is not None:
        listed = {each for each, slice_ in seen.listed.items() if slice_ >= world.base.moment}
        result.built += 1
        result.found += len(marked - listed - world.base.pending)
        result.reads += mine.swept.reads
        result.full_reads += others.swept.reads
    world.began = None
    world.base = mine.swept if swept else mine.failed
    if swept:
        world.store -= mine.candidates


def shorten(history: Sequence[Step], design: Design, problem: str) -> tuple[Step, ...]:
    """Leaves out of a history whatever it does not need to end in a problem that begins so."""
    kept = list(history)
    shorter = True
    while shorter:
        shorter = False
        for place in reversed(range(len(kept))):
            without = kept[:place] + kept[place + 1 :]
            if (play(without, design).problem or "").startswith(problem):
                kept, shorter = without, True
    return tuple(kept)
