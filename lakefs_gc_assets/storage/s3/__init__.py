"""Namespaces in S3 buckets, and a bucket's own inventory."""
