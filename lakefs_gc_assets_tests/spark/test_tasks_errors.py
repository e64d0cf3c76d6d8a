"""What a worker raises arrives in the driver as our own error."""

from collections.abc import Iterator
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.spark.tasks import from_worker
from lakefs_gc_assets.storage.opening import StoreOpener


def test_an_executor_without_a_credential_says_which_variable_it_lacks(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session was started before the variable was set, so its workers do not have it."""
    variable = f"TEST_{uuid4().hex}"
    monkeypatch.setenv(variable, "secret")
    opener = StoreOpener(StoreSettings(from_environment={"secret_access_key": variable}), "s3://bucket/repository")

    def open_there(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        opener.open()
        yield from batches

    with pytest.raises(Exception, match=variable) as caught:
        spark.range(1).mapInArrow(open_there, "id long").collect()
    found = from_worker(caught.value)
    assert isinstance(found, ConfigurationError)
    assert f"{variable}, which is not set on" in str(found)
