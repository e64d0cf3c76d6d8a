"""An inventory of a namespace as a DataFrame."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from lakefs_gc_assets.collection import universe
from lakefs_gc_assets.collection.tables import LISTED
from lakefs_gc_assets.collection.universe import Listing
from lakefs_gc_assets.lakefs.layout import WindowSize
from lakefs_gc_assets.sources import tasks
from lakefs_gc_assets.storage.inventory import Inventory, InventoryFile


def inventoried_objects(
    spark: SparkSession, inventory: Inventory, listing: Listing, window_size: WindowSize, partitions: int
) -> DataFrame:
    """Objects of the listing's parts that an inventory names (LISTED); each of its files is read by one task."""

    def read(file: InventoryFile) -> Iterator[pa.RecordBatch]:
        yield from universe.list_inventory_file(inventory, file, listing, window_size)

    return tasks.dataframe(spark, tasks.spread(inventory.files, partitions), read, LISTED)
