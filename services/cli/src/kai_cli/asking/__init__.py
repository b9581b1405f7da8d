"""Questions about a cluster: `kai get`, `kai why`, `kai state`, `kai status`, `kai logs`."""
