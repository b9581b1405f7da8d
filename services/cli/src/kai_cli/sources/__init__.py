"""The sources of answers: a running API, a log, a data directory, manifests."""
