"""What Dagster loads: assets, checks, partitions, resources, jobs, sensors and schedules."""
