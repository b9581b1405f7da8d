"""The runtime of every process: settings, health, HTTP, logging, and embedded Postgres and NATS."""
