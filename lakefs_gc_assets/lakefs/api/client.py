"""The collector's port to lakeFS, on the server's REST API through `lakefs-sdk`."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

from lakefs_gc_assets.deferred import deferred
from lakefs_gc_assets.errors import ConfigurationError, LakeFSError, NotSupported, UnknownPath
from lakefs_gc_assets.lakefs.api import parsing
from lakefs_gc_assets.lakefs.api.models import (
    OBJECTS_ON_PAGE,
    Branch,
    Commit,
    DiffEntry,
    ObjectsPage,
    ObjectStats,
    PrepareCommitsTask,
    PreparedCommits,
    PullRequest,
    RefsDump,
    RepositoryFacts,
    RetentionRules,
    ServerClocks,
    UncommittedPage,
)
from lakefs_gc_assets.lakefs.api.parsing import Answer, Call, Fields
from lakefs_gc_assets.settings import LakeFSSettings

if TYPE_CHECKING:
    import lakefs_sdk

    from lakefs_gc_assets.lakefs.api import transport
else:
    # Importing the SDK takes more than a second, so it is deferred until a server is called.
    lakefs_sdk, transport = deferred("lakefs_sdk"), deferred("lakefs_gc_assets.lakefs.api.transport")

_PAGE = 1000
UNKNOWN_GRACE_PERIOD = timedelta(hours=24)
"""Longer than the grace period of any lakeFS version without this endpoint."""
_NO_RULES = re.compile("not found")
_PREPARE_COMMITS = "retention:PrepareGarbageCollectionCommits"
_NO_SUCH_OBJECT = re.compile(r"(?!.*ambiguous)(?:.*: )?(?:(?:path|object|entry|branch|reference|commit) )?not found")
_ANY_MESSAGE = re.compile(".*", re.DOTALL)


class LakeFSClient:
    """`LakeFSApi` of one repository, and calls that change branches and tags. Thread-safe.

    Calls are retried after broken connections, timeouts, 429 and 5xx, because repeating them is harmless (a repeated
    page of a preparation leaves an extra file). Calls that change branches and tags are never retried, except
    `delete_paths`, which may be repeated. Answers are parsed strictly. `LakeFSApi` documents the errors of its methods.
    """

    def __init__(self, settings: LakeFSSettings, repository: str, clock: "transport.Now") -> None:
        """Sends no request. Raises ConfigurationError if the endpoint or the repository's name is invalid."""
        if not repository:
            raise ConfigurationError("repository is not set: name the lakeFS repository to collect")
        self.server_clocks = ServerClocks()
        self._repository = repository
        self._caller = transport.Caller(settings, clock, self.server_clocks)
        sdk = self._caller.sdk
        self._repositories = lakefs_sdk.RepositoriesApi(sdk)
        self._internal = lakefs_sdk.InternalApi(sdk)
        self._branches = lakefs_sdk.BranchesApi(sdk)
        self._tags = lakefs_sdk.TagsApi(sdk)
        self._objects = lakefs_sdk.ObjectsApi(sdk)
        self._commits = lakefs_sdk.CommitsApi(sdk)
        self._refs = lakefs_sdk.RefsApi(sdk)
        self._pulls = lakefs_sdk.PullsApi(sdk)
        self._actions = lakefs_sdk.ActionsApi(sdk)

    def __repr__(self) -> str:
        return f"LakeFSClient({self._repository!r} at {self._caller.endpoint})"

    def repository(self) -> RepositoryFacts:
        """The repository. Raises NotFound if it does not exist."""
        call = self._call("GET", "", "fs:ReadRepository")
        fields = self._fields(call, self._repositories.get_repository_with_http_info, self._repository)
        repository = parsing.repository(fields)
        if repository.id != self._repository:
            raise fields.wrong("id", f"is {repository.id!r} although {self._repository!r} was asked for")
        return repository

    def repositories(self) -> tuple[RepositoryFacts, ...]:
        """Every repository that this user may see, sorted by name."""
        call = Call("GET", "/repositories", "fs:ListRepositories")
        results = self._pages(call, self._repositories.list_repositories_with_http_info)
        return tuple(sorted(map(parsing.repository, results), key=lambda repository: repository.id))

    def grace_period(self) -> timedelta:
        """Period after its issue in which an address may still be linked.

        UNKNOWN_GRACE_PERIOD if the server lacks the endpoint, because it may still accept links.
        """
        call = Call("GET", "/config/garbage-collection", "fs:ReadConfig")
        operation = self._internal.get_garbage_collection_config_with_http_info
        fields = self._fields_unless_absent(call, operation, absent=_ANY_MESSAGE)
        return UNKNOWN_GRACE_PERIOD if fields is None else parsing.grace_period(fields)

    def prepare_uncommitted(self, continuation_token: str | None) -> UncommittedPage:
        """Makes the server write the next part of its uncommitted data."""
        call = self._call("POST", "/gc/prepare_uncommited", "retention:PrepareGarbageCollectionUncommitted")
        operation = self._internal.prepare_garbage_collection_uncommitted_with_http_info
        request = lakefs_sdk.PrepareGCUncommittedRequest(continuation_token=continuation_token)
        return parsing.uncommitted_page(self._fields(call, operation, self._repository, request))

    def branches(self) -> tuple[Branch, ...]:
        """Every branch, hidden ones included, sorted by name."""
        call = self._call("GET", "/branches", "fs:ListBranches")
        results = self._pages(call, self._branches.list_branches_with_http_info, self._repository, show_hidden=True)
        return tuple(sorted(map(parsing.branch, results), key=lambda branch: branch.id))

    def visible_branches(self) -> frozenset[str]:
        """Names of the branches that are not hidden. A branch is known to be hidden only by its absence here."""
        call = self._call("GET", "/branches", "fs:ListBranches")
        results = self._pages(call, self._branches.list_branches_with_http_info, self._repository, show_hidden=False)
        return frozenset(parsing.branch(each).id for each in results)

    def branch(self, name: str) -> Branch | None:
        """A branch; None only if lakeFS itself says that it does not exist. Any other 404 raises NotFound."""
        call = self._call("GET", f"/branches/{name}", "fs:ReadBranch")
        fields = self._fields_unless_absent(call, self._branches.get_branch_with_http_info, self._repository, name)
        if fields is None:
            return None
        branch = parsing.branch(fields)
        if branch.id != name:
            raise fields.wrong("id", f"is {branch.id!r}, which was not asked for")
        return branch

    def protection_patterns(self) -> tuple[str, ...]:
        """The patterns of the repository's branch protection rules."""
        call = self._call("GET", "/settings/branch_protection", "branches:GetBranchProtectionRules")
        operation = self._repositories.get_branch_protection_rules_with_http_info
        return parsing.protection_patterns(call, self._caller.ask(call, operation, self._repository).body)

    def open_pull_requests(self) -> tuple[PullRequest, ...]:
        """Open pull requests; empty if the server does not support them."""
        call = self._call("GET", "/pulls?status=open", "pr:ListPullRequests")
        operation = self._pulls.list_pull_requests_with_http_info
        try:
            every = [*map(parsing.open_pull_request, self._pages(call, operation, self._repository, status="open"))]
        except (NotSupported, UnknownPath):
            return ()
        return tuple(pull for pull in every if pull is not None)

    def open_pull_request(self, source: str, destination: str, title: str, description: str) -> str:
        """Opens a pull request between two branches; returns its id. Raises NotSupported or UnknownPath."""
        call = self._call("POST", "/pulls", "pr:WritePullRequest")
        body = lakefs_sdk.PullRequestCreation(
            title=title, description=description, source_branch=source, destination_branch=destination
        )
        operation = self._pulls.create_pull_request_with_http_info
        return self._fields(call, operation, self._repository, body, once=True).text("id")

    def pull_request(self, pull_id: str) -> PullRequest:
        """A pull request of any status. Raises NotFound."""
        call = self._call("GET", f"/pulls/{pull_id}", "pr:ReadPullRequest")
        operation = self._pulls.get_pull_request_with_http_info
        return parsing.pull_request(self._fields(call, operation, self._repository, pull_id))

    def close_pull_request(self, pull_id: str) -> None:
        """Closes a pull request without merging it."""
        call = self._call("PATCH", f"/pulls/{pull_id}", "pr:WritePullRequest")
        body = lakefs_sdk.PullRequestBasic(status="closed")
        operation = self._pulls.update_pull_request_with_http_info
        self._caller.ask(call, operation, self._repository, pull_id, body, once=True)

    def last_action_run(self, branch: str, ignored: Collection[str] = ()) -> datetime | None:
        """When the last run of hooks on a branch began, UTC; None if the server has none, or does not support them.

        Args:
            ignored: ids of commits whose runs do not count.
        """
        call = self._call("GET", f"/actions/runs?branch={branch}", "ci:ReadAction")
        operation = self._actions.list_repository_runs_with_http_info
        try:
            # The newest run comes first.
            if not ignored:
                runs, _ = _page(self._fields(call, operation, self._repository, branch=branch, amount=1))
            else:
                every = self._pages(call, operation, self._repository, branch=branch)
                runs = [*islice((run for run in every if run.text("commit_id", empty=True) not in ignored), 1)]
        except (NotSupported, UnknownPath):
            return None
        return max(map(parsing.action_run_started_at, runs), default=None)

    def delete_branch(self, name: str) -> None:
        """Deletes a branch with its uncommitted data; its commits stay, dangling.

        A missing branch is accepted, if lakeFS itself says so.
        """
        call = self._call("DELETE", f"/branches/{name}", "fs:DeleteBranch")
        operation = self._branches.delete_branch_with_http_info
        answer = self._caller.ask(call, operation, self._repository, name, accepted=frozenset({404}), once=True)
        if answer.meaning == 404:
            self._require_absence(call, answer)

    def create_branch(self, name: str, commit_id: str, hidden: bool) -> None:
        """Creates a branch at a commit."""
        call = self._call("POST", "/branches", "fs:CreateBranch")
        body = lakefs_sdk.BranchCreation(name=name, source=commit_id, hidden=hidden)
        self._caller.ask(call, self._branches.create_branch_with_http_info, self._repository, body, once=True)

    def delete_path(self, branch: str, path: str) -> None:
        """Deletes the object at a path of a branch; the deletion is uncommitted."""
        call = self._call("DELETE", f"/branches/{branch}/objects?path={path}", "fs:DeleteObject")
        self._caller.ask(call, self._objects.delete_object_with_http_info, self._repository, branch, path, once=True)

    def reset_path(self, branch: str, path: str) -> None:
        """Resets the staged change at a path."""
        call = self._call("PUT", f"/branches/{branch}", "fs:RevertBranch")
        body = lakefs_sdk.ResetCreation(type="object", path=path, force=False)
        self._caller.ask(call, self._branches.reset_branch_with_http_info, self._repository, branch, body, once=True)

    def delete_paths(self, branch: str, paths: Sequence[str]) -> tuple[tuple[str, str], ...]:
        """Deletes objects at up to OBJECTS_ON_PAGE paths of a branch; the deletions are uncommitted.

        A path without an object is accepted. Returns the refused paths, each with the server's reason.
        """
        call = self._call("POST", f"/branches/{branch}/objects/delete", "fs:DeleteObject")
        body = lakefs_sdk.PathList(paths=list(paths))
        fields = self._fields(call, self._objects.delete_objects_with_http_info, self._repository, branch, body)
        return tuple(map(parsing.refused_path, fields.items("errors")))

    def commit_changes(self, branch: str, message: str, metadata: Mapping[str, str] | None = None) -> None:
        """Commits all staged changes of a branch."""
        call = self._call("POST", f"/branches/{branch}/commits", "fs:CreateCommit")
        body = lakefs_sdk.CommitCreation(
            message=message, metadata=dict(metadata or {}), date=None, allow_empty=False, force=False
        )
        self._caller.ask(call, self._commits.commit_with_http_info, self._repository, branch, body, once=True)

    def revert(self, branch: str, commit_id: str) -> None:
        """Reverts the changes of a commit since its first parent, in a new commit on the branch."""
        call = self._call("POST", f"/branches/{branch}/revert", "fs:RevertBranch")
        body = lakefs_sdk.RevertCreation(ref=commit_id, parent_number=1, force=False, allow_empty=False)
        self._caller.ask(call, self._branches.revert_branch_with_http_info, self._repository, branch, body, once=True)

    def squash_merge(
        self, source: str, branch: str, message: str, metadata: Mapping[str, str], strategy: str = ""
    ) -> str:
        """Merges a branch into another one as one commit; returns its id.

        Servers before 1.48 ignore `squash_merge`: their commit has the source as a second parent.

        Args:
            strategy: side that wins a conflict, `dest-wins` or `source-wins`; empty for none.
        Raises:
            Conflict: both branches changed a path differently, and there is no strategy.
            HookFailed: a hook of the repository refused the merge.
            LakeFSError: the branch has uncommitted changes, the source has no changes, or the call failed.
        """
        call = self._call("POST", f"/refs/{source}/merge/{branch}", "fs:CreateCommit")
        body = lakefs_sdk.Merge(
            message=message,
            metadata=dict(metadata),
            strategy=strategy,
            squash_merge=True,
            force=False,
            allow_empty=False,
        )
        operation = self._refs.merge_into_branch_with_http_info
        return self._fields(call, operation, self._repository, source, branch, body, once=True).text("reference")

    def merge_base(self, source: str, branch: str) -> str:
        """The commit on which a merge of a reference into a branch would be based."""
        call = self._call("GET", f"/refs/{source}/merge/{branch}", "fs:ListCommits")
        operation = self._refs.find_merge_base_with_http_info
        return self._fields(call, operation, self._repository, source, branch).text("base_commit_id")

    def merge_changes(self, source: str, branch: str) -> Iterator[DiffEntry]:
        """Changes that a merge of a reference into a branch would make, in order of path."""
        call = self._call("GET", f"/refs/{branch}/diff/{source}", "fs:ListObjects")
        operation = self._refs.diff_refs_with_http_info
        return map(parsing.change, self._pages(call, operation, self._repository, branch, source, type="three_dot"))

    def delete_tag(self, name: str) -> None:
        """Deletes a tag; its commit stays."""
        call = self._call("DELETE", f"/tags/{name}", "fs:DeleteTag")
        self._caller.ask(call, self._tags.delete_tag_with_http_info, self._repository, name, once=True)

    def tags(self) -> tuple[Branch, ...]:
        """Every tag, sorted by name."""
        call = self._call("GET", "/tags", "fs:ListTags")
        results = self._pages(call, self._tags.list_tags_with_http_info, self._repository)
        return tuple(sorted(map(parsing.branch, results), key=lambda tag: tag.id))

    def first_change(self, branch: str) -> DiffEntry | None:
        """The first uncommitted change of a branch (`diff?amount=1`); None if there is none."""
        call = self._diff_call(branch)
        fields = self._fields(call, self._branches.diff_branch_with_http_info, self._repository, branch, amount=1)
        entries, next_offset = _page(fields)
        if not entries and next_offset is not None:
            raise fields.wrong("results", "is empty although the server has more")
        return parsing.change(entries[0]) if entries else None

    def changes(self, branch: str) -> Iterator[DiffEntry]:
        """Every uncommitted change of a branch, in order of path."""
        operation = self._branches.diff_branch_with_http_info
        return map(parsing.change, self._pages(self._diff_call(branch), operation, self._repository, branch))

    def stat(self, reference: str, path: str) -> ObjectStats | None:
        """The object at a path of a branch or commit, staged changes included.

        None only if lakeFS itself says that there is none; any other 404 raises NotFound. An object that lakeFS reports
        as gone (410) still has its address.
        """
        call = self._call("GET", f"/refs/{reference}/objects/stat?path={path}", "fs:ReadObject")
        operation = self._objects.stat_object_with_http_info
        fields = self._fields_unless_absent(call, operation, self._repository, reference, path, gone=True)
        if fields is None:
            return None
        stats = parsing.stats(fields)
        if stats.path != path:
            raise fields.wrong("path", f"is {stats.path!r}, which was not asked for")
        return stats

    def list_objects(self, reference: str, after: str, prefix: str = "") -> ObjectsPage:
        """At most OBJECTS_ON_PAGE objects of a branch or commit after a path, staged changes included.

        Only objects whose path begins with `prefix`. Empty if lakeFS itself says that the branch or commit does not
        exist; any other 404 raises NotFound.
        """
        call = self._call("GET", f"/refs/{reference}/objects/ls?prefix={prefix}&after={after}", "fs:ListObjects")
        operation = self._objects.list_objects_with_http_info
        query: dict[str, Any] = {"user_metadata": False, "presign": False, "after": after, "amount": OBJECTS_ON_PAGE}
        if prefix:
            query["prefix"] = prefix
        fields = self._fields_unless_absent(call, operation, self._repository, reference, **query)
        if fields is None:
            return ObjectsPage((), more=False)
        results, next_offset = _page(fields)
        objects = tuple(map(parsing.listed_object, results))
        paths = [after, *(each.path for each in objects)]
        # Strings compare in the order of their UTF-8 bytes.
        if any(path <= before for before, path in pairwise(paths)):
            raise fields.wrong("results", "is not in order of paths, or begins before the path that was asked for")
        if not objects and next_offset is not None:
            raise fields.wrong("results", "is empty although the server has more")
        return ObjectsPage(objects, more=next_offset is not None)

    def _fields_unless_absent(
        self,
        call: Call,
        operation: Callable[..., Any],
        *arguments: str,
        absent: re.Pattern[str] = _NO_SUCH_OBJECT,
        gone: bool = False,
        **query: Any,
    ) -> Fields | None:
        """The fields of an answer; None for a 404 with lakeFS's own message. Any other 404 raises NotFound.

        Args:
            absent: pattern of lakeFS's messages for something that does not exist.
            gone: True if a 410 has fields too.
        """
        accepted = frozenset({404, 410} if gone else {404})
        answer = self._caller.ask(call, operation, *arguments, accepted=accepted, **query)
        if answer.meaning == 404:
            self._require_absence(call, answer, absent)
            return None
        return Fields.read(call, answer.body)

    def _require_absence(self, call: Call, answer: Answer, absent: re.Pattern[str] = _NO_SUCH_OBJECT) -> None:
        """Raises NotFound unless a 404 has one of lakeFS's own messages for something that does not exist."""
        if answer.message is None or not absent.fullmatch(answer.message):
            raise self._caller.refusal(call, answer)

    def start_refs_dump(self) -> str:
        """Starts a dump of commits, branches and tags; returns the task's id."""
        call = self._call("POST", "/dump", "fs:ListBranches, fs:ListTags and fs:ListCommits")
        return self._fields(call, self._repositories.dump_submit_with_http_info, self._repository).text("id")

    def refs_dump(self, task_id: str) -> RefsDump:
        """State of a dump task."""
        call = self._call("GET", f"/dump?task_id={task_id}", "fs:ListBranches, fs:ListTags and fs:ListCommits")
        fields = self._fields(call, self._repositories.dump_status_with_http_info, self._repository, task_id)
        return parsing.refs_dump(fields)

    def commit(self, commit_id: str) -> Commit:
        """One commit. Raises NotFound."""
        call = self._call("GET", f"/commits/{commit_id}", "fs:ReadCommit")
        fields = self._fields(call, self._commits.get_commit_with_http_info, self._repository, commit_id)
        commit = parsing.commit(fields)
        if commit.id != commit_id:
            raise fields.wrong("id", f"is {commit.id}, which was not asked for")
        return commit

    def retention_rules(self) -> RetentionRules | None:
        """The retention rules; None only if `settings/gc_rules` itself says that there are none.

        Any other 404 (no such repository, a server without this path, a proxy) raises NotFound.
        """
        call = self._call("GET", "/settings/gc_rules", "retention:GetGarbageCollectionRules")
        operation = self._repositories.get_gc_rules_with_http_info
        fields = self._fields_unless_absent(call, operation, self._repository, absent=_NO_RULES)
        return None if fields is None else parsing.retention_rules(fields)

    def set_retention_rules(self, rules: RetentionRules) -> None:
        """Replaces the retention rules. The server validates nothing, so the caller must."""
        call = self._call("PUT", "/settings/gc_rules", "retention:SetGarbageCollectionRules")
        branches = [
            lakefs_sdk.GarbageCollectionRule(branch_id=branch, retention_days=days)
            for branch, days in rules.branches.items()
        ]
        body = lakefs_sdk.GarbageCollectionRules(default_retention_days=rules.default_days, branches=branches)
        self._caller.ask(call, self._repositories.set_gc_rules_with_http_info, self._repository, body)

    def start_prepare_commits(self) -> str:
        """Starts listing the commits that the server's retention keeps; returns the task's id."""
        call = self._call("POST", "/gc/prepare_commits/async", _PREPARE_COMMITS)
        operation = self._internal.prepare_garbage_collection_commits_async_with_http_info
        return self._fields(call, operation, self._repository).text("id")

    def prepare_commits_task(self, task_id: str) -> PrepareCommitsTask:
        """State of a task that `start_prepare_commits` started."""
        call = self._call("GET", f"/gc/prepare_commits/status?id={task_id}", _PREPARE_COMMITS)
        operation = self._internal.prepare_garbage_collection_commits_status_with_http_info
        return parsing.prepare_commits_task(self._fields(call, operation, self._repository, task_id))

    def prepare_commits(self) -> PreparedCommits:
        """Makes the server list the commits that its retention keeps, in one call, which may be slow."""
        call = self._call("POST", "/gc/prepare_commits", _PREPARE_COMMITS)
        operation = self._internal.prepare_garbage_collection_commits_with_http_info
        return parsing.prepared_commits(self._fields(call, operation, self._repository))

    def _call(self, method: str, path: str, permission: str) -> Call:
        return Call(method, f"/repositories/{self._repository}{path}", permission)

    def _diff_call(self, branch: str) -> Call:
        return self._call("GET", f"/branches/{branch}/diff", "fs:ListObjects")

    def _fields(self, call: Call, operation: Callable[..., Any], *arguments: Any, **query: Any) -> Fields:
        answer: Answer = self._caller.ask(call, operation, *arguments, **query)
        return Fields.read(call, answer.body)

    def _pages(self, call: Call, operation: Callable[..., Any], *arguments: Any, **query: Any) -> Iterator[Fields]:
        """The results of all pages. Raises LakeFSError if the server repeats an offset."""
        seen: set[str] = {""}
        after: dict[str, str] = {}
        while True:
            results, offset = _page(self._fields(call, operation, *arguments, amount=_PAGE, **after, **query))
            yield from results
            if offset is None:
                return
            if offset in seen:
                raise LakeFSError(
                    f"{call}: the server has more results, but its next page would start at {offset!r} once more. "
                    "The list cannot be completed, so nothing may be collected; see the server's log"
                )
            seen.add(offset)
            after = {"after": offset}


def _page(fields: Fields) -> tuple[list[Fields], str | None]:
    """The results of one page, and the offset of the next page; None for the last page."""
    results, pagination = fields.items("results"), fields.fields("pagination")
    count = pagination.number("results")
    if count != len(results):
        raise pagination.wrong("results", f"is {count}, but {len(results)} came")
    next_offset = pagination.text("next_offset", empty=True)
    return results, next_offset if pagination.flag("has_more") else None
