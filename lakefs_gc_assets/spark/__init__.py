"""The engine on Spark: its session, tasks in Python workers, and what compares frames."""
