"""An embedded lakeFS with a sample repository, a demonstration, and the Dagster UI for one machine."""
