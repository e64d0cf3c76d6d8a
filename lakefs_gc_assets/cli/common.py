"""Shared by commands: options, configuration, opening the repository, answers, and the early start of Spark.

Spark starts in parallel with the import of a command's module, because both take about as long. So this module imports
Spark and Dagster only when they are needed.
"""

import json
import logging
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.records import report
from lakefs_gc_assets.collector.records.outcomes import BaseFate, Result, Tally, describe_result
from lakefs_gc_assets.collector.records.report import Report, describe
from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.configuration_file import (
    CONFIGURATION_VARIABLE,
    DEFAULT_FILE,
    Loaded,
    default_file,
    load_all,
    load_one,
)
from lakefs_gc_assets.deferred import deferred
from lakefs_gc_assets.errors import CollectionError, ConfigurationError, CorruptFile, LogLine, printable
from lakefs_gc_assets.settings import SparkSettings
from lakefs_gc_assets.storage.interface import ObjectStore

if TYPE_CHECKING:
    from lakefs_gc_assets.collector.repository import opening
    from lakefs_gc_assets.collector.repository.repository import OpenRepository
    from lakefs_gc_assets.defs import resources
    from lakefs_gc_assets.defs.resources import Collector
    from lakefs_gc_assets.spark import session as spark_session
else:
    opening = deferred("lakefs_gc_assets.collector.repository.opening")
    resources = deferred("lakefs_gc_assets.defs.resources")
    spark_session = deferred("lakefs_gc_assets.spark.session")

_WITHOUT_SESSION = frozenset({"-h", "--help", "--new-key"})
"""Options with which a command needs no session."""
CONFIG = click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    help=f"Configuration file; defaults to the one in {CONFIGURATION_VARIABLE}, else {DEFAULT_FILE}.",
)
REPOSITORY = click.option(
    "--repository", help="Name of the lakeFS repository: replaces the file's, or selects one of its list."
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, as described in docs/command-line.md.")
QUIET = click.option("--quiet", is_flag=True, help="Print only warnings and errors on standard error.")
VERBOSE = click.option("--verbose", is_flag=True, help="Also print details of each step, and Dagster's messages.")


def loaded_configuration(file: Path | None, repository: str | None) -> Loaded:
    """Loads the configuration from options, environment or working folder, and checks that its secrets are set.

    Raises ConfigurationError.
    """
    path = configuration_path(file)
    loaded = load_one(path, repository, "--repository", replaces=True)
    if not loaded.configuration.repository:
        raise ConfigurationError(f"no repository is configured: give --repository, or set `repository` in {path}")
    loaded.with_secrets()
    return loaded


def loaded_configurations(file: Path | None) -> tuple[Loaded, ...]:
    """Loads the configurations of all repositories of the file. Raises ConfigurationError.

    A secret is read when its repository is opened, so a missing one does not affect the other repositories.
    """
    path = configuration_path(file)
    configurations = load_all(path)
    for loaded in configurations:
        if not loaded.configuration.repository:
            raise ConfigurationError(f"no repository is configured: set `repository` in {path}")
    return configurations


def configuration_path(file: Path | None) -> Path:
    """The configuration file of options, environment or working folder. Raises ConfigurationError."""
    path = file or default_file()
    if path is None:
        raise ConfigurationError(
            f"no configuration: give --config, set {CONFIGURATION_VARIABLE}, or put a {DEFAULT_FILE} here; "
            "`lakefs-gc init` writes one"
        )
    return path


def level_of(quiet: bool, verbose: bool) -> int:
    """Minimum level of shown lines, as in `logging`. Raises UsageError if both options are given."""
    if quiet and verbose:
        raise click.UsageError("--quiet and --verbose exclude each other.")
    return logging.WARNING if quiet else logging.DEBUG if verbose else logging.INFO


def answer(content: object, indent: int | None = 1) -> None:
    """Prints JSON; times are ISO 8601.

    Args:
        indent: None for one line.
    """
    click.echo(encode(content, indent), file=sys.stdout)


def encode(content: object, indent: int | None = None) -> str:
    """Content as JSON; times are ISO 8601, and characters that a terminal could act on are escaped as JSON does.

    Args:
        indent: None for one line.
    """
    text = json.dumps(content, default=datetime.isoformat, indent=indent, ensure_ascii=False)
    return "".join(letter if letter.isprintable() or letter == "\n" else json.dumps(letter)[1:-1] for letter in text)


def print_answer(as_json: bool, content: Callable[[], object], lines: Iterable[str]) -> None:
    """Prints JSON if `as_json`, else lines for users; the other one is not computed."""
    if as_json:
        answer(content())
    else:
        for line in lines:
            print_result(line)


def print_result(line: str) -> None:
    """Prints a line on standard output, above the bar, if any; by default click writes past the bar."""
    click.echo(printable(line), file=sys.stdout)


def print_outcomes(outcomes: Iterable[Result], name: str, usual: BaseFate, as_json: bool, frees: bool = False) -> None:
    """Prints unusual outcomes as they come, in JSON all outcomes, then the number of each kind.

    Exits with Status.INCOMPLETE if any outcome is a failure.

    Args:
        name: attribute with the name of an object, file or branch for lines.
        usual: expected outcome.
        frees: True if the usual outcome frees bytes; their sum is printed too.
    """
    tally = Tally(usual)
    for outcome in tally.counted(outcomes):
        if as_json:
            answer(asdict(outcome), indent=None)
        elif outcome.why or outcome.fate is not usual:
            print_result(describe_result(getattr(outcome, name), outcome))
    if as_json:
        answer({"counts": tally.counts} | ({"bytes_freed": tally.freed} if frees else {}), indent=None)
    else:
        print_result(tally.describe(frees))
    if tally.failed:
        sys.exit(Status.INCOMPLETE)


METRICS_PREFIX = "lakefs_gc_"
Sample = tuple[str, Mapping[str, str], float]
"""A measurement for Prometheus: name without prefix, labels, value."""


def format_samples(samples: Iterable[Sample], helps: Mapping[str, str]) -> Iterator[str]:
    """Samples in Prometheus' text format, grouped by name.

    Args:
        helps: meaning of each name.
    """
    grouped: dict[str, list[Sample]] = {}
    for sample in samples:
        grouped.setdefault(sample[0], []).append(sample)
    for name, same_name in grouped.items():
        yield f"# HELP {METRICS_PREFIX}{name} {helps[name]}"
        yield f"# TYPE {METRICS_PREFIX}{name} gauge"
        for _, labels, value in same_name:
            label_text = ",".join(f'{label}="{_escape(text)}"' for label, text in labels.items())
            yield f"{METRICS_PREFIX}{name}{{{label_text}}} {value:.17g}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _keep(context: click.Context, option: click.Parameter, value: object) -> None:
    context.meta[f"{__name__}.{option.name}"] = value


def _same_run(context: click.Context, _: click.Parameter, run_id: str | None) -> str | None:
    named = context.meta[f"{__name__}.named_run"]
    if "" in (run_id, named):
        # An unset variable in a script must not select all runs.
        raise click.UsageError("RUN is empty.")
    if run_id and named and run_id != named:
        raise click.UsageError("RUN and --run-id name different runs.")
    return run_id or named


def names_run(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator: gives a command the argument RUN, or the equivalent option --run-id, as `run_id`."""
    option = click.option(
        "--run-id", "named_run", help="The same as RUN.", expose_value=False, is_eager=True, callback=_keep
    )
    return option(click.argument("run_id", metavar="[RUN]", required=False, callback=_same_run)(command))


YES = click.option(
    "--yes",
    is_flag=True,
    expose_value=False,
    callback=_keep,
    help="Do it without asking; required without a terminal.",
)
"""Option whose value `is_confirmed` returns."""


def is_confirmed() -> bool:
    """True if the current command was called with --yes."""
    return bool(click.get_current_context().meta[f"{__name__}.yes"])


def is_on_terminal() -> bool:
    """True if a user can be asked."""
    return sys.stdin.isatty()


def show_progress(line: str) -> None:
    """Prints a line on standard error, because standard output is for results."""
    click.echo(printable(line), err=True)


def progress_unless(quiet: bool) -> LogLine:
    """Function that prints lines of progress, or drops them if `quiet`."""
    return (lambda line: None) if quiet else show_progress


def readable_report(store: ObjectStore, run_id: str) -> Report | None:
    """The report of a run; None if there is none, or if it is unreadable, which prints a warning."""
    try:
        return report.read(store, run_id)
    except CorruptFile as corrupt:
        show_progress(f"not shown: {corrupt}")
        return None


def require_report(store: ObjectStore, run_id: str) -> Report:
    """The report of a finished run. Raises CollectionError if there is none."""
    run_report = report.read(store, run_id)
    if run_report is None:
        raise CollectionError(f"run {run_id} left no report")
    return run_report


def print_report(run_report: Report, as_json: bool) -> None:
    """Prints the report of a run; exits with an error status if a deletion was not accepted, or objects are lost."""
    print_answer(as_json, lambda: json.loads(run_report.to_json()), describe(run_report))
    if not run_report.success:
        sys.exit(Status.LOST if run_report.is_complete else Status.INCOMPLETE)


def open_repository(loaded: Loaded, to_read: bool = False) -> "OpenRepository":
    """Opens the repository, without Dagster. Raises CollectionError.

    Args:
        to_read: True to open a read-only repository too.
    """
    return opening.open_repository(loaded.with_secrets(), SystemClock(), to_read=to_read)


@dataclass(frozen=True)
class Target:
    """The repository of the options --config and --repository; the configuration is read on demand."""

    file: Path | None
    repository: str | None

    @cached_property
    def loaded(self) -> Loaded:
        """See `loaded_configuration`."""
        return loaded_configuration(self.file, self.repository)

    def command_line(self, command: str, *words: str) -> str:
        """A shell command for the same repository."""
        named = {"--config": self.file, "--repository": self.repository}
        options = [word for name, value in named.items() if value for word in (name, str(value))]
        return shlex.join(["lakefs-gc", command, *options, *words])

    def collector(self) -> "Collector":
        """The repository's resource outside of a Dagster run. Raises ConfigurationError."""
        return resources.Collector.from_loaded(self.loaded, SystemClock())

    def open(self, to_read: bool = False) -> "OpenRepository":
        """See `open_repository`."""
        return open_repository(self.loaded, to_read)

    def open_to_look(self, **changes: object) -> "OpenRepository":
        """Opens the repository with changed settings, and without waits because nothing will be deleted.

        Raises CollectionError.
        """
        return self.open().dumping_at_once(**changes)


def on_repository(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator: gives a command the options --config and --repository, as `target`."""

    @CONFIG
    @REPOSITORY
    @wraps(command)
    def with_target(*, file: Path | None, repository: str | None, **options: Any) -> None:
        command(target=Target(file, repository), **options)

    return with_target


class TargetGroup(click.Group):
    """Commands on a repository. --config and --repository may also precede the name of a command.

    If an option is given in both places, the one after the name counts.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        CONFIG(self)
        REPOSITORY(self)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Passes the options before the command's name to the command too."""
        name, command, rest = super().resolve_command(ctx, args)
        before = (("--config", ctx.params["file"]), ("--repository", ctx.params["repository"]))
        options = [word for option, value in before if value is not None for word in (option, str(value))]
        return name, command, [*options, *rest]


@click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True}, add_help_option=False)
@CONFIG
@REPOSITORY
@click.option("--flow", default="")
def _configured() -> None:
    """Options that are read before the command is imported."""


def start_as_configured(arguments: Sequence[str]) -> None:
    """Starts the session of the configuration. If there is no configuration, the command itself fails.

    An optimized run often has nothing to list or read, so it starts a session only on demand.
    """
    if _WITHOUT_SESSION.intersection(arguments):
        return
    options = _configured.make_context(None, list(arguments), resilient_parsing=True).params
    flow = options.pop("flow")
    with suppress(CollectionError):
        settings = loaded_configuration(**options).configuration.session
        if flow != "optimized" or not spark_session.starts_on_demand(settings):
            spark_session.start(settings)


def start_on_demand(arguments: Sequence[str]) -> None:
    """Starts nothing: the command itself starts a session if it has much to read.

    A command that has such a function keeps pandas importable, which Spark needs.
    """


def start_unless_dry(arguments: Sequence[str]) -> None:
    """Starts the session of the configuration, except for `--dry-run`, which needs no session."""
    if "--dry-run" not in arguments:
        start_as_configured(arguments)


def start_as_usual(arguments: Sequence[str]) -> None:
    """Starts a session with default settings."""
    if not _WITHOUT_SESSION.intersection(arguments):
        spark_session.start(SparkSettings())


def agrees(question: str) -> bool:
    """True if --yes is given, or if the user says yes to a question on standard error."""
    if is_confirmed():
        return True
    try:
        return click.confirm(printable(question), err=True)
    except click.Abort:
        click.echo(err=True)
        return False


def require_yes(question: str, refusal: str = "nothing was changed") -> None:
    """Asks a question unless --yes is given. Raises CollectionError unless the answer is yes.

    Args:
        refusal: effect of a refusal, such as `nothing was purged`.
    """
    if not agrees(question):
        raise CollectionError(f"not confirmed: {refusal}. Give --yes to skip the question")


def require_yes_or_terminal(refusal: str = "nothing was changed") -> None:
    """Raises CollectionError unless --yes is given or a user can be asked; for use before work that ends in a question.

    Args:
        refusal: as for `require_yes`.
    """
    if not is_confirmed() and not is_on_terminal():
        raise CollectionError(f"{refusal}: there is no terminal to ask on, so give --yes")
