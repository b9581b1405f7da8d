"""The library of kai-ledger: every rule, no service.

On import it raises the threshold of Python's garbage collector to 50,000 new objects. The default of 700 cost a sixth
of a service's start, which imports a thousand modules, and more later. States live long and have no cycles.
"""

import gc

#: Of every process but the command line, which lives shortly, and an agent, which is small.
GC_THRESHOLDS = (50_000, 20, 100)

gc.set_threshold(*GC_THRESHOLDS)
