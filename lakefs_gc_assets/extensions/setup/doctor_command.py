"""`lakefs-gc doctor`: tries the requests that runs make to the server and the store."""

import sys
from collections.abc import Collection
from dataclasses import asdict, replace

import click
import pyspark

from lakefs_gc_assets.cli.common import JSON, Target, answer, on_repository, print_result
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.extensions.setup.diagnosis import (
    Diagnosis,
    DiagnosisFinding,
    Purpose,
    Services,
    State,
    diagnose,
    wanted_by,
)
from lakefs_gc_assets.lakefs.api.client import LakeFSClient
from lakefs_gc_assets.settings import Configuration
from lakefs_gc_assets.spark.start import java
from lakefs_gc_assets.storage.opening import open_store

_NAMES = {purpose.value.replace(" ", "-"): purpose for purpose in Purpose}


@click.command()
@on_repository
@click.option(
    "--for",
    "names",
    type=click.Choice(list(_NAMES)),
    multiple=True,
    help="Purpose to check; may be repeated. Defaults to dry run and sweep, with quarantine or "
    "retention if configured.",
)
@JSON
def doctor(target: Target, names: tuple[str, ...], as_json: bool) -> None:
    """Tests every permission and feature that runs need, and prints how to grant missing ones.

    If the server or the store does not answer, does not know the credentials, or has no such repository or bucket,
    this is printed within ten seconds, and nothing else is tested.

    It deletes only files that it wrote, and files that the server wrote at its request. A permission that is missing
    for another purpose is shown as not needed.

    Exit status 0 if nothing is missing, 6 if something is.
    """
    configuration = target.loaded.with_secrets()
    wanted = {_NAMES[name] for name in names} or wanted_by(configuration.collection)
    note = (lambda finding: None) if as_json else _show
    spark = _find_spark()
    note(spark)
    diagnosis = diagnose(_services(configuration), configuration.collection, SystemClock(), wanted, note)
    diagnosis = replace(diagnosis, findings=(spark, *diagnosis.findings))
    if as_json:
        answer(_described(configuration.repository, diagnosis, wanted))
    else:
        _conclude(diagnosis, wanted)
    if not diagnosis.well:
        sys.exit(Status.INCOMPLETE)


def _find_spark() -> DiagnosisFinding:
    """DiagnosisFinding about the installed Spark and its Java."""
    name, purposes = "start Spark", tuple(Purpose)
    try:
        return DiagnosisFinding(name, purposes, State.WORKS, f"Spark {pyspark.__version__} with {java.describe_java()}")
    except ConfigurationError as error:
        return DiagnosisFinding(name, purposes, State.MISSING, str(error))


def _services(configuration: Configuration) -> Services:
    settings, clock = configuration.lakefs, SystemClock()
    brief = {
        "connect_timeout_seconds": min(2, settings.connect_timeout_seconds),
        "read_timeout_seconds": min(3, settings.read_timeout_seconds),
        "retries": min(1, settings.retries),
    }
    return Services(
        LakeFSClient(settings, configuration.repository, clock),
        LakeFSClient(settings.model_copy(update=brief), configuration.repository, clock),
        lambda namespace: open_store(configuration.store, namespace),
    )


def _show(finding: DiagnosisFinding) -> None:
    """Prints a finding on one line, with the remedy if something is missing."""
    missing = finding.state is not State.WORKS and finding.given_by
    remedy = f" [{finding.given_by}]" if missing else ""
    purposes = "" if set(finding.purposes) == set(Purpose) else f" ({', '.join(finding.purposes)})"
    print_result(f"{finding.state.value:<10}  {finding.name}{purposes}: {finding.detail}{remedy}")


def _conclude(diagnosis: Diagnosis, wanted: Collection[Purpose]) -> None:
    if diagnosis.stopped:
        print_result("nothing else was tested: correct this first")
    for key in diagnosis.left:
        print_result(f"could not delete the test file {key}; nothing reads it, so you may delete it yourself")
    for purpose in sorted(wanted, key=list(Purpose).index):
        missing = ", ".join(diagnosis.missing_for(purpose))
        print_result(f"{purpose.value}: {f'not ready; missing: {missing}' if missing else 'ready'}")


def _described(repository: str, diagnosis: Diagnosis, wanted: Collection[Purpose]) -> dict[str, object]:
    return {
        "repository": repository,
        "well": diagnosis.well,
        "stopped": diagnosis.stopped,
        "lacking": {purpose.value: diagnosis.missing_for(purpose) for purpose in Purpose if purpose in wanted},
        "findings": [asdict(finding) for finding in diagnosis.findings],
        "left": diagnosis.left,
    }
