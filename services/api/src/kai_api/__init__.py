"""The API: answers from the log. It decides nothing and writes nothing to a cluster."""
