"""The command line: collect a repository, and show results of earlier runs.

Commands run the same graph as the UI. With DAGSTER_HOME set, their runs are recorded there and shown in the UI. Each
command is a module that is imported when the command is called.
"""

import click

from lakefs_gc_assets.cli.group import MEANINGS, LazyCommand, LazyGroup

_CORE = {
    "approve": "Deletes what an earlier dry run found, after checking again that nothing uses it.",
    "candidates": "Lists the garbage of a run: the objects that a sweep deletes.",
    "completion": "Prints the script by which a shell completes commands.",
    "deleted": "Lists the outcome of each object that a run was to delete.",
    "doctor": "Tries every right and feature that runs need, and prints what is missing and what grants it.",
    "explain": "Says why the object at ADDRESS stays or goes.",
    "init": "Writes a configuration file to begin with.",
    "metrics": "Prints the newest figures of each repository in Prometheus' text format.",
    "policy": "Shows, checks and sets how long replaced data stays.",
    "purge": "Deletes objects for good that have been in quarantine for collection.quarantine_days.",
    "report": "Shows the results of a run as lines, as JSON, or as a page.",
    "restore": "Brings back what a run deleted: out of quarantine, or in a bucket that keeps versions.",
    "run": "Makes one run: lists what is stored, subtracts everything that is live.",
    "status": "Shows the last runs of a repository and who holds its lock.",
    "unlock": "Releases the repository's lock if RUN holds it and is dead.",
}
"""Commands of this package, with the first sentence of their help; a command is a function in a module of its name."""
_EXTENSIONS: dict[str, dict[str, str]] = {
    "branches": {
        "branches": "Shows stale branches, deletes them if approved, and makes them again.",
    },
    "check": {
        "fsck": "Checks that a repository is whole: what it needs is stored, and its metadata can be read.",
        "metadata": "Lists ranges and metaranges that nothing needs; moves them to quarantine, puts them back, "
        "and purges them.",
    },
    "erasure": {
        "erase": "Erases the objects at paths in all commits, and certifies that they are gone.",
        "verify": "Checks a certificate of `lakefs-gc erase`, and looks again whether everything is gone.",
    },
    "forecast": {
        "forecast": "Shows the bytes that other retention rules would free, and the bytes of each branch and tag.",
    },
    "orphans": {
        "orphans": "Lists data of deleted repositories: places in the bucket that look like a repository's storage "
        "namespace.",
    },
    "playground": {
        "demo": "Shows a whole collection of a sample repository on an embedded lakeFS server.",
        "embedded": "Serves an embedded lakeFS with a sample repository until interrupted.",
        "ui": "Starts the Dagster UI on the repositories of a configuration file, or on a sample repository to look "
        "around.",
    },
}
"""Commands by extension; a command is a function in the module NAME_command of its package."""
_STARTS = {
    **dict.fromkeys(("approve", "erase", "forecast", "fsck", "metadata", "run"), "start_as_configured"),
    "demo": "start_as_usual",
    "purge": "start_unless_dry",
}
"""Functions of `common` that start Spark for a command."""
_SERVERS = ("demo", "embedded", "ui")
"""Commands that run servers until they are interrupted."""
_MODULES = {name: f"lakefs_gc_assets.cli.{name}" for name in _CORE} | {
    name: f"lakefs_gc_assets.extensions.{extension}.{name}_command"
    for extension, commands in _EXTENSIONS.items()
    for name in commands
}
_SHORT_HELPS = {name: text for commands in (_CORE, *_EXTENSIONS.values()) for name, text in commands.items()}
COMMANDS = {
    name: LazyCommand(
        f"{module}:{name}",
        _SHORT_HELPS[name],
        f"lakefs_gc_assets.cli.common:{_STARTS[name]}" if name in _STARTS else None,
        name in _SERVERS,
    )
    for name, module in _MODULES.items()
}

_STATUSES = "\n".join(["\b", "Exit status:", *(f"  {status:>3}  {meaning}" for status, meaning in MEANINGS.items())])


@click.group(
    cls=LazyGroup,
    lazy_commands=COMMANDS,
    epilog=_STATUSES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="lakefs-gc-assets", prog_name="lakefs-gc", message="%(prog)s %(version)s")
def main() -> None:
    """Collects the garbage of a lakeFS repository: stored objects that nothing references any more.

    A run lists what is stored, learns from lakeFS what is committed, staged or copied, and reports the rest. It deletes
    nothing unless --sweep is given or the configuration says so.
    """
