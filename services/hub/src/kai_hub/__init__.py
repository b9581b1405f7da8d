"""The hub: gives dispatches to clusters, and takes them back from those that are drained, removed or lost."""
