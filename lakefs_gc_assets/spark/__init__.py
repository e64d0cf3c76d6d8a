"""The engine on Spark: its session, tasks in Python workers, and comparisons of frames."""
