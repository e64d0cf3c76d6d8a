"""The S3 gateway: a repository is a bucket, a branch or commit the first part of a key."""
