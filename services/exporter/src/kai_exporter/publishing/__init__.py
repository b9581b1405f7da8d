"""`--publish-nrt`: the NodeResourceTopology of a node, and its object in the API server."""
