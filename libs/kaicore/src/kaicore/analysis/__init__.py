"""Answers to questions about a cluster, from the rules and the ledger.

```
trial     what would happen: simulation, submission, dispatching, history, shadow
  ask     what is: lists, explanations, audits, counterfactuals, read models, hours held
    life    what became of a pod
      replay    the log and its states at any moment
```
"""
