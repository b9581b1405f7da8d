"""Tables that `kubectl get` prints: columns per kind, and rows of cells."""
