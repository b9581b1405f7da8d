"""The skeleton of a process that runs on every node: settings, logs, health and metrics with few megabytes.

A service has pydantic, structlog, uvicorn and the Prometheus client, 45 MB of imports. There are as many agents as
nodes, and each uses its node's memory (decision 0500). Their output and their start are the same as a service's.
"""
