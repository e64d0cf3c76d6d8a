"""A group of commands that imports a command's module when the command is given, and says its errors in one line."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import click
from click.exceptions import NoSuchCommand
from click.shell_completion import CompletionItem

from lakefs_gc_assets.cli.endings import one_line_errors
from lakefs_gc_assets.deferred import imported
from lakefs_gc_assets.spark.start import interpreter


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """A command that is not imported yet.

    Attributes:
        target: module and name of the command, as `module:name`.
        short_help: what the list of commands says of it: the first sentence of its help.
        before: module and name of a function, as `module:name`, that is called with the command's arguments before its
            module is imported; None where nothing is to be begun.
    """

    target: str
    short_help: str
    before: str | None = None

    def load(self) -> click.Command:
        """Imports the command."""
        command = imported(self.target)
        assert isinstance(command, click.Command)
        return command

    def begin(self, arguments: list[str]) -> None:
        """Begins what takes long, so that it goes on while the command's module is imported."""
        if self.before is not None:
            begin: Callable[[list[str]], None] = imported(self.before)
            begin(arguments)


class LazyGroup(click.Group):
    """Commands whose modules are imported when they are given: the list of commands imports none of them."""

    def __init__(self, *args: Any, lazy_commands: Mapping[str, LazyCommand], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy_commands = lazy_commands

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the commands, in order."""
        return sorted(self._lazy_commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports a command; None where there is none of this name."""
        found = self._lazy_commands.get(cmd_name)
        return None if found is None else found.load()

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the list of commands, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._lazy_commands[name].short_help) for name in self.list_commands(ctx)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names of commands that begin so, without importing them, and what any command completes."""
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        found = [CompletionItem(name, help=self._lazy_commands[name].short_help) for name in names]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Begins what takes long, and imports the command meanwhile; a shell that completes a line begins nothing.

        Raises NoSuchCommand, which says what may have been meant.
        """
        if not ctx.resilient_parsing:
            if args[0] not in self._lazy_commands:
                raise NoSuchCommand(args[0], possibilities=self.list_commands(ctx), ctx=ctx)
            self._lazy_commands[args[0]].begin(args[1:])
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Does what the command does; what goes wrong is one line on standard error, and with --json on output too."""
        interpreter.look_for_cycles_seldom()
        # Dagster warns of each use of what may change in another version; pyproject.toml pins it.
        warnings.filterwarnings("ignore", message=r".* is currently in (beta|preview)")
        # The command may fail before click has read its options.
        with one_line_errors(as_json="--json" in ctx.args):
            return super().invoke(ctx)
