"""`lakefs-gc completion`: a shell script that completes commands, options and their choices."""

import click
from click.shell_completion import get_completion_class

from lakefs_gc_assets.cli.common import JSON, print_answer


@click.command()
@JSON
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(as_json: bool, shell: str) -> None:
    """Prints the shell script for command completion.

    Write `eval "$(lakefs-gc completion bash)"` into ~/.bashrc, or the same with zsh into ~/.zshrc. In fish, pipe the
    script into `source`, in ~/.config/fish/config.fish.
    """
    shell_class = get_completion_class(shell)
    assert shell_class is not None
    program = click.get_current_context().find_root().command
    script = shell_class(program, {}, "lakefs-gc", "_LAKEFS_GC_COMPLETE").source()
    print_answer(as_json, lambda: {"shell": shell, "script": script}, script.split("\n"))
