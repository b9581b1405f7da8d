"""Plain data that every layer speaks: Kubernetes objects reduced to what scheduling needs, integers only."""
