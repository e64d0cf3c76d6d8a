"""The command line: collect a repository, and show results of earlier runs.

Commands run the same graph as the UI. With DAGSTER_HOME set, their runs are recorded there and shown in the UI. Each
command is a module that is imported when the command is called.
"""

import click

from lakefs_gc_assets.cli.group import MEANINGS, LazyCommand, LazyGroup

_CORE = {
    "approve": "Deletes the candidates of a dry run, after checking again that nothing uses them.",
    "candidates": "Lists the garbage of a run: the objects that a sweep deletes.",
    "completion": "Prints the shell script for command completion.",
    "deleted": "Lists the outcome for each candidate of a run.",
    "policy": "Shows, checks and sets the retention rules for replaced data.",
    "purge": "Permanently deletes objects that have been in quarantine for collection.quarantine_days.",
    "report": "Shows the results of a run as lines, as JSON, or as a page.",
    "restore": "Restores objects that a run deleted, from quarantine or from the bucket's versions.",
    "run": "Starts a run: lists stored objects and subtracts all live ones.",
    "status": "Shows the last runs of a repository and who holds its lock.",
    "unlock": "Releases the repository's lock if RUN holds it and is dead.",
}
"""Commands of this package, with the first sentence of their help; a command is a function in a module of its name."""
_EXTENSIONS: dict[str, dict[str, str]] = {
    "approvals": {
        "approvals": "Lists, grants and withdraws standing approvals: deletions without asking a person.",
    },
    "branches": {
        "branches": "Lists stale branches, deletes them if approved, and recreates deleted ones.",
    },
    "check": {
        "fsck": "Checks that all objects a repository needs are stored and its metadata can be read.",
        "metadata": "Lists unneeded ranges and metaranges, and moves them to quarantine, restores and purges them.",
    },
    "erasure": {
        "erase": "Erases the objects at paths in all commits, and certifies that they are gone.",
        "verify": "Checks a certificate of `lakefs-gc erase`, and that its objects are still gone.",
    },
    "explain": {
        "explain": "Explains why a run keeps or deletes the object at ADDRESS.",
    },
    "forecast": {
        "forecast": "Shows the bytes that other retention rules would free, and the bytes of each branch and tag.",
    },
    "holdings": {
        "holdings": "Shows who holds which bytes after the newest run, and what changed since a day.",
        "each": "Calls a command for each repository of the configuration, one after the other or side by side.",
        "overview": "Shows all repositories of the configuration: stored bytes, garbage, cost, trends and alerts.",
    },
    "lifecycle": {
        "lifecycle": "Lists objects of branches that expire by the rules of the policy, deletes them if approved, and "
        "brings them back.",
    },
    "metrics": {
        "metrics": "Prints the newest figures of each repository in Prometheus' text format.",
    },
    "orphans": {
        "orphans": "Lists data of deleted repositories, deletes it if approved, and restores it.",
    },
    "playground": {
        "demo": "Shows a whole collection of a sample repository on an embedded lakeFS server.",
        "embedded": "Serves an embedded lakeFS with a sample repository until interrupted.",
        "ui": "Starts the Dagster UI on the repositories of a configuration file, or on a sample repository to "
        "explore.",
    },
    "routine": {
        "routine": "Lists what object lifecycle, stale branches and collection would delete, in this order, on one "
        "page.",
    },
    "setup": {
        "doctor": "Tests every permission and feature that runs need, and prints how to grant missing ones.",
        "init": "Writes a first configuration file.",
    },
}
"""Commands by extension; a command is a function in the module NAME_command of its package."""
_STARTS = {
    **dict.fromkeys(("approve", "erase", "forecast", "fsck", "metadata", "routine", "run"), "start_as_configured"),
    "demo": "start_as_usual",
    "holdings": "start_on_demand",
    "purge": "start_unless_dry",
}
"""Functions of `common` that start Spark for a command."""
_SERVERS = ("demo", "each", "embedded", "ui")
"""Commands that run servers or other commands, and end them when they are interrupted."""
_OTHERS = {"status": {"--all": "overview"}}
"""Commands that answer in place of others, by the option that asks for it."""
_POLICY_PARTS = {key: f"lakefs_gc_assets.extensions.{key}.rules:parse_rules" for key in {"lifecycle"} & {*_EXTENSIONS}}
"""Keys of policy files that extensions read, with the function that does, for `policy check`."""
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
        {option: other for option, other in _OTHERS.get(name, {}).items() if other in _MODULES},
    )
    for name, module in _MODULES.items()
}

_STATUSES = "\n".join(["\b", "Exit status:", *(f"  {status:>3}  {meaning}" for status, meaning in MEANINGS.items())])


@click.group(
    cls=LazyGroup,
    lazy_commands=COMMANDS,
    epilog=_STATUSES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "obj": _POLICY_PARTS},
)
@click.version_option(package_name="lakefs-gc-assets", prog_name="lakefs-gc", message="%(prog)s %(version)s")
def main() -> None:
    """Collects the garbage of a lakeFS repository: stored objects that nothing references any more.

    A run lists the stored objects, asks lakeFS which ones are committed, staged or copied, and reports the rest. It
    deletes nothing unless --sweep is given or the configuration file sets `sweep`.
    """
