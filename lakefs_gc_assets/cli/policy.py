"""`lakefs-gc policy`: the retention rule of each branch, and the number of commits that it keeps."""

import sys
from dataclasses import dataclass
from pathlib import Path

import click

from lakefs_gc_assets.cli.common import (
    CONFIG,
    JSON,
    QUIET,
    REPOSITORY,
    answer,
    loaded_configuration,
    open_to_look,
    progress_unless,
)
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.repository import OpenRepository
from lakefs_gc_assets.collector.retention import commits, retention
from lakefs_gc_assets.collector.retention import rules as retention_rules
from lakefs_gc_assets.collector.retention.retention import Readings
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.errors import ConfigurationError, LogLine
from lakefs_gc_assets.lakefs.api.client import LakeFSClient
from lakefs_gc_assets.lakefs.api.models import RetentionRules

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.group()
def policy() -> None:
    """Shows, checks and sets how long replaced data stays."""


@policy.command()
@CONFIG
@REPOSITORY
@QUIET
@JSON
@click.argument("checked", metavar="[POLICY]", type=_FILE, required=False)
def check(file: Path | None, repository: str | None, quiet: bool, as_json: bool, checked: Path | None) -> None:
    """Checks a policy file, by default the configured one, and shows what it would keep.

    Exit status 3 if it cannot be read, 4 if a sweep by it would be refused.
    """
    if checked is not None:
        require_readable(checked)
    in_force = read_rules(loaded_configuration(file, repository), checked, progress_unless(quiet))
    in_force.print(as_json)
    if in_force.refused:
        sys.exit(Status.REFUSED)


@policy.command()
@CONFIG
@REPOSITORY
@QUIET
@JSON
def show(file: Path | None, repository: str | None, quiet: bool, as_json: bool) -> None:
    """Shows the rule of each branch and how many commits it keeps."""
    read_rules(loaded_configuration(file, repository), None, progress_unless(quiet)).print(as_json)


@policy.command("set")
@CONFIG
@REPOSITORY
@click.option("--yes", is_flag=True, help="Set them without asking.")
@QUIET
@JSON
@click.argument("rules", type=_FILE)
def set_rules(file: Path | None, repository: str | None, yes: bool, quiet: bool, as_json: bool, rules: Path) -> None:
    """Replaces the repository's retention rules by those of a JSON file, after showing what they would keep.

    The file has the format of `lakectl gc set-config`. Rules that make no sense are refused.
    """
    proposal = Proposal.read(loaded_configuration(file, repository), rules, progress_unless(quiet))
    if as_json and yes:
        proposal.accept()
        proposal.outcome.print(as_json)
        return
    proposal.outcome.print(as_json)
    if not yes and not click.confirm("Set these rules?", err=as_json):
        sys.exit(Status.FAILED)
    proposal.accept()
    if not as_json:
        click.echo("the rules are set")


def require_readable(file: Path) -> None:
    """Raises ConfigurationError, with the line, if a policy file cannot be read."""
    retention_rules.load_policy(file)


@dataclass(frozen=True)
class RulesInForce:
    """Rules and what they keep.

    Attributes:
        lines: for a person.
        content: for a program.
        refused: True if a sweep by these rules would be refused.
    """

    lines: list[str]
    content: dict[str, object]
    refused: bool

    def print(self, as_json: bool) -> None:
        """Prints them."""
        if as_json:
            answer(self.content)
            return
        for line in self.lines:
            click.echo(line)


def read_rules(loaded: Loaded, policy: Path | None, progress: LogLine) -> RulesInForce:
    """Reads the rules in force.

    Args:
        policy: a policy file that replaces the configured one.
    Raises:
        CollectionError.
    """
    repository = open_to_look(loaded, **({} if policy is None else {"retention_policy": str(policy)}))
    readings = retention.read(repository, repository.clock.now(), progress, retention.policy_of(repository.settings))
    return _describe(repository, readings)


@dataclass(frozen=True)
class Proposal:
    """Retention rules to set on the server.

    Attributes:
        outcome: the commits that they would keep.
    """

    client: LakeFSClient
    rules: RetentionRules
    outcome: RulesInForce

    @classmethod
    def read(cls, loaded: Loaded, file: Path, progress: LogLine) -> "Proposal":
        """Reads rules and the commits that they would keep. Raises ConfigurationError if they make no sense."""
        rules = retention_rules.load_server_rules(file)
        repository = open_to_look(loaded)
        policy = retention.policy_of(repository.settings)
        dump = commits.complete_dump(repository, repository.clock.now(), progress)
        unknown = retention_rules.unknown_branches(rules, policy, dump.branches)
        if unknown and not repository.settings.allow_rules_of_unknown_branches:
            raise ConfigurationError(
                f"{file}: {'; '.join(unknown)}: there is no such branch. Correct the name, or set "
                "collection.allow_rules_of_unknown_branches"
            )
        configuration = loaded.with_secrets()
        client = LakeFSClient(configuration.lakefs, configuration.repository, repository.clock)
        written = retention.written_times(repository, dump.commits)
        return cls(client, rules, _describe(repository, Readings(dump, rules, policy, None, written)))

    def accept(self) -> None:
        """Sets the rules."""
        self.client.set_retention_rules(self.rules)


def _describe(repository: OpenRepository, readings: Readings) -> RulesInForce:
    now = repository.clock.now()
    retained = retention.retention(repository, readings, now)
    definition = retention.define(readings, retained, repository.settings, now)
    title = f"{repository.facts.id} at {repository.namespace.uri}"
    return RulesInForce(
        [title, *retention.describe_rules(readings, retained, definition, now)],
        {
            "repository": repository.facts.id,
            "storage_namespace": repository.namespace.uri,
            **retention.encode_rules(readings, retained, definition, now),
        },
        bool(definition.guards),
    )
