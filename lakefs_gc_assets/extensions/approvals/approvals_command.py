"""`lakefs-gc approvals`: lists, grants and withdraws standing approvals."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from lakefs_gc_assets.cli.common import (
    JSON,
    YES,
    Target,
    TargetGroup,
    on_repository,
    print_answer,
    require_yes,
    show_progress,
)
from lakefs_gc_assets.collector.standing_approvals import ApprovedWork, Limits, describe_all, why_void
from lakefs_gc_assets.extensions.approvals import granting

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?(?:([KMGTP])(i?))?B?", re.IGNORECASE)
_KIND = click.argument("kind", type=click.Choice([each.value for each in ApprovedWork]))


class _Size(click.ParamType[int]):
    """A number of bytes, such as 500GB or 1.5TiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number of bytes; a part of a byte is cut off."""
        if (match := _SIZE.fullmatch(str(value))) is None:
            self.fail(f"{value!r} is not a size such as 500GB or 1.5TiB", param, ctx)
        number, unit, binary = match.groups()
        power = " KMGTP".index(unit.upper()) if unit else 0
        return int(float(number) * (1024 if binary else 1000) ** power)


@click.group(cls=TargetGroup, invoke_without_command=True)
@click.pass_context
def approvals(context: click.Context, file: Path | None, repository: str | None) -> None:
    """Lists, grants and withdraws standing approvals: deletions without asking a person.

    Without a subcommand, it does the same as `list`.
    """
    if context.invoked_subcommand is None:
        context.invoke(list_approvals, file=file, repository=repository, as_json=False)


@approvals.command("list")
@on_repository
@JSON
def list_approvals(target: Target, as_json: bool) -> None:
    """Shows the standing approval of each kind of work, and why one does not count."""
    opened = target.open(to_read=True)
    stored = dict(describe_all(opened, target.loaded.configuration.launch.approvers))
    lines = [f"{kind}: {text}" for kind, text in stored.items()] or ["there are no standing approvals"]
    print_answer(as_json, lambda: stored, lines)


@approvals.command()
@on_repository
@YES
@JSON
@_KIND
@click.option("--objects", type=click.IntRange(min=1), help="Maximum objects; required for collection and lifecycle.")
@click.option("--bytes", "bytes_", type=_Size(), help="Maximum bytes, such as 500GB or 1.5TiB.")
@click.option("--branches", type=click.IntRange(min=1), help="Maximum branches; required for branches.")
@click.option("--share", type=float, help="Maximum share of the known objects or of the branches, such as 0.05.")
@click.option("--path", "paths", multiple=True, help="Prefix of paths, only for lifecycle; may be repeated.")
@click.option(
    "--until",
    type=click.DateTime(["%Y-%m-%d"]),
    required=True,
    help="Day on which it ends, at 00:00 UTC; at most a year ahead.",
)
@click.option("--by", "name", required=True, help="Your name, for reports.")
def grant(
    target: Target,
    as_json: bool,
    kind: str,
    objects: int | None,
    bytes_: int | None,
    branches: int | None,
    share: float | None,
    paths: tuple[str, ...],
    until: datetime,
    name: str,
) -> None:
    """Grants a standing approval for collection, branches or lifecycle; it replaces the one of the same kind.

    All given limits must hold for each deletion. Every guard and every check of live data still applies. With
    launch.approvers 2, it counts once a second person grants the same limits. Asks for confirmation unless --yes is
    given.
    """
    opened, work = target.open(), ApprovedWork(kind)
    limits = Limits(objects=objects, bytes=bytes_, branches=branches, share=share, paths=paths)
    ends_at = until.replace(tzinfo=UTC)
    granting.check(opened, work, limits, ends_at)
    for other, text in describe_all(opened):
        if other is work:
            show_progress(f"replaces: {text}")
    require_yes(f"Allow deletions for {kind} without asking: {limits}, until {ends_at:%F %T}Z?", "nothing was granted")
    approvers = target.loaded.configuration.launch.approvers
    approval = granting.grant(opened, work, limits, ends_at, name, approvers)
    void = why_void(opened, approval, approvers)
    _answer(as_json, kind, f"{approval}: {approval.limits}, {void or f'until {approval.until:%F %T}Z'}")


@approvals.command()
@on_repository
@JSON
@_KIND
def withdraw(target: Target, as_json: bool, kind: str) -> None:
    """Withdraws a standing approval at once, without a question. Work in progress stops before its next batch."""
    approval = granting.withdraw(target.open(to_read=True), ApprovedWork(kind))
    _answer(as_json, kind, "there was no standing approval" if approval is None else f"withdrawn: {approval}")


def _answer(as_json: bool, kind: str, text: str) -> None:
    print_answer(as_json, lambda: {kind: text}, [f"{kind}: {text}"])
