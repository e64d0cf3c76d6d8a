"""lakefs-sdk, unchanged, on the embedded server."""

from urllib.request import urlopen

import pytest
from lakefs_sdk.exceptions import ApiException, NotFoundException

from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.extensions.playground.embedded.clients import models


def test_the_everyday_calls(server: EmbeddedServer) -> None:
    sdk = clients.sdk(server)
    assert [found.id for found in sdk.repositories_api.list_repositories().results] == ["repo"]
    stats = sdk.objects_api.upload_object("repo", "main", "a/b", content=b"content")
    assert (stats.path, stats.size_bytes) == ("a/b", 7)
    commit = sdk.commits_api.commit("repo", "main", models.CommitCreation(message="one", metadata={"k": "v"}))
    assert sdk.commits_api.get_commit("repo", commit.id) == commit
    assert sdk.branches_api.create_branch("repo", models.BranchCreation(name="side", source="main")) == commit.id
    sdk.objects_api.upload_object("repo", "side", "a/c", content=b"more")
    assert [change.path for change in sdk.branches_api.diff_branch("repo", "side").results] == ["a/c"]
    sdk.commits_api.commit("repo", "side", models.CommitCreation(message="two"))
    changes = sdk.refs_api.diff_refs("repo", "main", "side").results
    assert [(change.type, change.path) for change in changes] == [("added", "a/c")]
    merged = sdk.refs_api.merge_into_branch("repo", "side", "main").reference
    assert sdk.branches_api.get_branch("repo", "main").commit_id == merged
    assert [entry.message for entry in sdk.refs_api.log_commits("repo", "main").results][1:] == [
        "two",
        "one",
        "Repository created",
    ]
    assert sdk.objects_api.get_object("repo", "main", "a/c") == b"more"
    assert sdk.objects_api.get_object("repo", "main", "a/c", range="bytes=1-2") == b"or"
    sdk.objects_api.head_object("repo", "main", "a/c")
    listed = sdk.objects_api.list_objects("repo", "main", delimiter="/").results
    assert [(item.path, item.path_type) for item in listed] == [("a/", "common_prefix")]
    tag = sdk.tags_api.create_tag("repo", models.TagCreation(id="v1", ref="main"))
    assert sdk.tags_api.get_tag("repo", "v1") == tag
    sdk.tags_api.delete_tag("repo", "v1")
    with pytest.raises(NotFoundException):
        sdk.tags_api.get_tag("repo", "v1")
    sdk.branches_api.delete_branch("repo", "side")
    with pytest.raises(ApiException):
        sdk.branches_api.delete_branch("repo", "main")


def test_collection_calls(server: EmbeddedServer) -> None:
    sdk = clients.sdk(server)
    sdk.objects_api.upload_object("repo", "main", "a", content=b"content")
    assert sdk.internal_api.prepare_garbage_collection_uncommitted("repo").gc_uncommitted_location
    rules = models.GarbageCollectionRules(
        default_retention_days=7, branches=[models.GarbageCollectionRule(branch_id="main", retention_days=3)]
    )
    sdk.repositories_api.set_gc_rules("repo", rules)
    assert sdk.repositories_api.get_gc_rules("repo") == rules
    prepared = sdk.internal_api.prepare_garbage_collection_commits("repo")
    assert prepared.gc_commits_presigned_url is not None
    with urlopen(prepared.gc_commits_presigned_url) as answer:
        assert answer.read().startswith(b"commit_id,expired,metarange_id\n")
    assert sdk.internal_api.get_garbage_collection_config().grace_period == 86_400
    config = sdk.config_api.get_config()
    assert config.storage_config is not None
    assert config.storage_config.blockstore_type == "local"
