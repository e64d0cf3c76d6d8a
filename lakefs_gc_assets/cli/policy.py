"""`lakefs-gc policy`: which rule of retention applies to which branch, and how many commits it keeps."""

import sys
from dataclasses import dataclass
from pathlib import Path

import click

from lakefs_gc_assets.cli.endings import Status
from lakefs_gc_assets.cli.opening import open_to_look
from lakefs_gc_assets.cli.options import CONFIG, REPOSITORY, Progress, loaded_configuration, show_progress
from lakefs_gc_assets.collector.live import commits
from lakefs_gc_assets.collector.repository import OpenRepository
from lakefs_gc_assets.collector.retention import policy_file, retention, retention_rules, rules_file, rules_in_force
from lakefs_gc_assets.collector.retention.retention import Readings
from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.lakefs.api.client import LakeFSClient
from lakefs_gc_assets.lakefs.api.models import RetentionRules
from lakefs_gc_assets.settings import Loaded

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.group()
def policy() -> None:
    """Shows, checks and sets how long replaced data stays."""


@policy.command()
@CONFIG
@REPOSITORY
@click.argument("checked", metavar="[POLICY]", type=_FILE, required=False)
def check(file: Path | None, repository: str | None, checked: Path | None) -> None:
    """Checks a policy file, by default the one of the configuration, and shows what it would keep.

    Exit status 3 where it cannot be read, 4 where a sweep by it would be refused.
    """
    if checked is not None:
        require_readable(checked)
    lines, refused = read_rules(loaded_configuration(file, repository), checked, show_progress)
    for line in lines:
        click.echo(line)
    if refused:
        sys.exit(Status.REFUSED)


@policy.command()
@CONFIG
@REPOSITORY
def show(file: Path | None, repository: str | None) -> None:
    """Shows the rule of each branch and how many commits it keeps."""
    lines, _ = read_rules(loaded_configuration(file, repository), None, show_progress)
    for line in lines:
        click.echo(line)


@policy.command("set")
@CONFIG
@REPOSITORY
@click.option("--yes", is_flag=True, help="Set them without asking.")
@click.argument("rules", type=_FILE)
def set_rules(file: Path | None, repository: str | None, yes: bool, rules: Path) -> None:
    """Replaces the repository's retention rules by those of a JSON file, after showing what they would keep.

    The file is what `lakectl gc set-config` takes. Rules that cannot be meant are refused.
    """
    proposal = Proposal.read(loaded_configuration(file, repository), rules, show_progress)
    for line in proposal.lines:
        click.echo(line)
    if not yes and not click.confirm("Set these rules?"):
        sys.exit(Status.FAILED)
    proposal.accept()
    click.echo("the rules are set")


def require_readable(file: Path) -> None:
    """Raises ConfigurationError, with the line, where a policy file cannot be read."""
    policy_file.load(file)


def read_rules(loaded: Loaded, policy: Path | None, progress: Progress) -> tuple[list[str], bool]:
    """Reads the rules in force; returns them as lines, and whether a sweep by them would be refused.

    Args:
        policy: a policy file in place of the one of the settings.
    Raises:
        CollectionError.
    """
    repository = open_to_look(loaded, **({} if policy is None else {"retention_policy": str(policy)}))
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
    return _describe(repository, readings)


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
        repository = open_to_look(loaded)
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
        lines, _ = _describe(repository, Readings(dump, rules, policy, None))
        return cls(client, rules, lines)

    def accept(self) -> None:
        """Sets the rules."""
        self.client.set_retention_rules(self.rules)


def _describe(repository: OpenRepository, readings: Readings) -> tuple[list[str], bool]:
    now = repository.clock.now()
    found = retention.retention(repository.api, readings, repository.settings, now)
    definition = retention.define(readings, found, repository.settings, now)
    title = f"{repository.facts.id} at {repository.namespace.uri}"
    return [title, *rules_in_force.described(readings, found, definition, now)], bool(definition.guards)
