"""The exporter as it is in a pod, with its service account in the folder `BENCH_SERVICE_ACCOUNT`."""

import os
from pathlib import Path

from kai_exporter.main import main
from kaicore.kube.api import service_account

if __name__ == "__main__":
    service_account.SERVICE_ACCOUNT = Path(os.environ["BENCH_SERVICE_ACCOUNT"])
    main()
