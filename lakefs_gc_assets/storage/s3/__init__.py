"""Storage namespaces in S3 buckets, on AWS and on services that speak S3, and the inventory of a bucket."""
