"""The skeleton of a process that every node runs: settings, logs, health and metrics with few megabytes.

A service has pydantic, structlog, uvicorn and the Prometheus client, 45 MB of imports; of an agent there are as many as
there are nodes, and its memory is taken from theirs (decision 0500). What it says and how it is started is the same.
"""
