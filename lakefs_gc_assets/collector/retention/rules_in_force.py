"""Shows which rule applies to which branch, and how many commits it keeps, before anything is deleted."""

from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

from lakefs_gc_assets.collector.retention.active_commits import date, in_words, kept_by_branch, kept_dangling
from lakefs_gc_assets.collector.retention.policy import in_units
from lakefs_gc_assets.collector.retention.retention import LiveDefinition, Readings, Retention

_WIDEST_NAME = 60
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class RuleLine:
    """The rule of a branch or of dangling commits, how many commits it alone keeps, when the head was made (UTC).

    Attributes:
        branch: None for dangling commits.
    """

    branch: str | None
    retention: timedelta
    source: str
    kept: int
    head_made_at: datetime | None

    @property
    def name(self) -> str:
        """What a person is told that it is about."""
        return "(dangling)" if self.branch is None else self.branch


def rule_lines(found: Retention, now: datetime) -> tuple[RuleLine, ...]:
    """Branches by name, then dangling commits; nothing where every commit stays."""
    if found.active is None:
        return ()
    graph, rules = found.graph, found.active.rules
    kept = kept_by_branch(graph, rules, now)
    lines = [
        RuleLine(branch, rule.retention, rule.source, kept[branch], date(graph.commits, graph.heads[branch]))
        for branch, rule in sorted(rules.branches.items())
    ]
    dangling = RuleLine(None, rules.default.retention, rules.default.source, kept_dangling(graph, rules, now), None)
    return (*lines, dangling)


def encode(readings: Readings, found: Retention, definition: LiveDefinition, now: datetime) -> dict[str, object]:
    """The rules in force for programs: retention in seconds, times as datetimes; dangling commits have no branch."""
    return {
        "warnings": definition.warnings,
        "rules": [
            {
                "branch": line.branch,
                "retention_seconds": line.retention // timedelta(seconds=1),
                "source": line.source,
                "commits_kept": line.kept,
                "head_made_at": line.head_made_at,
            }
            for line in rule_lines(found, now)
        ],
        "commits": {
            "known": definition.counts["commits_known"],
            "kept": definition.live.commits,
            "expired": definition.counts["commits_expired"],
            "tagged": definition.counts["commits_tagged"],
            "pinned": definition.counts["commits_pinned"],
            "kept_by_files_alone": definition.counts["commits_by_files_alone"],
        },
        "keep_tags": readings.policy.keep_tags,
        "differences": [asdict(each) for each in definition.differences],
        "stale": [asdict(each) for each in definition.stale],
        "refused_by": [
            {"guard": each.guard, "figures": each.figures, "lifted_by": each.lifted_by} for each in definition.guards
        ],
    }


def described(readings: Readings, found: Retention, definition: LiveDefinition, now: datetime) -> list[str]:
    """The rules in force, as lines."""
    lines = [f"WARNING: {warning}" for warning in definition.warnings]
    rules = rule_lines(found, now)
    width = min(max((len(line.name) for line in rules), default=0), _WIDEST_NAME)
    if rules:
        lines.append(f"{'branch':<{width}}  {'retention':>9}  {'commits':>9}  {'head':>15}  rule")
    for line in rules:
        age = "" if line.head_made_at is None else in_words(now - line.head_made_at)
        lines.append(f"{line.name:<{width}}  {in_units(line.retention):>9}  {line.kept:>9,}  {age:>15}  {line.source}")
    counts = definition.counts
    lines.append(
        f"of {counts['commits_known']:,} commits {definition.live.commits:,} stay, "
        f"{counts['commits_expired']:,} are expired"
    )
    if found.active is not None:
        lines.append(
            f"tags keep {counts['commits_tagged']:,} commits, the policy pins {counts['commits_pinned']:,}"
            + ("" if readings.policy.keep_tags else " (keep_tags: false)")
        )
    if definition.differences:
        lines.append(
            f"lakeFS's own list lacks {counts['commits_by_definition_alone']:,} commits that stay, and has "
            f"{counts['commits_by_server_alone']:,} that nothing else keeps"
        )
        lines += [f"  {difference}" for difference in definition.differences[:_SHOWN]]
    lines += [str(stale) for stale in definition.stale]
    return lines + [f"a sweep would be refused: {guard}" for guard in definition.guards]
