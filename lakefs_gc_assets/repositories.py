"""The repositories of one configuration: a single one, or a list of them.

With `repositories`, the sections of the file hold for all, and each entry of the list says what differs for it:

    lakefs: {endpoint: https://lakefs.example.com, …}
    repositories:
      - repository: measurements
      - repository: images
        collection: {min_age_hours: 72}
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.settings import REPOSITORIES, Loaded, loaded_from, read

_OF_ONE = ("repository", "name")


def load_all(file: Path) -> tuple[Loaded, ...]:
    """The configuration of each repository of a file.

    Raises ConfigurationError, also where a resource of a deployment is named: beside a file there is none.
    """
    found = all_from(read(file), str(file))
    for loaded in found:
        for section, key in loaded.configuration.resource_keys.items():
            raise ConfigurationError(
                f"{file}: {section}.resource names {key}, which only a project of your own can have: write its "
                f"settings under `{section}`, or use the component in that project"
            )
    return found


def all_from(content: dict[str, Any], source: str) -> tuple[Loaded, ...]:
    """The configuration of each repository out of a content that a file could have.

    Args:
        source: what messages call it, such as the name of the file.
    Raises:
        ConfigurationError: naming the source, the repository, the setting and what is wrong with it.
    """
    if REPOSITORIES not in content:
        return (loaded_from(content, source),)
    shared = {name: value for name, value in content.items() if name != REPOSITORIES}
    if both := [name for name in _OF_ONE if name in shared]:
        raise ConfigurationError(
            f"{source}: `{both[0]}` belongs into an entry of `{REPOSITORIES}` where there is such a list"
        )
    entries = content[REPOSITORIES]
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigurationError(f"{source}: `{REPOSITORIES}` is to be a list of entries, each with `repository`")
    found = []
    for place, entry in enumerate(entries, start=1):
        if not entry.get("repository"):
            raise ConfigurationError(f"{source}: entry {place} of `{REPOSITORIES}` does not say which `repository`")
        loaded = loaded_from(_over(shared, entry), f"{source}, repository {entry['repository']}")
        found.append(replace(loaded, apart=loaded.apart or len(entries) > 1))
    return tuple(found)


def named(found: Sequence[Loaded], repository: str | None, by: str) -> Loaded:
    """One of several repositories, by what the configuration calls it.

    Args:
        by: what it is said by, for the message.
    Raises:
        ConfigurationError: none is called so.
    """
    for loaded in found:
        if repository == loaded.configuration.label:
            return loaded
    labels = ", ".join(loaded.configuration.label for loaded in found)
    raise ConfigurationError(f"say which repository is meant, by {by}: the configuration has {labels}")


def _over(shared: dict[str, Any], entry: dict[str, Any]) -> dict[str, Any]:
    """The entry's values in place of shared ones, section by section."""
    sections = {
        name: {**shared[name], **value}
        for name, value in entry.items()
        if isinstance(value, dict) and isinstance(shared.get(name), dict)
    }
    return {**shared, **entry, **sections}
