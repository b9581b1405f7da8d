"""Trials of a policy before it decides: `kai policy check`.

```
checking        what holds of each answer of a policy, and how long it takes
  clusters      generated clusters, work, groups and queues to ask it about
```

A recorded window with and without a policy is a what-if over history (`kaicore.analysis.trial.history`).
"""
