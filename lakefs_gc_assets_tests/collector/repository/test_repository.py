from dataclasses import replace

import pytest

from lakefs_gc_assets.collector.repository.repository import require_writable
from lakefs_gc_assets.errors import ReadOnlyRepository
from lakefs_gc_assets.lakefs.api.models import RepositoryFacts

FACTS = RepositoryFacts("repo", "s3://bucket/repo", "main", read_only=False)


def test_a_read_only_repository_is_not_collected() -> None:
    require_writable(FACTS)
    with pytest.raises(ReadOnlyRepository, match="repo is read-only"):
        require_writable(replace(FACTS, read_only=True))
