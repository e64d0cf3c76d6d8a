"""What a module about a design offers: scenarios, and what is known of each."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lakefs_gc_assets_tests.rejected_designs.explorer import Exploration, Scenario, explore


@dataclass(frozen=True)
class Case:
    """One scenario.

    Attributes:
        title: what it is called on the page.
        says: what there is to know about it, in a sentence or two.
        holds: whether no history may end in a problem; otherwise one must.
    """

    title: str
    says: str
    scenario: Scenario[Any]
    holds: bool = False

    @cached_property
    def found(self) -> Exploration:
        """What the explorer finds."""
        return explore(self.scenario)
