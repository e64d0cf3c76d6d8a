"""Rules of retention: days by default and by branch, kept as a file in the storage namespace as well."""

import json
from dataclasses import dataclass
from typing import Any

from lakefs_gc_assets.embedded.core import Core
from lakefs_gc_assets.embedded.entries import retention_rules
from lakefs_gc_assets.embedded.failures import bad_request, not_found
from lakefs_gc_assets.embedded.http import checked_object
from lakefs_gc_assets.embedded.repositories import Repository, store_of

RULES_KEY = "_lakefs/retention/gc/rules/config.json"
"""Binary in spite of its name; empty where there are no rules."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Days that replaced commits stay, by default and by branch."""

    default_days: int
    branches: dict[str, int]

    def as_json(self) -> dict[str, Any]:
        """As the API shows them: `branches` is null where there are none."""
        branches = [{"branch_id": branch, "retention_days": days} for branch, days in self.branches.items()]
        return {"default_retention_days": self.default_days, "branches": branches or None}


def get(core: Core, repository: Repository) -> Rules:
    """The rules of a repository. Raises ApiFailure 404 where it has none."""
    with core.database.transaction() as database:
        row = database.execute(
            "SELECT default_days, branches FROM retention_rules WHERE repository = ?", (repository.id,)
        ).fetchone()
    if row is None:
        raise not_found()
    return Rules(row[0], json.loads(row[1]))


def put(core: Core, repository: Repository, body: Any) -> None:
    """Sets the rules; all zero means none. Raises ApiFailure 400 where a part is missing or of another kind."""
    for name in ("default_retention_days", "branches"):
        if not isinstance(body, dict) or name not in body:
            raise bad_request(
                "request body has an error: doesn't match schema #/components/schemas/GarbageCollectionRules: "
                f'Error at "/{name}": property "{name}" is missing'
            )
    checked_object(body, "default_retention_days")
    branches = body["branches"] or []
    if not isinstance(branches, list):
        raise bad_request('request body has an error: Error at "/branches": value must be an array')
    checked = [checked_object(rule, "branch_id", "retention_days") for rule in branches]
    rules = Rules(body["default_retention_days"], {rule["branch_id"]: rule["retention_days"] for rule in checked})
    content = retention_rules(rules.default_days, rules.branches)
    with core.database.transaction() as database:
        store_of(core, repository).put(RULES_KEY, content)
        database.execute("DELETE FROM retention_rules WHERE repository = ?", (repository.id,))
        if content:
            database.execute(
                "INSERT INTO retention_rules VALUES (?, ?, ?)",
                (repository.id, rules.default_days, json.dumps(rules.branches)),
            )


def delete(core: Core, repository: Repository) -> None:
    """Removes the rules; the file stays, empty."""
    with core.database.transaction() as database:
        store_of(core, repository).put(RULES_KEY, b"")
        database.execute("DELETE FROM retention_rules WHERE repository = ?", (repository.id,))
