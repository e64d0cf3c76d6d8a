"""Where recordings of real lakeFS servers lie: beside the checkout, never in it."""

from pathlib import Path

import pytest

FIXTURES = Path(__file__).resolve().parents[2] / "shared" / "lakefs" / "fixtures"

needs_recordings = pytest.mark.skipif(
    not FIXTURES.is_dir(), reason="recordings of a real lakeFS server are not beside this checkout (../shared)"
)
