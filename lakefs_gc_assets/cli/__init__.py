"""The command line: collect a repository, and see what earlier runs did.

Commands run the same graph as the UI. With DAGSTER_HOME set, their runs are recorded there and shown in the UI. Each
command is a module of this package, which is imported when the command is called.
"""

import click

from lakefs_gc_assets.cli.group import MEANINGS, LazyCommand, LazyGroup

COMMANDS = {
    "approve": LazyCommand(
        "lakefs_gc_assets.cli.approve:approve",
        "Deletes what an earlier dry run found, after checking again that nothing uses it.",
        "lakefs_gc_assets.cli.common:start_as_configured",
    ),
    "branches": LazyCommand(
        "lakefs_gc_assets.cli.branches:branches",
        "Shows stale branches, deletes them if approved, and makes them again.",
    ),
    "candidates": LazyCommand(
        "lakefs_gc_assets.cli.candidates:candidates",
        "Lists the garbage of a run: the objects that a sweep deletes.",
    ),
    "completion": LazyCommand(
        "lakefs_gc_assets.cli.completion:completion", "Prints the script by which a shell completes commands."
    ),
    "deleted": LazyCommand(
        "lakefs_gc_assets.cli.deleted:deleted", "Lists the outcome of each object that a run was to delete."
    ),
    "demo": LazyCommand(
        "lakefs_gc_assets.cli.demo:demo",
        "Shows a whole collection of a sample repository on an embedded lakeFS server.",
        "lakefs_gc_assets.cli.common:start_as_usual",
        serves=True,
    ),
    "doctor": LazyCommand(
        "lakefs_gc_assets.cli.doctor:doctor",
        "Tries every right and feature that runs need, and prints what is missing and what grants it.",
    ),
    "embedded": LazyCommand(
        "lakefs_gc_assets.cli.embedded:embedded",
        "Serves an embedded lakeFS with a sample repository until interrupted.",
        serves=True,
    ),
    "erase": LazyCommand(
        "lakefs_gc_assets.cli.erase:erase",
        "Erases the objects at paths in all commits, and certifies that they are gone.",
        "lakefs_gc_assets.cli.common:start_as_configured",
    ),
    "explain": LazyCommand("lakefs_gc_assets.cli.explain:explain", "Says why the object at ADDRESS stays or goes."),
    "init": LazyCommand("lakefs_gc_assets.cli.init:init", "Writes a configuration file to begin with."),
    "forecast": LazyCommand(
        "lakefs_gc_assets.cli.forecast:forecast",
        "Shows the bytes that other retention rules would free, and the bytes of each branch and tag.",
        "lakefs_gc_assets.cli.common:start_as_configured",
    ),
    "fsck": LazyCommand(
        "lakefs_gc_assets.cli.fsck:fsck",
        "Checks that a repository is whole: what it needs is stored, and its metadata can be read.",
        "lakefs_gc_assets.cli.common:start_as_configured",
    ),
    "metadata": LazyCommand(
        "lakefs_gc_assets.cli.metadata:metadata",
        "Lists ranges and metaranges that nothing needs; moves them to quarantine, puts them back, and purges them.",
        "lakefs_gc_assets.cli.common:start_as_configured",
    ),
    "metrics": LazyCommand(
        "lakefs_gc_assets.cli.metrics:metrics",
        "Prints the newest figures of each repository in Prometheus' text format.",
    ),
    "policy": LazyCommand("lakefs_gc_assets.cli.policy:policy", "Shows, checks and sets how long replaced data stays."),
    "purge": LazyCommand(
        "lakefs_gc_assets.cli.purge:purge",
        "Deletes objects for good that have been in quarantine for collection.quarantine_days.",
        "lakefs_gc_assets.cli.common:start_unless_dry",
    ),
    "report": LazyCommand(
        "lakefs_gc_assets.cli.report:report",
        "Shows the results of a run as lines, as JSON, or as a page.",
    ),
    "restore": LazyCommand(
        "lakefs_gc_assets.cli.restore:restore",
        "Brings back what a run deleted: out of quarantine, or in a bucket that keeps versions.",
    ),
    "run": LazyCommand(
        "lakefs_gc_assets.cli.run:run",
        "Makes one run: lists what is stored, subtracts everything that is live.",
        "lakefs_gc_assets.cli.common:start_as_configured",
    ),
    "status": LazyCommand(
        "lakefs_gc_assets.cli.status:status", "Shows the last runs of a repository and who holds its lock."
    ),
    "ui": LazyCommand(
        "lakefs_gc_assets.cli.ui:ui",
        "Starts the Dagster UI on the repositories of a configuration file, or on a sample repository to look around.",
        serves=True,
    ),
    "unlock": LazyCommand(
        "lakefs_gc_assets.cli.unlock:unlock", "Releases the repository's lock if RUN holds it and is dead."
    ),
    "verify": LazyCommand(
        "lakefs_gc_assets.cli.verify:verify",
        "Checks a certificate of `lakefs-gc erase`, and looks again whether everything is gone.",
    ),
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
