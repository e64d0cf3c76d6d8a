"""Shared by commands: options, configuration, opening the repository, answers, and the early start of Spark.

Spark starts before the module of a command is imported, since both take about as long. So this module imports Spark and
Dagster only when they are needed.
"""

import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lakefs_gc_assets.collector.clock import SystemClock
from lakefs_gc_assets.configuration_file import (
    CONFIGURATION_VARIABLE,
    DEFAULT_FILE,
    Loaded,
    default_file,
    load_all,
    named,
)
from lakefs_gc_assets.deferred import deferred
from lakefs_gc_assets.errors import CollectionError, ConfigurationError, LogLine
from lakefs_gc_assets.settings import Configuration, SparkSettings

if TYPE_CHECKING:
    from lakefs_gc_assets.collector.repository import OpenRepository
    from lakefs_gc_assets.defs import running
    from lakefs_gc_assets.defs.resources import Collector
    from lakefs_gc_assets.spark import session as spark_session
else:
    running = deferred("lakefs_gc_assets.defs.running")
    spark_session = deferred("lakefs_gc_assets.spark.session")

_HELP = frozenset({"-h", "--help"})
CONFIG = click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    help=f"Configuration file; by default the one named by {CONFIGURATION_VARIABLE}, else {DEFAULT_FILE}.",
)
REPOSITORY = click.option(
    "--repository", help="Name of the lakeFS repository: in place of the file's, or out of its list."
)
JSON = click.option("--json", "as_json", is_flag=True, help="Answer in JSON, as docs/command-line.md describes.")
QUIET = click.option("--quiet", is_flag=True, help="Say on standard error only warnings and what went wrong.")
VERBOSE = click.option("--verbose", is_flag=True, help="Say also what Dagster says of each step.")
RULES = click.option(
    "--rules",
    type=click.Choice(["oss", "seed"]),
    default="oss",
    show_default=True,
    help="How the embedded server treats copies and issued addresses.",
)
OBJECTS = click.option("--objects", default=500, show_default=True, help="Size of the sample repository.")
FOLDER = click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".playground"),
    show_default=True,
    help="Where the embedded server keeps its files.",
)
STORE_URL = click.option(
    "--store-url",
    default="",
    help="Bucket and prefix for the objects, such as s3://bucket/prefix, instead of a local folder. Credentials and "
    "endpoint come from the environment, as for the AWS command line.",
)


def loaded_configuration(file: Path | None, repository: str | None) -> Loaded:
    """The configuration that options, environment and working folder name; its secrets are there.

    Raises ConfigurationError.
    """
    chosen = _chosen(file)
    found = load_all(chosen)
    loaded = found[0] if len(found) == 1 else named(found, repository, "--repository")
    if repository and len(found) == 1:
        content = {**loaded.configuration.model_dump(), "repository": repository}
        loaded = replace(loaded, configuration=Configuration.model_validate(content))
    if not loaded.configuration.repository:
        raise ConfigurationError(f"no repository is named: give --repository, or set `repository` in {chosen}")
    loaded.with_secrets()
    return loaded


def loaded_configurations(file: Path | None) -> tuple[Loaded, ...]:
    """The configurations of all repositories of the file; their secrets are there. Raises ConfigurationError."""
    chosen = _chosen(file)
    found = load_all(chosen)
    for loaded in found:
        if not loaded.configuration.repository:
            raise ConfigurationError(f"no repository is named: set `repository` in {chosen}")
        loaded.with_secrets()
    return found


def _chosen(file: Path | None) -> Path:
    chosen = file or default_file()
    if chosen is None:
        raise ConfigurationError(
            f"no configuration: give --config, set {CONFIGURATION_VARIABLE}, or put a {DEFAULT_FILE} here"
        )
    return chosen


def level_of(quiet: bool, verbose: bool) -> int:
    """The least level of lines that are shown, as in `logging`. Raises UsageError if both are given."""
    if quiet and verbose:
        raise click.UsageError("--quiet and --verbose exclude each other.")
    return logging.WARNING if quiet else logging.DEBUG if verbose else logging.INFO


def answer(content: object, indent: int | None = 1) -> None:
    """Answers in JSON; times are ISO 8601.

    Args:
        indent: None for one line.
    """
    click.echo(json.dumps(content, default=datetime.isoformat, indent=indent, ensure_ascii=False))


def show_progress(line: str) -> None:
    """Writes a line on standard error: standard output is for answers."""
    click.echo(line, err=True)


def progress_unless(quiet: bool) -> LogLine:
    """Shows lines of progress, or drops them."""
    return (lambda line: None) if quiet else show_progress


def open_collector(loaded: Loaded) -> "Collector":
    """The repository's resource outside of a Dagster run."""
    return running.opened(loaded, SystemClock())


def open_to_look(loaded: Loaded, **changes: object) -> "OpenRepository":
    """The repository, with changed settings and without waits: nothing is going to be deleted.

    Raises CollectionError.
    """
    repository = open_collector(loaded).open()
    settings = repository.settings.model_copy(update={"wait_before_dump_seconds": 0, **changes})
    return replace(repository, settings=settings)


@click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True}, add_help_option=False)
@CONFIG
@REPOSITORY
def _configured() -> None:
    """The options that are read before the command is imported."""


def start_as_configured(arguments: Sequence[str]) -> None:
    """Starts the session of the configuration. If there is no configuration, the command itself says so."""
    if _HELP.intersection(arguments):
        return
    options = _configured.make_context(None, list(arguments), resilient_parsing=True).params
    with suppress(CollectionError):
        spark_session.start(loaded_configuration(**options).configuration.spark)


def start_unless_dry(arguments: Sequence[str]) -> None:
    """Starts the session of the configuration unless `--dry-run` is given, which needs none."""
    if "--dry-run" not in arguments:
        start_as_configured(arguments)


def start_as_usual(arguments: Sequence[str]) -> None:
    """Starts a session with every setting at its default."""
    if not _HELP.intersection(arguments):
        spark_session.start(SparkSettings())
