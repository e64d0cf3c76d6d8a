"""lakeFS's API: models of what the server says, requests, and what its refusals mean."""
