"""What-if over history: a window of the log, simulated again with another configuration, other nodes or other queues.

```
comparison      asks for it all, and puts the answer together
  reading       the window's facts, taken out of the log
  rerun         a discrete-event simulation of them, on a state of its own
  alternative   what is to be different
  result       what a run came to, in figures (metrics, samples)
  page          the same as one HTML file
```
"""
