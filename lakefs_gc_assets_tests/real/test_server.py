"""The real server runs in the past: names, commits and files have genuine dates."""

from datetime import UTC, datetime, timedelta

from lakefs_sdk import ObjectsApi

from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets_tests.real.server import installation


def test_slices_objects_commits_and_files_bear_the_shifted_date() -> None:
    with installation() as lakefs:
        lakefs.start(days_ago=45)
        began = lakefs.now() - timedelta(seconds=2)
        lakefs.new_repository("repo")
        lakefs.upload("repo", "main", "path", b"content")
        commit = lakefs.commit("repo", "main")
        ended = lakefs.now() + timedelta(seconds=2)
        lakefs.start()
        address = ObjectsApi(lakefs.sdk()).stat_object("repo", "main", "path").physical_address
        bucket, _, key = address.removeprefix("s3://").partition("/")
        name = layout.parse(key.removeprefix("lake/"))
        written = lakefs.store().head_object(Bucket=bucket, Key=key)["LastModified"]
        assert name.issued_at is not None
        dates = (datetime.fromtimestamp(commit.creation_date, UTC), layout.as_datetime(name.issued_at), written)
        assert [began <= date <= ended for date in dates] == [True, True, True]
        assert ended < datetime.now(UTC) - timedelta(days=44)
