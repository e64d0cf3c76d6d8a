"""`lakefs-gc policy`: the retention rules of branches, and the number of commits that they keep."""

import difflib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import click

from lakefs_gc_assets.cli.common import (
    JSON,
    QUIET,
    YES,
    Target,
    TargetGroup,
    configuration_path,
    is_confirmed,
    on_repository,
    print_answer,
    print_result,
    progress_unless,
    require_yes,
)
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector import commits
from lakefs_gc_assets.collector.records.own_commits import list_own_commits
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.retention import retention
from lakefs_gc_assets.collector.retention import rules as retention_rules
from lakefs_gc_assets.collector.retention.active_commits import (
    date,
    in_words,
    kept_by_branch,
    kept_dangling,
    read_expired_before,
)
from lakefs_gc_assets.collector.retention.retention import Readings, Retention
from lakefs_gc_assets.collector.retention.rules import BranchRule, Policy, Rule, in_units
from lakefs_gc_assets.configuration_file import Loaded, default_file, load_all
from lakefs_gc_assets.deferred import imported
from lakefs_gc_assets.errors import ConfigurationError, LogLine, ServerUnavailable, counted
from lakefs_gc_assets.lakefs.api.models import RetentionRules

_FILE = click.Path(path_type=Path, dir_okay=False)
_SHOWN = 10
"""Maximum names in a line."""
_DIFFERENCES_SHOWN = 20
_DANGLING = "(dangling)"
_WIDEST_NAME = 60


@click.group(cls=TargetGroup)
def policy(file: Path | None, repository: str | None) -> None:
    """Shows, checks and sets the retention rules for replaced data."""


@policy.command()
@on_repository
@QUIET
@JSON
@click.argument("checked", metavar="[POLICY]", type=_FILE, required=False)
@click.pass_obj
def check(readers: Mapping[str, str], target: Target, quiet: bool, as_json: bool, checked: Path | None) -> None:
    """Checks a policy file, by default the configured one, and shows the commits that it would keep.

    A file given as argument is also checked without a configuration or a server. Then only the file itself is checked,
    and a line says so.

    Exit status 3 if the file cannot be read, 4 if a sweep with this policy would be refused.
    """
    file = checked or target.loaded.configuration.collection.retention_policy
    policy = retention_rules.load_policy(Path(file)) if file else Policy()
    parts = {key: [*map(str, imported(reader)(policy, str(file)))] for key, reader in readers.items()}
    note = progress_unless(quiet)
    in_force = read_rules(target, None, note) if checked is None else _check_file(target, checked, policy, note)
    in_force.lines.extend(f"{name}: {rule}" for name, rules in parts.items() for rule in rules)
    in_force.content.update(parts)
    in_force.print(as_json)
    if in_force.refused:
        sys.exit(Status.REFUSED)


@policy.command()
@on_repository
@QUIET
@JSON
def show(target: Target, quiet: bool, as_json: bool) -> None:
    """Shows the rule of each branch and how many commits it keeps."""
    read_rules(target, None, progress_unless(quiet)).print(as_json)


@policy.command("set")
@on_repository
@YES
@QUIET
@JSON
@click.argument("named", metavar="FILE|BRANCH")
@click.argument("duration", required=False)
def set_rules(target: Target, quiet: bool, as_json: bool, named: str, duration: str | None) -> None:
    """Sets the rule of one branch, or all of the repository's rules, after showing the commits that they would keep.

    With a duration, such as 20d, it sets the rule of a branch: in the policy file if the configuration names one, and
    then BRANCH may be a pattern; otherwise on the server. With one argument, it replaces the server's rules with those
    in a JSON file in the format of `lakectl gc set-config`. Invalid rules are refused.
    """
    change = Change(Path(named)) if duration is None else Change(None, named, duration)
    _set(target, change, quiet, as_json)


@policy.command("set-default")
@on_repository
@YES
@QUIET
@JSON
@click.argument("duration")
def set_default(target: Target, quiet: bool, as_json: bool, duration: str) -> None:
    """Sets the default rule, for branches without one and dangling commits: in the policy file, or on the server."""
    _set(target, Change(None, None, duration), quiet, as_json)


@policy.command()
@on_repository
@YES
@QUIET
@JSON
@click.argument("branch")
def unset(target: Target, quiet: bool, as_json: bool, branch: str) -> None:
    """Removes the rule of a branch; the remaining rules then apply to it: in the policy file, or on the server."""
    _set(target, Change(None, branch, None), quiet, as_json)


def _set(target: Target, change: "Change", quiet: bool, as_json: bool) -> None:
    """Shows the effects of a change, asks unless --yes is given, and sets the rules.

    Raises ConfigurationError if the rules were changed meanwhile.
    """
    change = replace(change, also_of=_others_with_its_policy(target))
    repository = target.open_to_look()
    api, path = repository.branches_api, repository.settings.retention_policy
    server = api.retention_rules()
    before: RetentionRules | str | None
    read: Callable[[], RetentionRules | str | None]
    if path and change.file is None:
        before = text = retention_rules.read_policy(Path(path))
        edited = retention_rules.edit_policy(text, path, change.branch, change.duration)
        old, new = ((server, retention_rules.parse_policy(each, path)) for each in (text, edited))
        diff = _diff(path, text.splitlines(), edited.splitlines())
        read, write = partial(retention_rules.read_policy, Path(path)), partial(_replace, Path(path), edited)
    else:
        before, rules, policy = server, change.of_server(server), retention.policy_of(repository.settings)
        old, new = (server, policy), (rules, policy)
        diff = _diff("the server's rules", _lines(server), _lines(rules))
        read, write = api.retention_rules, partial(api.set_retention_rules, rules)
    outcome, confirmed = _compare(repository, old, new, diff, change, progress_unless(quiet)), is_confirmed()
    if not (as_json and confirmed):
        outcome.print(as_json)
    require_yes("Set these rules?", "no rule was changed")
    if read() != before:
        raise ConfigurationError("another client changed the rules meanwhile, so nothing was set. Try again")
    write()
    if as_json and confirmed:
        outcome.print(as_json)
    elif not as_json:
        print_result("the rules are set")


def _others_with_its_policy(target: Target) -> tuple[str, ...]:
    """Other repositories of the configuration with the same policy file."""
    loaded = target.loaded
    if not loaded.configuration.collection.retention_policy:
        return ()

    def policy_of(each: Loaded) -> Path:
        return Path(each.configuration.collection.retention_policy).resolve()

    own = policy_of(loaded)
    labels = {each.configuration.label for each in load_all(configuration_path(target.file)) if policy_of(each) == own}
    return tuple(sorted(labels - {loaded.configuration.label}))


@dataclass(frozen=True)
class RulesInForce:
    """Rules and their effects.

    Attributes:
        lines: text for users.
        content: JSON for programs.
        refused: True if a sweep by these rules would be refused.
    """

    lines: list[str]
    content: dict[str, object]
    refused: bool

    def print(self, as_json: bool) -> None:
        """Prints the lines, or the content as JSON."""
        print_answer(as_json, lambda: self.content, self.lines)


def read_rules(target: Target, policy: Path | None, progress: LogLine) -> RulesInForce:
    """Reads the rules in force.

    Args:
        policy: a policy file that replaces the configured one.
    Raises:
        CollectionError.
    """
    changes = {} if policy is None else {"retention_policy": str(policy)}
    return rules_in_force(target.open_to_look(**changes), progress)


def rules_in_force(repository: OpenRepository, progress: LogLine) -> RulesInForce:
    """Reads the rules in force of an open repository. Raises CollectionError."""
    now = repository.clock.now()
    readings = retention.read(repository, now, progress)
    return _describe(repository, retention.retention(repository, readings, now), now)


def _check_file(target: Target, file: Path, policy: Policy, progress: LogLine) -> RulesInForce:
    """The rules in force with a policy file; only the file's rules if there is no configuration, or no server answers.

    Args:
        policy: the content of the file.
    Raises:
        CollectionError.
    """
    if target.file is None and default_file() is None:
        return _describe_file(file, policy, "there is no configuration")
    try:
        return read_rules(target, file, progress)
    except ServerUnavailable as failure:
        return _describe_file(file, policy, str(failure))


def _describe_file(file: Path, policy: Policy, why_alone: str) -> RulesInForce:
    kept = policy.keep_tags
    names = () if isinstance(kept, bool) else kept
    tags = ", ".join(names[:_SHOWN]) + (" …" if len(names) > _SHOWN else "")
    shown = [
        "no default" if policy.default is None else f"default {in_units(policy.default)}",
        f"branches: {counted(len(policy.rules), 'rules')}",
        f"tags that keep commits: {'all' if kept is True else tags or 'none'}",
        counted(len(policy.pinned), "pinned commits"),
        f"stale branches: {counted(len(policy.stale), 'rules')}",
    ]
    warning = f"only the file was checked, not its names and patterns against branches, tags and commits: {why_alone}"
    rules = [{"branch": rule.pattern, "line": rule.line, **_encode_rule(rule)} for rule in policy.rules]
    lines = [f"{file}: {'; '.join(shown)}", f"WARNING: {warning}"]
    content: dict[str, object] = {"file": str(file), "warnings": [warning], "rules": rules, "keep_tags": kept}
    return RulesInForce(lines, content, refused=False)


@dataclass(frozen=True, slots=True)
class Change:
    """A change of rules: replaces the server's rules by a file, or changes one rule.

    One rule is changed in the policy file if the settings name one, else on the server.

    Attributes:
        file: file with the server's new rules; None to change one rule.
        branch: branch of the rule; None for the default.
        duration: new duration; None to remove the rule.
        also_of: other repositories with the same policy file.
    """

    file: Path | None
    branch: str | None = None
    duration: str | None = None
    also_of: tuple[str, ...] = ()

    def of_server(self, rules: RetentionRules | None) -> RetentionRules:
        """The changed rules of the server. Raises ConfigurationError."""
        if self.file is None:
            return retention_rules.edit_server_rules(rules, self.branch, self.duration)
        if not self.file.exists():
            raise ConfigurationError(
                f"there is no file {self.file}. To set the rule of a branch, also give a duration: "
                f"`lakefs-gc policy set {self.file} 20d`"
            )
        return retention_rules.load_server_rules(self.file)


_Rules = tuple[RetentionRules | None, Policy]
"""The server's rules, and the policy that overrides them."""


def _lines(rules: RetentionRules | None) -> list[str]:
    if rules is None:
        return []
    return [f"default: {rules.default_days}d", *(f"{name}: {days}d" for name, days in sorted(rules.branches.items()))]


def _diff(name: str, before: list[str], after: list[str]) -> list[str]:
    return [*difflib.unified_diff(before, after, name, f"{name}, changed", lineterm="", n=1)]


def _replace(file: Path, text: str) -> None:
    """Writes a policy file atomically: a run that reads half a file would keep less. Raises ConfigurationError."""
    try:
        with click.open_file(str(file), "w", encoding="utf-8", atomic=True) as opened:
            opened.write(text)
    except OSError as error:
        raise ConfigurationError(f"cannot write policy file {file}: {error.strerror}") from None


def _compare(
    repository: OpenRepository, before: _Rules, after: _Rules, diff: list[str], change: Change, progress: LogLine
) -> RulesInForce:
    """The commits that changed rules keep, and the shortened retention compared with the rules before.

    Raises:
        ConfigurationError: a file names a branch that does not exist.
        CollectionError.
    """
    now, name = repository.clock.now(), repository.facts.id
    dump = commits.complete_dump(repository, now, progress)
    unknown = retention_rules.unknown_names(*after, dump.branches, dump.tags) if change.file else ()
    if unknown and not repository.settings.allow_rules_of_unknown_branches:
        raise ConfigurationError(
            f"{change.file}: {'; '.join(unknown)}. Correct the name, or set collection.allow_rules_of_unknown_branches"
        )
    written = retention.written_times(repository, dump.commits)
    expired, lifecycle = read_expired_before(repository.store, progress), list_own_commits(repository.store, name)
    readings = Readings(dump, *after, None, written, expired, lifecycle)
    kept = retention.retention(repository, readings, now)
    outcome = _describe(repository, kept, now)
    try:
        kept_before = retention.retention(repository, replace(readings, rules=before[0], policy=before[1]), now)
    except ConfigurationError:
        kept_before = None  # Invalid rules end every run, so nothing expires by them.
    expiring = ~kept.flags if kept_before is None else kept_before.flags & ~kept.flags
    shorter = _shortened(kept_before, kept)
    lines = [*diff]
    if shorter:
        named = ", ".join(shorter[:_SHOWN]) + (" …" if len(shorter) > _SHOWN else "")
        lines.append(f"SHORTER: {named}")
    if shorter or expiring.any():
        lines.append(f"commits that would now expire: {expiring.sum():,}")
    also_of = list(change.also_of) if change.file is None else []
    if also_of:
        lines.append(f"WARNING: this is also the policy of {', '.join(also_of)}, whose commits are not counted here")
    content = {"diff": diff, "shorter": shorter, "commits_expiring": int(expiring.sum()), "also_of": also_of}
    return RulesInForce([*outcome.lines, *lines], {**outcome.content, **content}, outcome.refused)


def _shortened(before: Retention | None, after: Retention) -> list[str]:
    """Branches, and dangling commits, whose data is kept for a shorter time than before."""
    if after.active is None:
        return []
    if before is None or before.active is None:
        return ["every commit stayed under the previous rules"]
    old, new = before.active.rules, after.active.rules
    pairs = [(name, old.branches[name], rule) for name, rule in sorted(new.branches.items())]
    shorter = []
    for name, first, second in [*pairs, (_DANGLING, old.default, new.default)]:
        if second.retention < first.retention:
            shorter.append(f"{name} by {in_units(first.retention - second.retention)} to {in_units(second.retention)}")
        elif any(dict(second.keeps).get(each, 0) < count for each, count in first.keeps) or (
            first.merged is not None and (second.merged is None or second.merged < first.merged)
        ):
            shorter.append(f"{name} to {in_units(second.retention)}{second.more}")
    return shorter


def _describe(repository: OpenRepository, retained: Retention, now: datetime) -> RulesInForce:
    definition = retention.define(retained, repository.settings, now)
    counts, tags, rules = definition.counts, retained.readings.policy.keep_tags, _rules_with_counts(retained, now)
    name, uri = repository.facts.id, repository.namespace.uri
    lines = [f"{name} at {uri}", *(f"WARNING: {warning}" for warning in definition.warnings), *_table(rules, now)]
    lines.append(definition.summary)
    if retained.active is not None:
        lines.append(
            f"tags keep {counted(counts['commits_tagged'], 'commits')}, the policy pins {counts['commits_pinned']:,}"
            + ("" if tags is True else f" (keep_tags: {', '.join(tags) if tags else 'false'})")
        )
    if definition.differences:
        lines.append(
            f"lakeFS's own list lacks {counted(counts['commits_by_definition_alone'], 'commits that stay')}, and has "
            f"{counts['commits_by_server_alone']:,} that only this list keeps"
        )
        lines += [f"  {difference}" for difference in definition.differences[:_DIFFERENCES_SHOWN]]
    lines += [*map(str, definition.stale), *definition.refusals()]
    content: dict[str, object] = {
        "repository": name,
        "storage_namespace": uri,
        "warnings": definition.warnings,
        "rules": [
            {
                "branch": branch,
                **_encode_rule(rule),
                "source": rule.source,
                "commits_kept": kept,
                "head_made_at": head_made_at,
            }
            for branch, rule, kept, head_made_at in rules
        ],
        "commits": {
            "known": counts["commits_known"],
            "kept": definition.live.commits,
            "expired": counts["commits_expired"],
            "tagged": counts["commits_tagged"],
            "pinned": counts["commits_pinned"],
            "kept_by_files_alone": counts["commits_by_files_alone"],
            "kept_by_doubt_alone": counts["commits_by_doubt_alone"],
        },
        "keep_tags": tags,
        "differences": [asdict(each) for each in definition.differences],
        "stale": [asdict(each) for each in definition.stale],
        "refused_by": [
            {"guard": each.guard, "figures": each.figures, "lifted_by": each.lifted_by} for each in definition.guards
        ],
    }
    return RulesInForce(lines, content, bool(definition.guards))


_RuleWithCount = tuple[str | None, Rule, int, datetime | None]
"""A branch (None for dangling commits), its rule, the number of commits that the rule alone keeps, and the head's date
(UTC)."""


def _rules_with_counts(retained: Retention, now: datetime) -> list[_RuleWithCount]:
    """The rules by branch, and then the rule of dangling commits; none if every commit stays."""
    if retained.active is None:
        return []
    graph, rules = retained.graph, retained.active.rules
    kept = kept_by_branch(graph, rules, now)
    return [
        *(
            (name, rule, kept[name], date(graph.commits, graph.heads[name]))
            for name, rule in sorted(rules.branches.items())
        ),
        (None, rules.default, kept_dangling(graph, rules, now), None),
    ]


def _table(rules: list[_RuleWithCount], now: datetime) -> Iterator[str]:
    """The rules as lines below a heading; no line without rules."""
    names = [_DANGLING if branch is None else branch for branch, *_ in rules]
    width = min(max(map(len, names), default=0), _WIDEST_NAME)
    if rules:
        yield f"{'branch':<{width}}  {'retention':>9}  {'commits':>9}  {'head':>15}  rule"
    for name, (_, rule, kept, head_made_at) in zip(names, rules, strict=True):
        age = "" if head_made_at is None else in_words(now - head_made_at)
        yield f"{name:<{width}}  {in_units(rule.retention):>9}  {kept:>9,}  {age:>15}  {rule.source}{rule.more}"


def _encode_rule(rule: Rule | BranchRule) -> dict[str, object]:
    """The rule for programs; durations in seconds."""
    second = timedelta(seconds=1)
    merged = None if rule.merged is None else rule.merged // second
    return {"retention_seconds": rule.retention // second, "keeps": dict(rule.keeps), "merged_seconds": merged}
