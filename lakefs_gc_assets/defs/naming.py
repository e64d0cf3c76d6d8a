"""What one repository's assets, jobs, sensors, schedules and resources are called in Dagster."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg

from lakefs_gc_assets.defs.partitions import RunPartitions
from lakefs_gc_assets.settings import Loaded


@dataclass(frozen=True)
class Names:
    """Plain names where a code location collects one repository; with several, each has its own.

    Attributes:
        repository: the repository, or what the configuration calls it where two servers have one of the same name.
        apart: whether its names must differ from those of other repositories: assets get it as prefix, all else as
            suffix.
    """

    repository: str
    apart: bool = False

    @classmethod
    def of_loaded(cls, loaded: Loaded) -> "Names":
        """The names that a configuration gives its repository."""
        return cls(loaded.configuration.label, loaded.apart)

    @property
    def identifier(self) -> str:
        """The repository in letters that every name in Dagster may have."""
        return re.sub(r"[^A-Za-z0-9_]", "_", self.repository)

    @property
    def partitions(self) -> RunPartitions:
        """The partitions of its assets."""
        return RunPartitions(self.repository)

    @property
    def pool(self) -> str:
        """The concurrency pool of everything that collects it, however it is launched."""
        return f"lakefs_gc_{self.identifier}"

    def of(self, name: str) -> str:
        """Name of a job, op, sensor, schedule, group or resource."""
        return f"{name}_{self.identifier}" if self.apart else name

    def asset(self, name: str) -> dg.AssetKey:
        """Key of one of the five assets."""
        return dg.AssetKey([self.identifier, name] if self.apart else [name])

    def resource(self, resources: object, name: str) -> Any:
        """One of its resources, out of the resources of a context."""
        return getattr(resources, self.of(name))

    def all_of(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """A mapping whose names are replaced by this repository's own."""
        return {self.of(name): value for name, value in given.items()}
