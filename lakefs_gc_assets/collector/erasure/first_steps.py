"""Does on the server what must be done before addresses can be erased: resets, deletions at paths, deletions of tags.

Each step is shown and approved by itself. Right before, the server is asked again: what is not as it was shown is left.
Rules of retention are changed by `lakefs-gc policy set`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from lakefs_gc_assets.collector.erasure.find import By, Finding
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.errors import CollectionError, counted
from lakefs_gc_assets.lakefs.addresses import AddressType

_PATHS_SHOWN = 20
# What is staged is reset first, since a commit takes along all that is staged on its branch.
_ORDER = (By.STAGED, By.BRANCH, By.TAG)


@dataclass(frozen=True, slots=True)
class FirstStep:
    """One change of a branch or tag, after which it holds some addresses no more.

    Attributes:
        paths: the address at each path; empty for a tag.
    """

    repository: str
    by: By
    name: str
    paths: Mapping[str, str]

    def __str__(self) -> str:
        if self.by is By.TAG:
            return f"delete tag {self.name} of {self.repository}"
        named = ", ".join(islice(self.paths, _PATHS_SHOWN))
        more = f" and {len(self.paths) - _PATHS_SHOWN:,} more" if len(self.paths) > _PATHS_SHOWN else ""
        where = f"on branch {self.name} of {self.repository}"
        if self.by is By.STAGED:
            return f"reset what is staged {where} at {named}{more}"
        return f"delete {where}, and commit: {named}{more}"


def list_first_steps(finding: Finding) -> tuple[FirstStep, ...]:
    """The steps for what holds the addresses, each branch and tag once; none for paths that are no text."""
    steps: dict[tuple[str, By, str], dict[str, str]] = {}
    for held in finding.addresses:
        for holder in held.holders:
            if holder.by in _ORDER:
                paths = steps.setdefault((holder.repository, holder.by, holder.name), {})
                if holder.by is not By.TAG and holder.path and "\ufffd" not in holder.path:
                    paths[holder.path] = held.address
    made = (FirstStep(*place, paths) for place, paths in steps.items() if paths or place[1] is By.TAG)
    return tuple(sorted(made, key=lambda step: (_ORDER.index(step.by), step.repository, step.name)))


def take_first_step(repository: OpenRepository, step: FirstStep) -> str:
    """Does it; returns what was done. `repository` is the one whose addresses are to be erased.

    Raises:
        CollectionError: something else is at a path by now, a commit would take along what others staged, or the
            server refuses.
    """
    (opened,) = (each for each in (repository, *repository.others) if each.facts.id == step.repository)
    api = opened.branches_api
    if step.by is By.TAG:
        commit_id = next((tag.commit_id for tag in opened.api.tags() if tag.id == step.name), None)
        if commit_id is None:
            return f"there is no tag {step.name} any more"
        api.delete_tag(step.name)
        return f"deleted tag {step.name}, which named commit {commit_id}"
    if step.by is By.BRANCH:
        _require_nothing_else_staged(opened, step)
    there = [path for path, address in step.paths.items() if _is_there(repository, opened, step.name, path, address)]
    for path in there:
        (api.reset_path if step.by is By.STAGED else api.delete_path)(step.name, path)
    if step.by is By.STAGED:
        return f"reset {counted(len(there), 'paths')} on branch {step.name}"
    # Somebody may have staged something meanwhile.
    _require_nothing_else_staged(opened, step)
    api.commit_changes(step.name, f"Delete {counted(len(step.paths), 'paths')} that are to be erased")
    return f"deleted {counted(len(step.paths), 'paths')} on branch {step.name}, and committed"


def _require_nothing_else_staged(opened: OpenRepository, step: FirstStep) -> None:
    for change in opened.api.changes(step.name):
        if change.type != "removed" or change.path not in step.paths:
            raise CollectionError(
                f"branch {step.name} of {step.repository} has other uncommitted changes, such as {change.path}: a "
                "commit would take them along. Commit or reset them first, and look again"
            )


def _is_there(repository: OpenRepository, opened: OpenRepository, branch: str, path: str, address: str) -> bool:
    """True if the branch shows the address at the path; false where it shows nothing.

    Raises CollectionError where it shows another object.
    """
    stats = opened.api.stat(branch, path)
    if stats is None:
        return False
    if address not in repository.namespace.live_keys(stats.physical_address, AddressType.FULL):
        raise CollectionError(
            f"{path} on branch {branch} of {opened.facts.id} is another object by now, and was left: look again"
        )
    return True
