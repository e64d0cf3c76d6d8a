import pytest

from lakefs_gc_assets.collector.engine.port import Engine
from lakefs_gc_assets_tests.collector.engine.engine_contract import EngineContract
from lakefs_gc_assets_tests.collector.engine.reference_engine import ReferenceEngine, Rows


class TestReferenceEngine(EngineContract[Rows]):
    examples = 15

    @pytest.fixture
    def engine(self) -> Engine[Rows]:
        return ReferenceEngine()
