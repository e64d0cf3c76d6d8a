"""The component for your own Dagster project: repositories to collect, as attributes in YAML.

    type: lakefs_gc_assets.component.GarbageCollection
    attributes:
      lakefs:
        endpoint: https://lakefs.example.com
        access_key_id: {env: LAKEFS_ACCESS_KEY_ID}
        secret_access_key: {env: LAKEFS_SECRET_ACCESS_KEY}
      repositories:
        - repository: measurements
        - repository: images

The attributes are the settings of a configuration file (`settings.py`, `configuration_file.py`).
"""

from typing import Any

import dagster as dg
from pydantic import BaseModel

from lakefs_gc_assets.configuration_file import AllRepositories, Loaded, everything_from, written
from lakefs_gc_assets.definitions import define_all


class _Example(dg.Scaffolder[Any]):
    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        """Writes example attributes to fill in."""
        dg.scaffold_component(
            request,
            {
                "lakefs": {
                    "endpoint": "https://lakefs.example.com",
                    "access_key_id": {"env": "LAKEFS_ACCESS_KEY_ID"},
                    "secret_access_key": {"env": "LAKEFS_SECRET_ACCESS_KEY"},
                },
                "repositories": [{"repository": "my-repository"}],
            },
        )


@dg.scaffold_with(_Example)
class GarbageCollection(dg.Component):
    """Collects the garbage of lakeFS repositories: objects in the store that nothing references any more.

    Each repository gets five assets, jobs, a sensor and schedules; several keep theirs apart by their names. Nothing is
    deleted until `collection.sweep` is true, and nothing starts by itself until it is turned on in the UI.
    """

    def __init__(self, everything: AllRepositories) -> None:
        self.everything = everything

    @property
    def repositories(self) -> tuple[Loaded, ...]:
        """The listed repositories."""
        return self.everything.listed

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        """Schema of `attributes`."""
        return written()

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> "GarbageCollection":
        """Builds the component from its attributes. Raises ConfigurationError."""
        written = attributes.model_dump(mode="json", exclude_unset=True) if attributes else {}
        content = context.resolution_context.at_path("attributes").resolve_value(written, as_type=dict[str, Any])
        return cls(everything_from(content, str(context.path)))

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The definitions of all repositories."""
        return define_all(self.everything)
