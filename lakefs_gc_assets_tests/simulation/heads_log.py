"""Which commit was the head of which branch, and until when: the world's own log, by which retention is judged.

The log uses no parents and no commit graph. It watches branches: if one shows a commit never seen before, this commit
replaced the branch's head, and its line of work goes on. A branch that is made on a commit, or set back to one, takes
over that commit's line so far. If its branch was deleted or set back, a line is not continued. It then goes by the
default rule, as if its last commit was replaced the moment it was made. The caller says when each commit was made: the
world knows the true time, which commits may misstate.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

Window = Callable[[str | None], float]
"""Seconds that a replaced head of a branch stays. None stands for a line that no branch continues."""


@dataclass(frozen=True, slots=True)
class Head:
    """A commit that was a head until another one replaced it; None for the last of a line."""

    commit: str
    replaced_by: str | None = None


@dataclass
class HeadsLog:
    """The line of work that led to each commit, ending with the commit itself.

    Attributes:
        shown: the head that each branch shows.
    """

    lines: dict[str, tuple[Head, ...]] = field(default_factory=dict)
    shown: dict[str, str] = field(default_factory=dict)

    def look(self, heads: Mapping[str, str]) -> None:
        """Records the heads that branches show now. Two changes of one branch between two looks count as one."""
        for branch, commit in heads.items():
            if commit not in self.lines:
                before = self.shown.get(branch)
                replaced = () if before is None else (*self.lines[before][:-1], Head(before, commit))
                self.lines[commit] = (*replaced, Head(commit))
        self.shown = dict(heads)

    def stays_until(
        self, heads: Mapping[str, str], commits: Collection[str], window: Window, date: Callable[[str], float]
    ) -> dict[str, float]:
        """Until when each commit stays, if nothing changes; seconds since 1970.

        Args:
            heads: the branches that count.
            commits: the known commits; a line that goes on in an unknown commit counts as not continued.
            date: returns when a commit was made.
        """
        until = dict.fromkeys(heads.values(), math.inf)

        def replaced(commit: str, moment: float) -> None:
            until[commit] = max(until.get(commit, -math.inf), moment)

        continued = {head.commit for commit in commits for head in self.lines[commit][:-1]}
        walks: list[tuple[str | None, str]] = list(heads.items())
        walks += [(None, commit) for commit in commits if commit not in continued and commit not in heads.values()]
        for branch, last in walks:
            seconds = window(branch)
            for head in self.lines[last]:
                if head.replaced_by is not None:
                    replaced(head.commit, date(head.replaced_by) + seconds)
                elif branch is None:
                    replaced(last, date(last) + seconds)
        return until
