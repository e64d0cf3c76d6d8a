"""Client of lakeFS's API: models of the server's answers, requests, and errors for refused calls."""
