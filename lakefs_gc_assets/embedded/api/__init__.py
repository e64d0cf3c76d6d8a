"""The HTTP paths of the lakeFS API, one module for each subject."""
