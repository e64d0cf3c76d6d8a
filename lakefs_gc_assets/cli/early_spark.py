"""Starting Spark's session before a command's own module is imported, which takes about as long as the start."""

from collections.abc import Sequence
from contextlib import suppress

import click

from lakefs_gc_assets.cli.options import CONFIG, REPOSITORY, loaded_configuration
from lakefs_gc_assets.errors import CollectionError
from lakefs_gc_assets.settings import SparkSettings
from lakefs_gc_assets.spark import session as spark_session

_HELP = frozenset({"-h", "--help"})


@click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True}, add_help_option=False)
@CONFIG
@REPOSITORY
def _configured() -> None:
    """What is read of a command's arguments before the command is there to read them."""


def start_as_configured(arguments: Sequence[str]) -> None:
    """Starts the session that the configuration asks for; where there is none, the command itself says so."""
    if _HELP.intersection(arguments):
        return
    options = _configured.make_context(None, list(arguments), resilient_parsing=True).params
    with suppress(CollectionError):
        spark_session.start(loaded_configuration(**options).configuration.spark)


def start_unless_dry(arguments: Sequence[str]) -> None:
    """Starts the session that the configuration asks for, for a command whose `--dry-run` needs none."""
    if "--dry-run" not in arguments:
        start_as_configured(arguments)


def start_as_usual(arguments: Sequence[str]) -> None:
    """Starts a session with every setting at its default."""
    if not _HELP.intersection(arguments):
        spark_session.start(SparkSettings())
