"""One good answer to each call of the client."""

from collections.abc import Callable
from typing import Any, cast

from lakefs_gc_assets.lakefs.api.client import LakeFSClient

GOOD: dict[str, dict[str, Any]] = {
    "repository": {
        "id": "repo",
        "storage_namespace": "s3://bucket/repo",
        "default_branch": "main",
        "creation_date": 1,
        "read_only": False,
        "storage_id": "site-a",
    },
    "grace_period": {"grace_period": 60},
    "prepare_uncommitted": {"run_id": "r", "gc_uncommitted_location": "", "continuation_token": "t"},
    "branches": {
        "results": [{"id": "main", "commit_id": "c"}],
        "pagination": {"has_more": False, "next_offset": "", "results": 1},
    },
    "branch": {"id": "main", "commit_id": "c"},
    "tags": {
        "results": [{"id": "v1", "commit_id": "c"}],
        "pagination": {"has_more": False, "next_offset": "", "results": 1},
    },
    "first_change": {
        "results": [{"path": "p", "type": "added"}],
        "pagination": {"has_more": True, "next_offset": "p", "results": 1},
    },
    "stat": {"path": "p", "physical_address": "s3://bucket/repo/data/x", "size_bytes": 3},
    "list_objects": {
        "results": [
            {"path": "p", "path_type": "object", "physical_address": "s3://bucket/repo/data/x", "size_bytes": 3}
        ],
        "pagination": {"has_more": True, "next_offset": "p", "results": 1},
    },
    "start_refs_dump": {"id": "task"},
    "refs_dump": {
        "done": True,
        "refs": {"commits_meta_range_id": "a", "branches_meta_range_id": "b", "tags_meta_range_id": "c"},
    },
    "commit": {
        "id": "c",
        "meta_range_id": "",
        "parents": ["p"],
        "creation_date": 1,
        "version": 1,
        "generation": 2,
    },
    "retention_rules": {
        "default_retention_days": 21,
        "branches": [{"branch_id": "main", "retention_days": 28}, {"branch_id": "dev", "retention_days": 7}],
    },
    "start_prepare_commits": {"id": "task"},
    "prepare_commits_task": {
        "completed": True,
        "result": {"run_id": "r", "gc_commits_location": "s3://bucket/repo/commits.csv"},
    },
    "prepare_commits": {"run_id": "r", "gc_commits_location": "s3://bucket/repo/commits.csv"},
}


ARGUMENTS: dict[str, tuple[object, ...]] = {
    "prepare_uncommitted": (None,),
    "branch": ("main",),
    "first_change": ("main",),
    "stat": ("main", "p"),
    "list_objects": ("main", "o"),
    "refs_dump": ("task",),
    "commit": ("c",),
    "prepare_commits_task": ("task",),
}


def ask(client: LakeFSClient, method: str) -> Any:
    return cast(Callable[..., Any], getattr(client, method))(*ARGUMENTS.get(method, ()))
