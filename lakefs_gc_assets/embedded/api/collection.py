"""What garbage collection asks: rules, prepared lists, refs dumps."""

from lakefs_gc_assets.embedded import (
    prepared_commits,
    refs_dump,
    repositories,
    retention_rules,
    uncommitted_data,
)
from lakefs_gc_assets.embedded.core import Core, timestamp
from lakefs_gc_assets.embedded.failures import not_found
from lakefs_gc_assets.embedded.http import NO_CONTENT, Request, Response, Route, json_response

_PREPARE_PREFIX, _DUMP_PREFIX = "GCPC", "DR"


def _get_rules(core: Core, request: Request, repository: str) -> Response:
    return json_response(200, retention_rules.get(core, repositories.get(core, repository)).as_json())


def _put_rules(core: Core, request: Request, repository: str) -> Response:
    retention_rules.put(core, repositories.get_writable(core, repository), request.json())
    return NO_CONTENT


def _delete_rules(core: Core, request: Request, repository: str) -> Response:
    retention_rules.delete(core, repositories.get_writable(core, repository))
    return NO_CONTENT


def _prepare_uncommitted(core: Core, request: Request, repository: str) -> Response:
    found = repositories.get_writable(core, repository)
    token = request.json_object().get("continuation_token") or None
    return json_response(201, uncommitted_data.prepare(core, found, token))


def _prepare_commits(core: Core, request: Request, repository: str) -> Response:
    return json_response(201, prepared_commits.prepare(core, repositories.get_writable(core, repository)))


def _start_prepare_commits(core: Core, request: Request, repository: str) -> Response:
    found = repositories.get_writable(core, repository)
    return json_response(202, {"id": core.tasks.start(_PREPARE_PREFIX, lambda: prepared_commits.prepare(core, found))})


def _prepare_commits_status(core: Core, request: Request, repository: str) -> Response:
    task_id = request.required("id")
    repositories.get(core, repository)
    state = core.tasks.state(task_id)
    if state is None:
        raise not_found()
    answer = {"task_id": task_id, "completed": state.done.is_set(), "update_time": timestamp(state.updated_at)}
    if state.done.is_set() and state.error is not None:
        answer["error"] = {"message": state.error}
    elif state.done.is_set():
        answer["result"] = state.result
    return json_response(200, answer)


def _start_dump(core: Core, request: Request, repository: str) -> Response:
    found = repositories.get(core, repository)
    return json_response(202, {"id": core.tasks.start(_DUMP_PREFIX, lambda: refs_dump.dump(core, found))})


def _dump_status(core: Core, request: Request, repository: str) -> Response:
    task_id = request.required("task_id")
    repositories.get(core, repository)
    state = core.tasks.state(task_id)
    if state is None:
        raise not_found()
    answer = {"id": task_id, "done": state.done.is_set(), "update_time": timestamp(state.updated_at)}
    if state.done.is_set() and state.error is not None:
        answer["error"] = state.error
    elif state.done.is_set():
        answer["refs"] = state.result
    return json_response(200, answer)


_REPOSITORY = "/repositories/{repository}"
_PREPARE = "retention:PrepareGarbageCollection"
_DUMP_ACTIONS = "fs:ListTags fs:ListBranches fs:ListCommits"

ROUTES = (
    Route("GET", _REPOSITORY + "/settings/gc_rules", "retention:GetGarbageCollectionRules", _get_rules),
    Route("PUT", _REPOSITORY + "/settings/gc_rules", "retention:SetGarbageCollectionRules", _put_rules),
    Route("DELETE", _REPOSITORY + "/settings/gc_rules", "retention:SetGarbageCollectionRules", _delete_rules),
    Route("POST", _REPOSITORY + "/gc/prepare_uncommited", _PREPARE + "Uncommitted", _prepare_uncommitted),
    Route("POST", _REPOSITORY + "/gc/prepare_commits", _PREPARE + "Commits", _prepare_commits),
    Route("POST", _REPOSITORY + "/gc/prepare_commits/async", _PREPARE + "Commits", _start_prepare_commits),
    Route("GET", _REPOSITORY + "/gc/prepare_commits/status", _PREPARE + "Commits", _prepare_commits_status),
    Route("POST", _REPOSITORY + "/dump", _DUMP_ACTIONS, _start_dump),
    Route("GET", _REPOSITORY + "/dump", _DUMP_ACTIONS, _dump_status),
)
