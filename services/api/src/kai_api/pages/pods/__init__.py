"""Pages about pods: the waiting line, stories, and those of a caller with a few namespaces."""
