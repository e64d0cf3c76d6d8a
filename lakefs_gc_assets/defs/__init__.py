"""Dagster definitions: assets, checks, partitions, resources, jobs, sensors and schedules."""
