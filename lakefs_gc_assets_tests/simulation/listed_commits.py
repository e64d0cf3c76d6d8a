"""The servers' own list of commits that retention keeps, made as real servers make it, with their known gap."""

import csv
import io
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from lakefs_gc_assets.errors import NotFound
from lakefs_gc_assets.extensions.playground.embedded import collection
from lakefs_gc_assets.extensions.playground.embedded.collection import Rules
from lakefs_gc_assets.lakefs.api.models import PrepareCommitsTask, PreparedCommits
from lakefs_gc_assets_tests.simulation.clocks import moment
from lakefs_gc_assets_tests.simulation.lakefs_files import embedded_commit
from lakefs_gc_assets_tests.simulation.repository import Branch, Repository


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
