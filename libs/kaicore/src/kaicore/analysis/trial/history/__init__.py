"""History tried again: a window of the log, simulated again with another configuration, other nodes or other queues.

```
comparison      runs both simulations and assembles the answer
  reading       the window's facts, read from the log
  rerun         a discrete-event simulation of them, on a state of its own
  alternative   the changes of the what-if
  result        the outcome of a run, in figures (metrics, samples)
  page          the same as one HTML file
```
"""
