"""What the command line says of retention rules: those in force, and those that somebody wants to set."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from lakefs_gc_assets.collection import commits, policy_file, retention, retention_rules, rules_file, rules_in_force
from lakefs_gc_assets.collection.clock import SystemClock
from lakefs_gc_assets.collection.repository import OpenRepository
from lakefs_gc_assets.collection.retention import Readings
from lakefs_gc_assets.configuration import Loaded
from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.lakefs.api import LakeFSClient
from lakefs_gc_assets.lakefs.facts import RetentionRules
from lakefs_gc_assets.running import opened

Progress = Callable[[str], None]


def require_readable(file: Path) -> None:
    """Raises ConfigurationError, with the line, where a policy file cannot be read."""
    policy_file.load(file)


def in_force(loaded: Loaded, policy: Path | None, progress: Progress) -> tuple[list[str], bool]:
    """The rules in force, as lines, and whether a sweep by them would be refused.

    Args:
        policy: a policy file in place of the one of the settings.
    Raises:
        CollectionError.
    """
    repository = open_at_once(loaded, {} if policy is None else {"retention_policy": str(policy)})
    readings = retention.read(
        repository.api,
        repository.store,
        repository.namespace,
        repository.settings,
        repository.clock,
        repository.clock.now(),
        progress,
        retention.policy_of(repository.settings),
    )
    return _described(repository, readings)


@dataclass(frozen=True)
class Proposal:
    """Rules for the server that somebody wants to set.

    Attributes:
        lines: what they would keep.
    """

    client: LakeFSClient
    rules: RetentionRules
    lines: list[str]

    @classmethod
    def read(cls, loaded: Loaded, file: Path, progress: Progress) -> "Proposal":
        """Reads rules and looks what they would keep. Raises ConfigurationError where they cannot be meant."""
        rules = rules_file.load(file)
        repository = open_at_once(loaded, {})
        policy = retention.policy_of(repository.settings)
        dump = commits.complete_dump(
            repository.api,
            repository.store,
            repository.settings,
            repository.clock,
            repository.clock.now(),
            progress,
        )
        unknown = retention_rules.unknown_branches(rules, policy, dump.branches)
        if unknown and not repository.settings.allow_rules_of_unknown_branches:
            raise ConfigurationError(
                f"{file}: {'; '.join(unknown)}: there is no such branch. Correct the name, or set "
                "collection.allow_rules_of_unknown_branches"
            )
        configuration = loaded.with_secrets()
        client = LakeFSClient(configuration.lakefs, configuration.repository, repository.clock)
        lines, _ = _described(repository, Readings(dump, rules, policy, None))
        return cls(client, rules, lines)

    def accept(self) -> None:
        """Sets the rules."""
        self.client.set_retention_rules(self.rules)


def open_at_once(loaded: Loaded, changes: dict[str, object]) -> OpenRepository:
    """The repository, with changed settings; nothing is waited for, as nothing is going to be deleted."""
    found = opened(loaded, SystemClock()).open()
    settings = found.settings.model_copy(update={"wait_before_dump_seconds": 0, **changes})
    return replace(found, settings=settings)


def _described(repository: OpenRepository, readings: Readings) -> tuple[list[str], bool]:
    now = repository.clock.now()
    found = retention.retention(repository.api, readings, repository.settings, now)
    definition = retention.define(readings, found, repository.settings, now)
    title = f"{repository.facts.id} at {repository.namespace.uri}"
    return [title, *rules_in_force.described(readings, found, definition, now)], bool(definition.guards)
