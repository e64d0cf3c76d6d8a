"""What lakeFS is: its API, names, addresses and file formats. Knows nothing of Dagster or Spark."""
