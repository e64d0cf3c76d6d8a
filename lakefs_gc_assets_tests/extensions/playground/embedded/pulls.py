"""Pull requests of an embedded server, as far as tests need them: create, list and close."""

import json
import sqlite3

from lakefs_gc_assets.extensions.playground.embedded import branches
from lakefs_gc_assets.extensions.playground.embedded.core import Core, bad_request, not_found, timestamp
from lakefs_gc_assets.extensions.playground.embedded.http import (
    NO_CONTENT,
    Request,
    Response,
    Route,
    json_response,
    page,
)
from lakefs_gc_assets.extensions.playground.embedded.repositories import ServedRepository
from lakefs_gc_assets.lakefs import layout

_PULLS = "/repositories/{repository}/pulls"
_STATUSES = ("open", "closed", "merged")


def _table(database: sqlite3.Connection) -> None:
    database.execute("CREATE TABLE IF NOT EXISTS pulls (repository TEXT, id TEXT, content TEXT)")


def _create(core: Core, request: Request, repository: ServedRepository) -> Response:
    """Creates a pull request; it is open, and both branches exist."""
    body = request.json_object("title", "source_branch", "destination_branch")
    source, destination = body["source_branch"], body["destination_branch"]
    if source == destination:
        raise bad_request("source and destination branches are the same: same branch validation error")
    for branch in (source, destination):
        branches.get(core, repository, branch)
    pull_id, now = layout.issue_run_id(core.clock.now()), timestamp(core.clock.now())
    pull = {
        "author": request.user,
        "creation_date": now,
        "destination_branch": destination,
        "id": pull_id,
        "source_branch": source,
        "status": "open",
        "title": body["title"],
    }
    with core.database.transaction() as database:
        _table(database)
        database.execute("INSERT INTO pulls VALUES (?, ?, ?)", (repository.id, pull_id, json.dumps(pull)))
    return json_response(201, {"id": pull_id})


def _list(core: Core, request: Request, repository: ServedRepository) -> Response:
    """Lists pull requests without descriptions, as lakeFS does; a merged one counts as closed."""
    shown = {"open": _STATUSES[:1], "closed": _STATUSES[1:]}.get(request.query.get("status", ""), _STATUSES)
    with core.database.transaction() as database:
        _table(database)
        rows = database.execute("SELECT content FROM pulls WHERE repository = ? ORDER BY id", (repository.id,))
        pulls = [json.loads(content) for (content,) in rows]
    return json_response(200, page([pull for pull in pulls if pull["status"] in shown], request, "id"))


def _update(core: Core, request: Request, repository: ServedRepository, pull: str) -> Response:
    """Closes a pull request, or marks it as merged."""
    status = request.json_object("status")["status"]
    with core.database.transaction() as database:
        _table(database)
        which = (repository.id, pull)
        row = database.execute("SELECT content FROM pulls WHERE repository = ? AND id = ?", which).fetchone()
        if row is None:
            raise not_found("pull request")
        changed = {**json.loads(row[0]), "status": status, "closed_date": timestamp(core.clock.now())}
        database.execute("UPDATE pulls SET content = ? WHERE repository = ? AND id = ?", (json.dumps(changed), *which))
    return NO_CONTENT


ROUTES = (
    Route("POST", _PULLS, "pr:WritePullRequest", _create),
    Route("GET", _PULLS, "pr:ListPullRequests", _list),
    Route("PATCH", _PULLS + "/{pull}", "pr:WritePullRequest", _update),
)
