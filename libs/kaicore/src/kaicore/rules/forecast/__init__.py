"""When what waits is likely to start: from how long this cluster's pods have run so far, and the engine run forward."""
