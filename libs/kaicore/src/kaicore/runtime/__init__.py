"""What every process needs to run: settings, health, HTTP, logging, and embedded Postgres and NATS."""
