"""Marks every test of this folder `real`."""

from pathlib import Path

import pytest

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of other folders are collected in the same session."""
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.real)
