"""Durable Batch jobs: files of requests in, files of answers out, whatever happens in between."""
