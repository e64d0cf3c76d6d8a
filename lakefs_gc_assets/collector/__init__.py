"""The run: the order of its questions, comparisons and guards. No Dagster and no Spark."""
