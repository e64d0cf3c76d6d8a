"""Data of deleted repositories: found in a bucket, and deleted if a person approves it."""
