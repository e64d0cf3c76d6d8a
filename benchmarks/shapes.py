"""Shapes of repositories to measure: numbers of objects, commits and ranges."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """Contents of a generated repository; everything is old enough to be collected.

    Attributes:
        committed: objects in commits, in `ranges` ranges; each commit except the first adds its share of the
            ranges.
        uncommitted: staged objects, spread over the branches.
        garbage: objects that nothing references.
        in_one_slice: objects in a large slice, in addition to slices of the usual size.
        in_one_range: committed objects of the first range; the other ranges share the rest.
        staged_on_one: True if everything staged is on one branch.
        staged_among: number of newest objects among which staged objects are spread; 0 for all.
        numbered: True if objects are numbers that a bucket lists, without files; entries have realistic sizes,
            which are hardly ever consecutive.
    """

    name: str
    committed: int
    ranges: int
    commits: int
    branches: int
    uncommitted: int
    garbage: int
    in_one_slice: int = 0
    in_one_range: int = 0
    staged_on_one: bool = False
    staged_among: int = 0
    numbered: bool = False

    @property
    def garbage_apart(self) -> int:
        """Distance between garbage objects, from the first object on, until there is enough garbage."""
        return max(1, self.objects // max(1, self.garbage))

    def is_garbage(self, number: int) -> bool:
        """True if nothing references an object."""
        return number % self.garbage_apart == 0 and number // self.garbage_apart < self.garbage

    @property
    def objects(self) -> int:
        """Objects in the store."""
        return self.committed + self.uncommitted + self.garbage

    def times(self, factor: int) -> "Shape":
        """The same shape, `factor` times as large."""
        return Shape(
            f"{self.name}-x{factor}",
            self.committed * factor,
            self.ranges * factor,
            self.commits * factor,
            self.branches,
            self.uncommitted * factor,
            self.garbage * factor,
        )


EMPTY = Shape("empty", 0, 0, 1, 1, 0, 0)
SMALL = Shape("small", 200_000, 70, 30, 5, 20_000, 20_000)
LARGE = Shape("large", 2_000_000, 500, 300, 20, 200_000, 100_000)
LABORATORY = Shape("laboratory", 90_000, 250, 250, 100, 0, 10_000)
SKEWED = Shape("skewed", 1_300_000, 100, 50, 20, 100_000, 100_000, 750_000, 1_000_000, staged_on_one=True)
MONTHS = Shape("months", 240_000, 240, 120, 5, 12_000, 12_000)
STEP = Shape("step", 100_000, 35, 15, 5, 10_000, 10_000)
