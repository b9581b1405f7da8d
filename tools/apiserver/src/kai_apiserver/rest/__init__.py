"""The verbs of the API over the store, without HTTP: what a request means, not how it arrives."""
