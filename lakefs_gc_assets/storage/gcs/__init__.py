"""Namespaces in buckets of Google Cloud Storage."""
