"""Tests on a real lakeFS server, built from its Go module, with a real past; `make test-real` runs them."""
