"""A simulated Kubernetes API server: what `kubectl` and `kubernetes-asyncio` take for the real thing.

It exists so that every service of kai-ledger can be tried, measured and broken on purpose without a cluster. It stores
objects, defaults and validates them as a kube-apiserver 1.36 does, serves list, watch and every kind of patch, and runs
the few controllers without which batch work does not move. It schedules nothing and starts nothing: that is what it is
the other side of. `docs/reference/simulator.md` says how to start it and where it differs from the real one.
"""
