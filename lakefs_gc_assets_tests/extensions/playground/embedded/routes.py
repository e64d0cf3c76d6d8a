"""Routes of an embedded server that only tests use, and other test-only actions on a server.

`EmbeddedServer(folder, routes=ROUTES)` adds them to its own routes: deleting repositories and retention rules, branch
protection, pull requests (create, read, list, close and merge), staging of objects by their addresses, hard resets,
recorded commits, locations of metadata, and the older spelling of the retention rules' paths. They replace dumps by
dumps with compacted bases, which only Enterprise has (https://docs.lakefs.io/admin/compaction/).
"""

import json
import sqlite3
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from lakefs_gc_assets.extensions.playground.embedded import (
    branches,
    collection,
    commits,
    formats,
    objects,
    reads,
    repositories,
)
from lakefs_gc_assets.extensions.playground.embedded.core import (
    ApiFailure,
    Core,
    User,
    Writer,
    bad_request,
    new_user,
    not_found,
    timestamp,
)
from lakefs_gc_assets.extensions.playground.embedded.formats import Entry
from lakefs_gc_assets.extensions.playground.embedded.http import (
    NO_CONTENT,
    Request,
    Response,
    Route,
    checked_object,
    json_response,
    page,
)
from lakefs_gc_assets.extensions.playground.embedded.repositories import ServedRepository
from lakefs_gc_assets.extensions.playground.embedded.routes import ROUTES as SERVED
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.addresses import AddressType
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX


def add_user(server: EmbeddedServer, name: str, *denied: str) -> User:
    """Another user, who is denied these actions (such as `fs:ListCommits` or `retention:*`)."""
    user = new_user(name, denied)
    server.users[user.access_key_id] = user
    return user


def switch_writer(
    server: EmbeddedServer, *, machine: bytes | None = None, clock_offset: timedelta = timedelta()
) -> Writer:
    """Lets another server process write from now on: a new slice, other machine bytes, perhaps a skewed clock.

    Returns the previous writer.
    """
    previous = server.core.writer
    server.core.writer = Writer(
        server.clock,
        machine=machine,
        clock_offset=clock_offset,
        max_slice_size=server.core.settings.max_slice_size,
    )
    return previous


_COMPACTED = "CREATE TABLE IF NOT EXISTS compacted_bases (staging_token TEXT PRIMARY KEY, metarange_id TEXT NOT NULL)"
"""Metaranges from compacted staging. Every move of a branch, such as a commit, gives it a new staging token."""


def compact(core: Core, repository: ServedRepository, branch_id: str) -> str:
    """Compacts staged changes into a metarange of everything that the branch shows; returns its id.

    The branch rests on it, as dumps show, until it is moved: https://docs.lakefs.io/admin/compaction/. Staged changes
    stay in the server's database, so listings do not change, except for entries that equal the committed ones. The
    replaced metarange stays in the object store, as do its ranges. Raises ApiFailure 404.
    """
    with core.database.transaction() as database:
        branch = branches.get(core, repository, branch_id)
        head = commits.get(core, repository, branch.commit_id)
        token, entries = branch.staging_token, {}
        for record in commits.all_records(core, head.metarange_id):
            entries[record[0]] = record
        unchanged = {path for path, _, _ in branches.scan_staged(database, token)}
        for change in list(branches.staged_changes(core, database, repository, branch)):
            unchanged.discard(change.path)
            if change.record is None:
                del entries[change.path]
            else:
                entries[change.path] = change.record
        for path in unchanged:
            branches.drop_staged_path(database, token, branches.decode_path(path))
        base = commits.write_metarange(core, repository, [entries[path] for path in sorted(entries)])
        database.execute(_COMPACTED)
        database.execute("INSERT OR REPLACE INTO compacted_bases VALUES (?, ?)", (token, base))
    return base


def _dump_with_bases(core: Core, repository: ServedRepository) -> dict[str, Any]:
    """Dumps refs, with the compacted bases of branches."""
    answer = collection.dump_refs(core, repository)
    with core.database.transaction() as database:
        database.execute(_COMPACTED)
        bases = dict(
            database.execute(
                "SELECT id, metarange_id FROM branches JOIN compacted_bases USING (staging_token) WHERE repository = ?",
                (repository.id,),
            ).fetchall()
        )
    if bases:
        records = [
            (name, commit_id, data + formats.text_field(6, bases.get(name.decode(), "")))
            for name, commit_id, data in commits.all_records(core, answer["branches_meta_range_id"])
        ]
        properties = {
            "entity": "branch",
            "schema_name": "io.treeverse.lakefs.graveler.BranchData",
            "schema_definition": formats.branch_schema(),
        }
        answer["branches_meta_range_id"] = commits.write_metarange(
            core, repository, records, more_properties=properties
        )
    return answer


def _start_dump(core: Core, request: Request, repository: ServedRepository) -> Response:
    return json_response(202, {"id": core.tasks.start("DR", lambda: _dump_with_bases(core, repository))})


_TABLES = ("branches", "tags", "commits", "retention_rules", "protected_branches", "issued_addresses", "copies")
"""Tables with rows of a repository, except the table of repositories itself."""


def _create_repository(core: Core, request: Request) -> Response:
    """Makes a repository; a bare one has no commit, and may use another repository's namespace."""
    if not request.flag("bare"):
        return _SERVED["POST", "/repositories"].handler(core, request)
    body = request.json_object("name", "storage_namespace")
    made = ServedRepository(body["name"], body["storage_namespace"], "main", core.clock.seconds(), False, {})
    with core.database.transaction() as database:
        database.execute(
            "INSERT INTO repositories VALUES (?, ?, ?, ?, 0, '{}')",
            (made.id, made.storage_namespace, made.default_branch, made.creation_date),
        )
    answer = made.as_json()
    del answer["read_only"]
    return json_response(201, answer)


def _delete_repository(core: Core, request: Request, repository: ServedRepository) -> Response:
    """Deletes a repository's record; its objects and files stay."""
    if repository.read_only and not request.flag("force"):
        raise ApiFailure(403, "read-only repository")
    name = repository.id
    with core.database.transaction() as database:
        database.execute(
            "DELETE FROM staged WHERE token IN (SELECT staging_token FROM branches WHERE repository = ?)", (name,)
        )
        for table in _TABLES:
            database.execute(f"DELETE FROM {table} WHERE repository = ?", (name,))  # noqa: S608
        database.execute("DELETE FROM repositories WHERE id = ?", (name,))
    return NO_CONTENT


def _delete_rules(core: Core, request: Request, repository: ServedRepository) -> Response:
    """Removes the rules; the file stays, empty."""
    with core.database.transaction() as database:
        repositories.store_of(core, repository).put(collection.RULES_KEY, b"")
        database.execute("DELETE FROM retention_rules WHERE repository = ?", (repository.id,))
    return NO_CONTENT


def _put_protection(core: Core, request: Request, repository: ServedRepository) -> Response:
    """Replaces the branch protection rules."""
    rules = request.json()
    if not isinstance(rules, list):
        raise bad_request("request body has an error: value must be an array")
    patterns = [str(checked_object(rule, "pattern")["pattern"]) for rule in rules]
    with core.database.transaction() as database:
        database.execute("DELETE FROM protected_branches WHERE repository = ?", (repository.id,))
        for pattern in patterns:
            database.execute("INSERT INTO protected_branches VALUES (?, ?)", (repository.id, pattern))
    return NO_CONTENT


def _hard_reset(core: Core, request: Request, repository: ServedRepository, branch: str) -> Response:
    """Points a branch to any commit. Staged entries stay, as on a real server (`ResetHard` of lakeFS 1.86)."""
    reference = request.required("ref")
    with core.database.transaction() as database:
        moved = branches.get(core, repository, branch)
        commit = commits.resolve(core, repository, reference, f"hard-reset {branch} to {reference}:")
        database.execute(
            "UPDATE branches SET commit_id = ? WHERE repository = ? AND id = ?", (commit.id, repository.id, moved.id)
        )
    return NO_CONTENT


def _create_commit_record(core: Core, request: Request, repository: ServedRepository) -> Response:
    """Stores a commit as recorded on another server, under its original id."""
    body = request.json_object(
        "commit_id", "committer", "message", "metarange_id", "creation_date", "parents", "generation"
    )
    commit = commits.ServedCommit(
        id=str(body["commit_id"]),
        committer=str(body["committer"]),
        message=str(body["message"]),
        metarange_id=str(body["metarange_id"]),
        creation_date=int(body["creation_date"]),
        metadata=dict(body.get("metadata") or {}),
        parents=tuple(body["parents"]),
        version=int(body.get("version", 1)),
        generation=int(body["generation"]),
    )
    commits.store_record(core, repository, commit)
    return NO_CONTENT


_PULL_STATUSES = ("open", "closed", "merged")


def _pulls_table(database: sqlite3.Connection) -> None:
    database.execute("CREATE TABLE IF NOT EXISTS pulls (repository TEXT, id TEXT, content TEXT)")


def _create_pull(core: Core, request: Request, repository: ServedRepository) -> Response:
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
        "description": body.get("description") or "",
        "destination_branch": destination,
        "id": pull_id,
        "source_branch": source,
        "status": "open",
        "title": body["title"],
    }
    with core.database.transaction() as database:
        _pulls_table(database)
        database.execute("INSERT INTO pulls VALUES (?, ?, ?)", (repository.id, pull_id, json.dumps(pull)))
    return json_response(201, {"id": pull_id})


def _list_pulls(core: Core, request: Request, repository: ServedRepository) -> Response:
    """Lists pull requests without descriptions, as lakeFS does; a merged one counts as closed."""
    shown = {"open": _PULL_STATUSES[:1], "closed": _PULL_STATUSES[1:]}.get(
        request.query.get("status", ""), _PULL_STATUSES
    )
    with core.database.transaction() as database:
        _pulls_table(database)
        rows = database.execute("SELECT content FROM pulls WHERE repository = ? ORDER BY id", (repository.id,))
        pulls = [json.loads(content) for (content,) in rows]
    for pull in pulls:
        del pull["description"]
    return json_response(200, page([pull for pull in pulls if pull["status"] in shown], request, "id"))


def _find_pull(database: sqlite3.Connection, repository: ServedRepository, pull: str) -> dict[str, Any]:
    _pulls_table(database)
    which = (repository.id, pull)
    row = database.execute("SELECT content FROM pulls WHERE repository = ? AND id = ?", which).fetchone()
    if row is None:
        raise not_found("pull request")
    return dict(json.loads(row[0]))


def _change_pull(core: Core, repository: ServedRepository, pull: str, **changes: Any) -> None:
    with core.database.transaction() as database:
        found = _find_pull(database, repository, pull)
        changed = json.dumps({**found, **changes, "closed_date": timestamp(core.clock.now())})
        database.execute("UPDATE pulls SET content = ? WHERE repository = ? AND id = ?", (changed, repository.id, pull))


def _update_pull(core: Core, request: Request, repository: ServedRepository, pull: str) -> Response:
    """Closes a pull request, or marks it as merged."""
    _change_pull(core, repository, pull, status=request.json_object("status")["status"])
    return NO_CONTENT


def _get_pull(core: Core, request: Request, repository: ServedRepository, pull: str) -> Response:
    with core.database.transaction() as database:
        return json_response(200, _find_pull(database, repository, pull))


def _merge_pull(core: Core, request: Request, repository: ServedRepository, pull: str) -> Response:
    """Merges the branches of an open pull request."""
    with core.database.transaction() as database:
        found = _find_pull(database, repository, pull)
    if found["status"] != "open":
        raise bad_request("bad pull request status")
    source, destination = found["source_branch"], found["destination_branch"]
    described = commits.Description(request.user, "")
    merged = branches.merge(core, repository, source, destination, described, branches.MergeOptions())
    _change_pull(core, repository, pull, status="merged", merged_commit_id=merged.id)
    return json_response(200, {"reference": merged.id})


def _stage(core: Core, request: Request, repository: ServedRepository, branch: str) -> Response:
    path = request.required("path")
    body = request.json_object("physical_address", "checksum", "size_bytes")
    answer = objects.stats(repository, path, _stage_address(core, repository, branch, path, body))
    del answer["metadata"]
    return json_response(201, answer)


def _stage_address(
    core: Core, repository: ServedRepository, branch_id: str, path: str, body: Mapping[str, Any]
) -> Entry:
    """Stages an existing object; in rule set `seed` only outside the storage namespace.

    Raises ApiFailure 400 for an address that this server's blockstore cannot hold.
    """
    if not str(body["physical_address"]).startswith(core.blockstore.scheme):
        raise bad_request(f"physical address is not valid for block adapter: {core.blockstore.type}")
    address, kind = objects.address_of(repository, str(body["physical_address"]))
    if core.settings.rules == "seed" and kind == AddressType.RELATIVE:
        raise bad_request("physical address: staging is allowed outside the storage namespace only")
    entry = objects.described_entry(core, address, kind, body)
    objects.stage(core, repository, branch_id, path, entry)
    return entry


def _storage(core: Core, request: Request) -> Response:
    return json_response(200, reads.storage_config(core))


def _repository_metadata(core: Core, request: Request, repository: ServedRepository) -> Response:
    return json_response(200, repository.metadata)


def _rules_allowed(core: Core, request: Request, repository: ServedRepository) -> Response:
    return NO_CONTENT


def _metadata_location(core: Core, request: Request, repository: ServedRepository, id: str) -> Response:
    location = METADATA_PREFIX + id
    return json_response(200, {"location": location}, {"Location": location})


def _spelled_as_before() -> tuple[Route, ...]:
    """Routes of the retention rules at their older paths; older releases of lakeFS set rules by POST."""
    return tuple(
        Route(
            "POST" if route.method == "PUT" else route.method,
            _REPOSITORY + "/gc/rules",
            route.actions,
            route.handler,
        )
        for route in (*SERVED, _DELETE_RULES)
        if route.template == _REPOSITORY + "/settings/gc_rules"
    )


_REPOSITORY = "/repositories/{repository}"
_BRANCH = _REPOSITORY + "/branches/{branch}"
_SERVED = {(route.method, route.template): route for route in SERVED}

_DELETE_RULES = Route(
    "DELETE", _REPOSITORY + "/settings/gc_rules", "retention:SetGarbageCollectionRules", _delete_rules
)

ROUTES = (
    Route("POST", _REPOSITORY + "/dump", "fs:ListTags fs:ListBranches fs:ListCommits", _start_dump, changes=False),
    Route("POST", "/repositories", "fs:CreateRepository", _create_repository),
    Route("DELETE", _REPOSITORY, "fs:DeleteRepository", _delete_repository, changes=False),
    _DELETE_RULES,
    Route("PUT", _REPOSITORY + "/settings/branch_protection", "branches:SetBranchProtectionRules", _put_protection),
    Route("POST", _REPOSITORY + "/pulls", "pr:WritePullRequest", _create_pull),
    Route("GET", _REPOSITORY + "/pulls", "pr:ListPullRequests", _list_pulls),
    Route("GET", _REPOSITORY + "/pulls/{pull}", "pr:ReadPullRequest", _get_pull),
    Route("PATCH", _REPOSITORY + "/pulls/{pull}", "pr:WritePullRequest", _update_pull),
    Route("PUT", _REPOSITORY + "/pulls/{pull}/merge", "fs:CreateCommit pr:WritePullRequest", _merge_pull),
    Route("PUT", _BRANCH + "/objects", "fs:WriteObject", _stage),
    Route("GET", "/config/storage", "", _storage),
    Route("PUT", _BRANCH + "/hard_reset", "fs:RevertBranch", _hard_reset),
    Route("POST", _REPOSITORY + "/commits", "fs:CreateCommit", _create_commit_record),
    Route("GET", _REPOSITORY + "/metadata", "fs:ReadRepository", _repository_metadata),
    *_spelled_as_before(),
    Route("GET", _REPOSITORY + "/gc/rules/set_allowed", "retention:SetGarbageCollectionRules", _rules_allowed),
    Route("GET", _REPOSITORY + "/metadata/meta_range/{id}", "fs:ListObjects", _metadata_location),
    Route("GET", _REPOSITORY + "/metadata/range/{id}", "fs:ListObjects", _metadata_location),
)
