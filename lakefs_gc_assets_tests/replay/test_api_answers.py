import csv
import hashlib
import json
from itertools import pairwise
from typing import Any

import obstore
import pytest

from lakefs_gc_assets_tests.replay.clients import NOW, Api, obstore_store, rows, small
from lakefs_gc_assets_tests.replay.server import ReplayServer
from lakefs_gc_assets_tests.runs.recordings import FIXTURES, folder_of, needs_recordings

__all__ = ["small"]


def commits_of(server: ReplayServer, result: dict[str, Any]) -> set[str]:
    """Commits in the file that an answer of prepare_commits names."""
    key = result["gc_commits_location"].removeprefix(server.storage_namespace + "/")
    content = bytes(obstore.get(obstore_store(server), key).bytes()).decode()
    return {row["commit_id"] for row in csv.DictReader(content.splitlines())}


class TestApi:
    def test_changes_that_were_not_recorded_are_none(self, small: ReplayServer) -> None:
        api = Api(small)
        first = api("GET", "./branches/main/diff", amount="1")[1]
        assert (first["pagination"]["has_more"], first["results"][0]["path"]) == (True, "copy/clone-1")
        more = api("GET", "./branches/main/diff", amount="1000")[1]
        assert more["results"] == first["results"]
        rest = api("GET", "./branches/main/diff", amount="1000", after=more["pagination"]["next_offset"])[1]
        assert (rest["results"], rest["pagination"]["has_more"]) == ([], False)
        assert api("GET", "./branches/doomed/diff", amount="1") == (404, {"message": "branch not found"})

    @needs_recordings
    @pytest.mark.parametrize("name", ["random-dag/14"])
    def test_unrecorded_objects_come_from_the_heads(self, name: str) -> None:
        tables = {
            table["file"]: table["entries"]
            for table in map(json.loads, (FIXTURES / name / "sstables.jsonl").read_text().splitlines())
        }
        recorded = {
            (row["path"].split("/")[6], row["query"]["path"])
            for row in rows(name)
            if row["path"].endswith("objects/stat")
        }
        asked = 0
        with ReplayServer(FIXTURES / name) as server:
            api = Api(server)
            for branch in api("GET", "./branches", amount="1000", show_hidden="true")[1]["results"]:
                commit = api("GET", f"./commits/{branch['commit_id']}")[1]
                parts = tables[commit["meta_range_id"]] if commit["meta_range_id"] else []
                for entry in [entry for part in parts for entry in tables[part["range_id"]]]:
                    full = "://" in entry["address"]
                    expected = entry["address"] if full else f"{server.storage_namespace}/{entry['address']}"
                    for reference in (branch["id"], branch["commit_id"]):
                        if (reference, entry["key"]) in recorded:
                            continue
                        status, stats = api("GET", f"./refs/{reference}/objects/stat", path=entry["key"])
                        assert status == 200
                        assert (stats["path"], stats["physical_address"]) == (entry["key"], expected)
                        assert (stats["size_bytes"], stats["checksum"]) == (entry["size"], entry["etag"])
                        asked += 1
                status, answer = api("GET", f"./refs/{branch['id']}/objects/stat", path="no/such\x7fpath")
                assert (status, answer) == (404, {"message": "not found"})
            assert api("GET", "./refs/no-such-branch/objects/stat", path="x")[0] == 404
        assert asked > 20

    def test_a_listing_has_what_single_questions_find(self, small: ReplayServer) -> None:
        api, paths, after = Api(small), [], ""
        while True:
            status, page = api("GET", "./refs/main/objects/ls", amount="3", after=after)
            assert status == 200 and len(page["results"]) <= 3
            for stats in page["results"]:
                assert api("GET", "./refs/main/objects/stat", path=stats["path"]) == (200, stats)
            paths += [stats["path"] for stats in page["results"]]
            if not page["pagination"]["has_more"]:
                break
            after = page["pagination"]["next_offset"]
        assert len(paths) > 20 and paths == sorted(set(paths), key=str.encode)
        recorded = next(row for row in rows("small") if row["path"].endswith("/refs/main/objects/stat"))
        assert recorded["query"]["path"] in paths
        assert api("GET", "./refs/no-such-branch/objects/ls")[0] == 404

    def test_recorded_objects_of_staging_come_first(self, small: ReplayServer) -> None:
        row = next(row for row in reversed(rows("small")) if row["path"].endswith("/refs/main/objects/stat"))
        found = Api(small)("GET", "./refs/main/objects/stat", path=row["query"]["path"], presign="false")
        assert found == (200, row["response_json"])


class TestPreparedCommits:
    @needs_recordings
    @pytest.mark.parametrize("name", ["merge-dangling", "random-dag/14"])
    def test_of_each_variant_are_those_of_its_rules(self, name: str) -> None:
        variants = json.loads((FIXTURES / name / "truth.json").read_text())["rule_variants"]
        for number, variant in enumerate(variants):
            with ReplayServer(FIXTURES / name, variant=number) as server:
                api = Api(server)
                task = api("POST", "./gc/prepare_commits/async")[1]["id"]
                result = api("GET", "./gc/prepare_commits/status", id=task)[1]["result"]
                assert result["run_id"] == variant["run_id"]
                assert api("POST", "./gc/prepare_commits") == (201, result)
                assert commits_of(server, result) == set(variant["active_commits"])
                rules = api("GET", "./settings/gc_rules")[1]
                assert rules["default_retention_days"] == variant["rules"]["default_retention_days"]
                assert (rules["branches"] or []) == variant["rules"]["branches"]

    def test_of_an_unknown_variant_cannot_be_replayed(self) -> None:
        for name, number in (("merge-dangling", 5), ("merge-dangling", -1), ("small", 0)):
            with pytest.raises(ValueError, match=rf"rule variants.* no {number}"):
                ReplayServer(folder_of(name), variant=number)


class TestPreparedPages:
    @needs_recordings
    @pytest.mark.parametrize(("name", "pages", "files"), [("by-time", 4, 4), ("by-size", 3, 3), ("row-groups", 1, 1)])
    def test_follow_their_tokens(self, name: str, pages: int, files: int) -> None:
        folder = f"uncommitted-paging/{name}"
        recorded = [row["response_json"] for row in rows(folder)]
        with ReplayServer(FIXTURES / folder, now=NOW) as server:
            assert (server.repository, server.storage_namespace) == ("wide-local-1", "s3://blocks/wide-local-1")
            found = self.prepared(server)
            assert [page.get("continuation_token") for page in found] == [
                page.get("continuation_token") for page in recorded
            ]
            assert len(found) == pages
            prefix = found[-1]["gc_uncommitted_location"].removeprefix(server.storage_namespace + "/")
            listed = [item for batch in obstore.list(obstore_store(server), prefix) for item in batch]
            assert len(listed) == files
            for item in listed:
                content = (FIXTURES / folder / "namespace" / item["path"]).read_bytes()
                assert item["size"] == len(content)
                assert (item["e_tag"] or "").strip('"') == hashlib.md5(content).hexdigest()
                assert item["last_modified"] == NOW

    @needs_recordings
    def test_repeat_tokens_in_order_and_start_anew_without_one(self) -> None:
        with ReplayServer(FIXTURES / "uncommitted-paging/by-time-tight.tar.gz") as server:
            first = self.prepared(server)
            assert len(first) == 782
            tokens = [page.get("continuation_token") for page in first]
            assert sum(earlier == later for earlier, later in pairwise(tokens)) == 548
            assert len({page["run_id"] for page in first}) == 1
            assert self.prepared(server) == first
            api = Api(server)
            last_token = [token for token in tokens if token][-1]
            for _ in range(3):
                assert api("POST", "./gc/prepare_uncommited", {"continuation_token": last_token})[1] == first[-1]
            assert api("POST", "./gc/prepare_uncommited", {"continuation_token": "bm9uc2Vuc2U="}) == (
                400,
                {"message": "invalid continuation token"},
            )

    @staticmethod
    def prepared(server: ReplayServer) -> list[dict[str, Any]]:
        api, found, token = Api(server), [], None
        while True:
            status, page = api("POST", "./gc/prepare_uncommited", {"continuation_token": token} if token else {})
            assert status == 201
            found.append(page)
            token = page.get("continuation_token")
            if not token:
                return found
