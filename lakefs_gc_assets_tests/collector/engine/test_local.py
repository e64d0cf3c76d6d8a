from collections.abc import Iterable, Iterator

import pyarrow as pa
import pytest

from lakefs_gc_assets.collector.engine.local import ArrowRows, LocalEngine
from lakefs_gc_assets.collector.engine.port import Engine
from lakefs_gc_assets.collector.frame.frames import LIVE
from lakefs_gc_assets_tests.collector.engine.engine_contract import EngineContract

NUMBERS = pa.schema([pa.field("number", pa.int64())])


class TestLocalEngine(EngineContract[ArrowRows]):
    @pytest.fixture
    def engine(self) -> Engine[ArrowRows]:
        return LocalEngine()


def numbers(*values: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"number": list(values)}, NUMBERS)


def test_tasks_run_in_order_and_each_reads_as_it_goes() -> None:
    engine, happened = LocalEngine(), list[str]()

    def read(number: int) -> Iterator[pa.RecordBatch]:
        happened.append(f"read {number}")
        yield numbers(number)

    def change(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        happened.append("begin")
        for batch in batches:
            happened.append(f"change {batch.column('number')[0]}")
            yield batch
        happened.append("end")

    rows = engine.map_batches(engine.read([[1, 2], [3]], read, NUMBERS), change, NUMBERS)

    assert engine.collect(rows).column("number").to_pylist() == [1, 2, 3]
    first = ["begin", "read 1", "change 1", "read 2", "change 2", "end"]
    assert happened == [*first, "begin", "read 3", "change 3", "end"]


def test_what_a_task_did_before_it_failed_is_done() -> None:
    engine, done = LocalEngine(), list[int]()

    def read(number: int) -> Iterator[pa.RecordBatch]:
        if number == 3:
            raise ValueError("three")
        yield numbers(number)

    def change(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            done.extend(batch.column("number").to_pylist())
            yield batch

    rows = engine.map_batches(engine.read([[1, 2], [3, 4], [5]], read, NUMBERS), change, NUMBERS)
    with pytest.raises(ValueError, match="three"):
        engine.count(rows)

    assert done == [1, 2]


def test_columns_other_than_promised_are_an_error() -> None:
    engine = LocalEngine()
    others = pa.RecordBatch.from_pydict({"other": [1]}), pa.RecordBatch.from_pydict({"number": ["1"]})

    for other in others:
        with pytest.raises(ValueError, match="promised"):
            engine.count(engine.read([[other]], lambda batch: [batch], NUMBERS))
    with pytest.raises(ValueError, match="no union"):
        engine.union(engine.table(NUMBERS.empty_table()), engine.table(LIVE.empty_table()))


def test_what_was_cached_has_no_use_later() -> None:
    engine = LocalEngine()
    with engine.cached(engine.table(pa.Table.from_batches([numbers(1, 2)])), 2) as rows:
        assert engine.count(rows) == 2
        later = engine.select(rows, "number")

    with pytest.raises(RuntimeError, match="let go"):
        engine.count(later)


def test_work_in_the_background_is_done_first() -> None:
    engine, happened = LocalEngine(), list[str]()

    with engine.in_background(lambda: happened.append("background")) as done:
        happened.append("foreground")
        done()

    assert happened == ["background", "foreground"]


def test_a_killed_process_does_nothing_more() -> None:
    class Killed(BaseException):
        pass

    def die() -> None:
        raise Killed

    with pytest.raises(Killed), LocalEngine().in_background(die):
        pytest.fail("the process goes on")
