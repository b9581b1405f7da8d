"""The hub: the cluster that each dispatch is given to, the lease for that, and the time when it may be given to
another.
"""
