"""A repository under retention rules in small, and the runs that collect it.

Ranges are their content, as their ids are in lakeFS: a range that comes back is the same range. Slices and moments are
whole numbers: an object's slice is the moment when it was written, and a run at some moment may take what was written
earlier. Two runs look at everything at the same two moments. One is full; the other one builds on the run before.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Range = frozenset[tuple[int, str]]
"""Entries: key and object."""
Metarange = frozenset[Range]


def objects_of(ranges: Iterable[Range]) -> frozenset[str]:
    """What ranges hold."""
    return frozenset(name for each in ranges for _, name in each)


@dataclass(frozen=True, slots=True)
class Base:
    """What a run leaves to the next one.

    Attributes:
        moment: of the run; slices before it are sealed.
        pending: objects of sealed slices that no live commit held, and that were not deleted.
        tracked: ranges that were live. Whatever else is in sealed slices is held by one of them.
        noted: what ranges hold, noted when they were read; what a range holds never changes.
        known_live: objects that the run knew to be held; no part of the design, for the sake of others.
        reads: how many ranges the run read from the store.
    """

    moment: int
    pending: frozenset[str]
    tracked: frozenset[Range]
    noted: Mapping[Range, frozenset[str]]
    known_live: frozenset[str]
    reads: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """What a run is told.

    Attributes:
        moment: of the run.
        listed: objects in the store when the run began, each with its slice.
        live_before: live ranges when the run began.
        live: live ranges when it marks.
        named: ranges of all commits that the server knows then, expired ones as well.
        staged: objects that are staged then.
        slices: of every object there ever was: a name tells it.
    """

    moment: int
    listed: Mapping[str, int]
    live_before: frozenset[Range]
    live: frozenset[Range]
    named: frozenset[Range]
    staged: frozenset[str]
    slices: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Marked:
    """Candidates, and what is left where all of them are deleted or, without `swept`, none."""

    candidates: frozenset[str]
    swept: Base
    failed: Base


class Design:
    """How a run builds on another one: what it looks at, and what it takes for held. This is the design itself."""

    title = "the design"

    def newly_dead(self, base: Base, seen: Seen) -> frozenset[Range]:
        """Ranges that were live at the base run and are no more: their objects are looked at again."""
        return base.tracked - seen.live

    def new(self, base: Base, seen: Seen) -> frozenset[Range]:
        """Live ranges that are read from the store."""
        return seen.live - base.noted.keys()

    def held(self, base: Base, seen: Seen) -> frozenset[str]:
        """What live ranges hold: by the notes of those that were read before, else as it is read."""
        known = (base.noted[each] for each in seen.live & base.noted.keys())
        return objects_of(self.new(base, seen)).union(*known)

    def pending(self, unheld: frozenset[str]) -> frozenset[str]:
        """What the next run looks at again, before deletions."""
        return unheld

    def tracked(self, base: Base, seen: Seen) -> frozenset[Range]:
        """Ranges that hold whatever is in sealed slices and not pending."""
        return seen.live

    def mark(self, base: Base | None, seen: Seen) -> Marked:
        """The candidates of a run; without a base it is a full one."""
        if base is None:
            return full(seen)
        dead, new = self.newly_dead(base, seen), self.new(base, seen)
        listed = {name for name, slice_ in seen.listed.items() if slice_ >= base.moment}
        again = {name for name in objects_of(dead) if seen.slices[name] < base.moment}
        held = self.held(base, seen)
        noted = {**base.noted, **{each: objects_of([each]) for each in new}}
        return _marked(
            seen,
            frozenset(listed | base.pending | again),
            held,
            self,
            self.tracked(base, seen),
            noted,
            reads=len(new) + len(dead),
        )


def full(seen: Seen) -> Marked:
    """A full run: it lists everything and reads every live range."""
    noted = {each: objects_of([each]) for each in seen.live}
    held = objects_of(seen.live)
    return _marked(seen, frozenset(seen.listed), held, Design(), seen.live, noted, reads=len(noted))


def _marked(
    seen: Seen,
    universe: frozenset[str],
    held: frozenset[str],
    design: Design,
    tracked: frozenset[Range],
    noted: Mapping[Range, frozenset[str]],
    reads: int,
) -> Marked:
    unheld = frozenset(name for name in universe - held if seen.slices[name] < seen.moment)
    candidates = unheld - seen.staged

    def left(deleted: frozenset[str]) -> Base:
        return Base(seen.moment, design.pending(unheld) - deleted, tracked, noted, held, reads)

    return Marked(candidates, left(candidates), left(frozenset()))


@dataclass
class World:
    """A repository, and a run that may be under way.

    Attributes:
        store: objects that are there.
        slices: of every object there ever was.
        commits: for each metarange that some commit has, whether a commit with it is active.
        began: what a run saw that has begun: objects and live ranges.
    """

    now: int = 0
    store: set[str] = field(default_factory=set)
    slices: dict[str, int] = field(default_factory=dict)
    staged: set[str] = field(default_factory=set)
    commits: dict[Metarange, bool] = field(default_factory=dict)
    began: tuple[int, dict[str, int], frozenset[Range]] | None = None
    base: Base | None = None

    @property
    def live(self) -> frozenset[Range]:
        """Ranges of active commits."""
        return frozenset(each for metarange, active in self.commits.items() if active for each in metarange)

    def seen(self) -> Seen:
        """What the run under way sees now."""
        assert self.began is not None
        moment, listed, live_before = self.began
        named = frozenset(each for metarange in self.commits for each in metarange)
        return Seen(moment, listed, live_before, self.live, named, frozenset(self.staged), self.slices)
