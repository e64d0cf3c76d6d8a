"""The domain: what a run may delete, in which order, and how it proves it. Knows nothing of Dagster or Spark."""
