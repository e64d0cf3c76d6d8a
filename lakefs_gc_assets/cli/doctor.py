"""`lakefs-gc doctor`: tries what runs will ask of the server and the store."""

import sys
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path

import click

from lakefs_gc_assets.cli.common import CONFIG, JSON, REPOSITORY, answer, loaded_configuration
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.clock import SystemClock
from lakefs_gc_assets.collector.diagnosis import Diagnosis, Finding, Purpose, State, diagnose, wanted_by
from lakefs_gc_assets.lakefs.api.client import LakeFSClient
from lakefs_gc_assets.storage.opening import open_store

_NAMES = {purpose.value.replace(" ", "-"): purpose for purpose in Purpose}


@click.command()
@CONFIG
@REPOSITORY
@click.option(
    "--for",
    "names",
    type=click.Choice(list(_NAMES)),
    multiple=True,
    help="What you want to do; may be given again. By default a dry run and a sweep, and quarantine or retention where "
    "the configuration says so.",
)
@JSON
def doctor(file: Path | None, repository: str | None, names: tuple[str, ...], as_json: bool) -> None:
    """Tries every right and feature that runs need, and says which are missing and what gives them.

    It deletes nothing but what it wrote itself, and what the server wrote because it was asked to. What is missing of
    things that you do not want is shown as not needed.

    Exit status 0 if nothing is missing, 6 if something is.
    """
    configuration = loaded_configuration(file, repository).with_secrets()
    clock = SystemClock()
    wanted = {_NAMES[name] for name in names} or wanted_by(configuration.collection)
    found = diagnose(
        LakeFSClient(configuration.lakefs, configuration.repository, clock),
        lambda namespace: open_store(configuration.store, namespace),
        configuration.collection,
        clock,
        wanted,
        (lambda finding: None) if as_json else _show,
    )
    if as_json:
        answer(_described(configuration.repository, found, wanted))
    else:
        _conclude(found, wanted)
    if not found.well:
        sys.exit(Status.INCOMPLETE)


def _show(finding: Finding) -> None:
    """Says one finding in a line, with what would give what is missing."""
    missing = finding.state is not State.WORKS and finding.given_by
    remedy = f" [{finding.given_by}]" if missing else ""
    purposes = "" if set(finding.purposes) == set(Purpose) else f" ({', '.join(finding.purposes)})"
    click.echo(f"{finding.state.value:<10}  {finding.name}{purposes}: {finding.detail}{remedy}")


def _conclude(found: Diagnosis, wanted: Collection[Purpose]) -> None:
    for key in found.left:
        click.echo(f"left behind: {key}, which could not be deleted; nothing reads it, and it may be deleted by hand")
    for purpose in sorted(wanted, key=list(Purpose).index):
        missing = ", ".join(found.missing_for(purpose))
        click.echo(f"{purpose.value}: {f'lacks {missing}' if missing else 'ready'}")


def _described(repository: str, found: Diagnosis, wanted: Collection[Purpose]) -> dict[str, object]:
    return {
        "repository": repository,
        "well": found.well,
        "lacking": {purpose.value: found.missing_for(purpose) for purpose in Purpose if purpose in wanted},
        "findings": [asdict(finding) for finding in found.findings],
        "left": found.left,
    }
