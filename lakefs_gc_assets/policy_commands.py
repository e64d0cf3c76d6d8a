"""`lakefs-gc policy`: which rule of retention applies to which branch, and how many commits it keeps."""

import sys
from pathlib import Path

import click

from lakefs_gc_assets.command_options import CONFIG, REPOSITORY, loaded_configuration, one_line_errors

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

    Exit status 1 where it cannot be read, or where a sweep by it would be refused.
    """
    with one_line_errors():
        from lakefs_gc_assets import policies

        if checked is not None:
            policies.require_readable(checked)
        lines, refused = policies.in_force(loaded_configuration(file, repository), checked, _progress)
        for line in lines:
            click.echo(line)
        if refused:
            sys.exit(1)


@policy.command()
@CONFIG
@REPOSITORY
def show(file: Path | None, repository: str | None) -> None:
    """Shows the rule of each branch and how many commits it keeps."""
    with one_line_errors():
        from lakefs_gc_assets import policies

        lines, _ = policies.in_force(loaded_configuration(file, repository), None, _progress)
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
    with one_line_errors():
        from lakefs_gc_assets.policies import Proposal

        proposal = Proposal.read(loaded_configuration(file, repository), rules, _progress)
        for line in proposal.lines:
            click.echo(line)
        if not yes and not click.confirm("Set these rules?"):
            sys.exit(1)
        proposal.accept()
        click.echo("the rules are set")


def _progress(line: str) -> None:
    click.echo(line, err=True)
