import pytest

from lakefs_gc_assets.collector.arrow_engine import ArrowRows
from lakefs_gc_assets.collector.engine import Engine
from lakefs_gc_assets.collector.held_engine import HeldEngine
from lakefs_gc_assets_tests.engine_contract import EngineContract


class TestHeldEngine(EngineContract[ArrowRows]):
    @pytest.fixture
    def engine(self) -> Engine[ArrowRows]:
        return HeldEngine()
