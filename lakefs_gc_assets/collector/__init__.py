"""The run: what is asked when, what is compared with what, and which guard stands where. No Dagster and no Spark."""
