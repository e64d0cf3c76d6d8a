"""Interface of a module about a design: scenarios with their descriptions and expected results."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lakefs_gc_assets_tests.rejected_designs.explorer import Exploration, Scenario, explore


@dataclass(frozen=True)
class Case:
    """One scenario.

    Attributes:
        title: its name on the page.
        says: its description, in a sentence or two.
        holds: True if no history may end in a problem; otherwise one must.
    """

    title: str
    says: str
    scenario: Scenario[Any]
    holds: bool = False

    @cached_property
    def found(self) -> Exploration:
        """Result of the explorer."""
        return explore(self.scenario)
