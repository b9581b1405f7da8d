"""Network topology: trees of domains over the nodes, from any kind of definition."""
