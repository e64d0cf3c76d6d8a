"""Answers of the lakeFS API: documents with false types, numbers and texts."""

import json
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from lakefs_gc_assets.lakefs.api import parsing
from lakefs_gc_assets.lakefs.api.models import (
    Branch,
    Commit,
    DiffEntry,
    ObjectStats,
    PrepareCommitsTask,
    PreparedCommits,
    RefsDump,
    RepositoryFacts,
    RetentionRules,
    UncommittedPage,
)
from lakefs_gc_assets.lakefs.api.parsing import Call, Fields
from lakefs_gc_assets_tests.fuzzing.mutation import mutated, mutated_json
from lakefs_gc_assets_tests.fuzzing.running import Case, Target, outcome

_CALL = Call("GET", "/repositories/repo", "fs:Read")

Content = dict[str, Any]
_READERS: dict[str, tuple[Callable[[Fields], Any], Content, Callable[[Content], Any]]] = {
    "repository": (
        parsing.repository,
        {
            "id": "repo",
            "storage_namespace": "s3://bucket/repo",
            "default_branch": "main",
            "creation_date": 1,
            "read_only": False,
        },
        lambda c: RepositoryFacts(
            c["id"],
            c["storage_namespace"],
            c["default_branch"],
            c.get("read_only") or False,
            c["creation_date"],
        ),
    ),
    "grace period": (
        parsing.grace_period,
        {"grace_period": 86400},
        lambda c: timedelta(seconds=c["grace_period"]),
    ),
    "page": (
        parsing.uncommitted_page,
        {"run_id": "r", "gc_uncommitted_location": "s3://b/x", "continuation_token": "t"},
        lambda c: UncommittedPage(
            c["run_id"],
            c["gc_uncommitted_location"],
            token if (token := c.get("continuation_token")) and token.strip() else None,
        ),
    ),
    "branch": (parsing.branch, {"id": "main", "commit_id": "c"}, lambda c: Branch(c["id"], c["commit_id"])),
    "change": (parsing.change, {"path": "p", "type": "added"}, lambda c: DiffEntry(c["path"], c["type"])),
    "stats": (
        parsing.stats,
        {"path": "p", "physical_address": "s3://bucket/repo/data/x", "size_bytes": 3},
        lambda c: ObjectStats(c["path"], c["physical_address"], c.get("size_bytes")),
    ),
    "dump": (
        parsing.refs_dump,
        {
            "done": True,
            "error": "e",
            "refs": {"commits_meta_range_id": "a", "branches_meta_range_id": "b", "tags_meta_range_id": "c"},
        },
        lambda c: RefsDump(
            c["done"],
            c.get("error"),
            *(
                (c.get("refs") or {}).get(name) or ""
                for name in ("commits_meta_range_id", "branches_meta_range_id", "tags_meta_range_id")
            ),
        ),
    ),
    "commit": (
        parsing.commit,
        {"id": "c", "meta_range_id": "m", "parents": ["p"], "creation_date": 1, "version": 1, "generation": 2},
        lambda c: Commit(
            c["id"],
            c["meta_range_id"],
            tuple(c["parents"] or ()),
            c["creation_date"],
            c["version"],
            c["generation"],
        ),
    ),
    "rules": (
        parsing.retention_rules,
        {"default_retention_days": 21, "branches": [{"branch_id": "main", "retention_days": 7}]},
        lambda c: RetentionRules(
            c["default_retention_days"], {r["branch_id"]: r["retention_days"] for r in c.get("branches") or []}
        ),
    ),
    "task": (
        parsing.prepare_commits_task,
        {"completed": True, "result": {"run_id": "r", "gc_commits_location": "s3://b/c.csv"}},
        lambda c: (
            PrepareCommitsTask(True, result=PreparedCommits(c["result"]["run_id"], c["result"]["gc_commits_location"]))
            if c["completed"] and c.get("error") is None
            else PrepareCommitsTask(c["completed"], c.get("error") and (c["error"].get("message") or "no reason given"))
        ),
    ),
}


def _body(rng: random.Random, content: Any) -> str:
    match rng.randrange(10):
        case 0:
            changed = mutated(rng, json.dumps(content).encode(), b'{"":[]}\\u0000\\ud800')
            return changed.decode("utf-8", "replace")
        case 1 if rng.random() < 0.05:
            return rng.choice(("[", '{"a":', "9")) * rng.choice((500, 5_000, 50_000))
        case _:
            return json.dumps(mutated_json(rng, content))


def _answer_case(rng: random.Random) -> Case:
    """A changed document: the result equals a plain reading."""
    read, content, plainly = _READERS[rng.choice(list(_READERS))]
    body = _body(rng, content)

    def right(found: Any) -> None:
        assert found == plainly(json.loads(body))
        _require_storable(found)

    return Case(len(body), lambda: outcome(lambda: read(Fields.read(_CALL, body)), right))


def _require_storable(found: Any) -> None:
    """Requires texts that can be encoded, and numbers that fit 64 bits."""
    for name in found.__slots__ if hasattr(found, "__slots__") else ():
        value = getattr(found, name)
        for each in value if isinstance(value, tuple) else [value]:
            if isinstance(each, str):
                each.encode()
            if isinstance(each, int) and not isinstance(each, bool):
                assert -(1 << 63) <= each < 1 << 63, f"{name} is {each}"


TARGETS = (Target("answers", _answer_case),)
