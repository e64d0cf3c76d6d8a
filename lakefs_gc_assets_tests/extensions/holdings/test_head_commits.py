from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from lakefs_gc_assets.errors import NotFound
from lakefs_gc_assets.extensions.holdings import head_commits
from lakefs_gc_assets.extensions.holdings.head_commits import NewCommits, find_new_commits
from lakefs_gc_assets.lakefs.api.models import Branch, Commit


@dataclass
class ServedCommits:
    """A server with a line of commits, m0 as metarange of c0, and branches."""

    heads: dict[str, str]
    parents: Mapping[str, tuple[str, ...]]
    asked: list[str] = field(default_factory=list)

    def branches(self) -> tuple[Branch, ...]:
        return tuple(Branch(*each) for each in sorted(self.heads.items()))

    def commit(self, commit_id: str) -> Commit:
        self.asked.append(commit_id)
        if commit_id not in self.parents:
            raise NotFound("gone")
        number = int(commit_id[1:])
        return Commit(commit_id, f"m{number}", self.parents[commit_id], number, generation=number)

    def find(self, heads: dict[str, str], known: dict[str, str] | None, lines: list[str] | None = None) -> NewCommits:
        api: Any = self
        return find_new_commits(api, heads, known, (lines if lines is not None else []).append)


LINE: dict[str, tuple[str, ...]] = {f"c{number}": (f"c{number - 1}",) if number else () for number in range(6)}


def test_commits_after_the_run_do_not_count() -> None:
    served = ServedCommits({"main": "c5"}, LINE)
    found = served.find({"main": "m3"}, {"main": "c1"})
    assert (found.branches, [commit.id for commit in found.commits]) == ({"main": "c3"}, ["c2", "c3"])
    assert served.asked == ["c5", "c4", "c3", "c2", "c1"]


def test_known_head_needs_no_call_and_first_time_has_no_new_commits() -> None:
    served = ServedCommits({"main": "c5"}, LINE)
    assert (served.find({"main": "m5"}, {"main": "c5"}).branches, served.asked) == ({"main": "c5"}, [])
    found = served.find({"main": "m4"}, None)
    assert (found.branches, found.commits, served.asked) == ({"main": "c4"}, (), ["c5", "c4"])


def test_merge_brings_what_came_from_a_branch_that_has_gone() -> None:
    served = ServedCommits({"main": "c3"}, {**LINE, "c3": ("c1", "c2")})
    assert [commit.id for commit in served.find({"main": "m3"}, {"main": "c1"}).commits] == ["c3"]


def test_branch_on_its_way_or_with_a_lost_commit_is_left_out() -> None:
    lost = {name: parents for name, parents in LINE.items() if name != "c2"}
    served = ServedCommits({"main": "c3", "later": "c5"}, lost)
    found = served.find({"main": "m3", "gone": "m1"}, {"main": "c1"})
    assert (found.branches, [commit.id for commit in found.commits]) == ({"main": "c3"}, ["c3"])
    # What it has may have come with the lost commit.
    assert not found.branch_of


def test_limit_of_calls_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_commits, "MOST_COMMITS", 2)
    served, lines = ServedCommits({"main": "c5"}, LINE), list[str]()
    found = served.find({"main": "m5"}, {"main": "c0"}, lines)
    assert ([commit.id for commit in found.commits], found.branch_of) == (["c4", "c5"], {"c5": "main"})
    assert len(served.asked) == 2 and "unknown which older ones" in lines[0]
