"""An embedded lakeFS with a sample repository, the demo on it, and the Dagster UI of one machine."""
