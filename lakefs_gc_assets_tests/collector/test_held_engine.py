import pytest

from lakefs_gc_assets.collector.arrow_engine import ArrowRows
from lakefs_gc_assets.collector.engine import Engine
from lakefs_gc_assets.collector.held_engine import HeldEngine
from lakefs_gc_assets_tests.engine_contract import EngineContract


class TestHeldEngine(EngineContract[ArrowRows]):
    examples = 60
    least = 0
    most = 30
    shrinks = True
    hashes = False

    @pytest.fixture
    def engine(self) -> Engine[ArrowRows]:
        return HeldEngine()
