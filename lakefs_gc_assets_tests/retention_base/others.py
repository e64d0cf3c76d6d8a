"""The design with one part left out, or done in an obvious other way: a history breaks each of them."""

from lakefs_gc_assets_tests.retention_base.model import Base, Design, Range, Seen, objects_of


class NewAlone(Design):
    """What expired is compared with what is new alone."""

    title = "an object of an expired range is looked for in new ranges alone"

    def held(self, base: Base, seen: Seen) -> frozenset[str]:
        """What is held but for objects of expired ranges, and what new ranges hold."""
        again = objects_of(self.newly_dead(base, seen))
        return super().held(base, seen) - again | objects_of(self.new(base, seen))


class OverlappingKeys(NewAlone):
    """What expired is compared with what is new, and with live ranges that have keys in common with what expired."""

    title = "an object of an expired range is looked for in live ranges that overlap it by their keys"

    def held(self, base: Base, seen: Seen) -> frozenset[str]:
        """What the other one takes for held, and what is held between the first and the last key of a dead range."""
        dead = self.newly_dead(base, seen)
        near = (each for each in seen.live if any(_overlap(each, other) for other in dead))
        return super().held(base, seen) | objects_of(near)


def _overlap(one: Range, other: Range) -> bool:
    return min(key for key, _ in one) <= max(key for key, _ in other) and min(key for key, _ in other) <= max(
        key for key, _ in one
    )


class OnceRead(Design):
    """Ids that were read once are known for ever; the addresses of what is live still are taken over."""

    title = "a range that expired and was brought back counts as read"

    def held(self, base: Base, seen: Seen) -> frozenset[str]:
        """What new ranges hold, and those that were live at the base run and are so now."""
        return objects_of(self.new(base, seen)) | objects_of(base.tracked & seen.live)


class TakenOver(Design):
    """Addresses that were live are taken over as one set, as optimized runs do."""

    title = "the base run's committed addresses are taken over as a set"

    def held(self, base: Base, seen: Seen) -> frozenset[str]:
        """What was held at the base run, and what new ranges hold."""
        return base.known_live | objects_of(self.new(base, seen))


class NothingPending(Design):
    """Nothing waits for the next run."""

    title = "pending objects are not carried on"

    def pending(self, unheld: frozenset[str]) -> frozenset[str]:
        """Nothing."""
        return frozenset()


class LastRead(Design):
    """The next run tracks what this one read."""

    title = "only the ranges that the base run itself read are tracked"

    def tracked(self, base: Base, seen: Seen) -> frozenset[Range]:
        """New ranges."""
        return self.new(base, seen)


class NamedByExpired(Design):
    """What expired is learnt from the expired commits that the server names."""

    title = "expired is what expired commits name"

    def newly_dead(self, base: Base, seen: Seen) -> frozenset[Range]:
        """Those of the dead ranges that the server still knows a commit of."""
        return (base.tracked - seen.live) & seen.named


class FirstLook(Design):
    """What expired is learnt when the run begins, before uncommitted data is read, and what is live when it marks."""

    title = "what expired is computed when the run begins"

    def newly_dead(self, base: Base, seen: Seen) -> frozenset[Range]:
        """Ranges that were dead when the run began."""
        return base.tracked - seen.live_before


OTHERS: tuple[tuple[Design, str], ...] = (
    (NewAlone(), "loses"),
    (OverlappingKeys(), "loses"),
    (OnceRead(), "loses"),
    (TakenOver(), "never finds"),
    (NothingPending(), "never finds"),
    (LastRead(), "never finds"),
    (NamedByExpired(), "never finds"),
    (FirstLook(), "never finds"),
)
"""Each with what it does that the design does not."""
