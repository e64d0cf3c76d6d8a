"""Garbage collection for lakeFS repositories, as a Dagster asset graph on PySpark."""
