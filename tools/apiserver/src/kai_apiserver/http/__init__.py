"""The API over HTTP: paths to verbs, answers to bytes, listeners."""
