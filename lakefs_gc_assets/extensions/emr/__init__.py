"""The job that makes a run on EMR Serverless."""
