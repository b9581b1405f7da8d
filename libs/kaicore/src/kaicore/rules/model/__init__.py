"""Plain data that every layer uses: Kubernetes objects reduced to the fields that scheduling needs, integers only."""
