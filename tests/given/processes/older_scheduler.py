"""`kai-scheduler` as if it were the version before: the same rules under an older engine's number.

Set before anything else reads it, the number is in every cycle and in the schema of the state's snapshots.
"""

import sys

from kaicore.rules.engine import config

OLDER = str(int(config.ENGINE_VERSION) - 1)

if __name__ == "__main__":
    config.ENGINE_VERSION = OLDER
    from kai_scheduler.main import main

    sys.exit(main())
