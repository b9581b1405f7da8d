"""Network topology: trees of domains over the nodes, from whatever defines them."""
