"""Data of deleted repositories: found in a bucket, never deleted."""
