"""Answers of servers to a collector about refs and retention, to check its conclusions.

Servers make their own list of the commits that retention keeps as real servers make it, with its known gap.
"""

import csv
import io
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from lakefs_gc_assets.errors import NotFound
from lakefs_gc_assets.extensions.playground.embedded import collection
from lakefs_gc_assets.extensions.playground.embedded.collection import Rules
from lakefs_gc_assets.lakefs.api.models import Commit, PrepareCommitsTask, PreparedCommits, RetentionRules
from lakefs_gc_assets_tests.simulation.clocks import moment
from lakefs_gc_assets_tests.simulation.lakefs_files import embedded_commit
from lakefs_gc_assets_tests.simulation.repository import Branch, Repository


@dataclass
class ServerAnswers:
    """The last complete refs dump, and the answers after it.

    Attributes:
        branches, tags: commit by name.
        commits: commits of the dump, and those missing from it that the collector fetched.
        fetched: ids of fetched commits; their dates are cut to seconds, and count as the latest in that second.
        asked_rules: True if rules were requested since; they may be None.
        listed: ids in the server's own list of commits that stay; None without a list.
        before: branches, tags and rules reported before uncommitted data was prepared; None if there were none.
        written: write time of each file in the metadata folder, by the last listing; seconds by the store's clock.
    """

    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    commits: dict[str, Commit] = field(default_factory=dict)
    fetched: set[str] = field(default_factory=set)
    asked_rules: bool = False
    rules: RetentionRules | None = None
    listed: frozenset[str] | None = None
    before: "ServerAnswers | None" = None
    written: Mapping[str, float] = field(default_factory=dict)

    def as_before(self) -> "ServerAnswers | None":
        """The same commits with the earlier branches, tags and rules; None without earlier answers."""
        if self.before is None:
            return None
        before = self.before
        return replace(self, branches=before.branches, tags=before.tags, rules=before.rules, listed=None, before=None)

    def claims(self) -> dict[str, float]:
        """The date that each commit claims."""
        return {
            id_: commit.creation_date + (0.999_999_999 if id_ in self.fetched else 0.0)
            for id_, commit in self.commits.items()
        }

    def dates(self, now: float) -> dict[str, float]:
        """Dates of commits, as far as the collector can know."""
        return effective_dates(self.commits, self.claims(), self.written, now)


def effective_dates(
    commits: Mapping[str, Commit], claims: Mapping[str, float], written: Mapping[str, float], now: float
) -> dict[str, float]:
    """The latest known dates of commits.

    A commit is made after its parents, and after its metarange was written. A parent's own claim counts only if it can
    be true: nothing was made in the future.

    Args:
        written: write time by metarange, seconds by the store's clock; one not listed may have been written just now.
        now: a claim later than this counts for its own commit only.
    """
    proved: dict[str, float] = {}
    open_ = [*commits]
    while open_:
        id_ = open_[-1]
        missing = [parent for parent in commits[id_].parents if parent in commits and parent not in proved]
        if missing:
            open_ += missing
            continue
        open_.pop()
        said = claims[id_] if claims[id_] <= now else -math.inf
        before = [proved[parent] for parent in commits[id_].parents if parent in commits]
        proved[id_] = max(said, written.get(commits[id_].metarange_id, -math.inf), *before)
    unknown = {id_ for id_, commit in commits.items() if commit.metarange_id and commit.metarange_id not in written}
    return {id_: max(claims[id_], date, now if id_ in unknown else date) for id_, date in proved.items()}


@dataclass
class ListedCommits:
    """Makes such lists in the background.

    Attributes:
        vanished: returns the commits that the server does not know.
        made: the commit ids in each list, by its run id.
        asked: number of status requests for each task.
        answers: results of ended tasks.
    """

    repository: Repository
    vanished: Callable[[], Collection[str]]
    made: dict[str, frozenset[str]] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)
    answers: dict[str, PrepareCommitsTask] = field(default_factory=dict)

    def start(self) -> str:
        """Begins a list; returns its task."""
        self.asked.append(0)
        return str(len(self.asked) - 1)

    def state(
        self, task: str, now: float, run_id: str, branches: Mapping[str, Branch], *, fails: bool, old: bool
    ) -> PrepareCommitsTask:
        """Returns the state of a task: running at the first request, ended at the second."""
        self.asked[int(task)] += 1
        if self.asked[int(task)] == 1:
            return PrepareCommitsTask(False)
        if task not in self.answers:
            try:
                result = None if fails else self.write(now, run_id, branches, old=old)
                self.answers[task] = PrepareCommitsTask(True, "failed" if fails else None, result)
            except NotFound as refusal:
                self.answers[task] = PrepareCommitsTask(True, str(refusal))
        return self.answers[task]

    def write(self, now: float, run_id: str, branches: Mapping[str, Branch], *, old: bool) -> PreparedCommits:
        """Writes a list by a server's clock.

        Args:
            branches: the branches that the server knows.
            old: as servers before v0.101: expired commits too, and no metaranges.

        Raises:
            NotFound: there are no rules.
        """
        repository = self.repository
        if repository.rules is None:
            raise NotFound("get gc rules: not found")
        vanished = self.vanished()
        commits = sorted(repository.commits.items())
        every = {id_: record.facts for id_, record in commits if id_ not in vanished}
        heads = {name: branch.commit_id for name, branch in branches.items()}
        rules = Rules(repository.rules.default_days, dict(repository.rules.branches))
        active = collection.active_commits(heads, map(embedded_commit, every.values()), rules, moment(now))
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if old:
            writer.writerow(("commit_id", "expired"))
            writer.writerows((id_, str(id_ not in active).lower()) for id_ in every)
        else:
            writer.writerow(collection.COMMITS_HEADER)
            writer.writerows((id_, "false", every[id_].metarange_id) for id_ in every if id_ in active)
        key = f"_lakefs/retention/gc/commits/run_id={run_id}/commits.csv"
        repository.bucket.put(key, text.getvalue().encode())
        self.made[run_id] = frozenset(active)
        return PreparedCommits(run_id, repository.uri + key)
