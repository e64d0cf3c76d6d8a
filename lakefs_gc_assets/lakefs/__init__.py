"""The API of lakeFS, its names, addresses and file formats. Knows nothing of Dagster or Spark."""
