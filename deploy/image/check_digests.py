#!/usr/bin/env python3
"""Say which images have no digest: of rendered manifests, or of a Compose file with its variables filled in.

    kubectl kustomize deploy/k8s | deploy/image/check_digests.py
    docker compose -f deploy/compose/compose.yaml config | deploy/image/check_digests.py

An image that Compose builds itself (kai-ledger) has none; the image that it is built from must (PYTHON_IMAGE). Ends
with 0 if every image has a digest, with 1 and one line for each that has none.
"""

import re
import sys

_IMAGE = re.compile(r"""^[\s-]*(?:image|PYTHON_IMAGE):\s*["']?([^"'\s#]+)""")
_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
_BUILT_HERE = "kai-ledger"


def without_digest(text: str) -> list[str]:
    """Return the images without a digest, in order, each once."""
    images = dict.fromkeys(found[1] for line in text.splitlines() if (found := _IMAGE.match(line)))
    return [image for image in images if not _DIGEST.search(image) and image != _BUILT_HERE]


def main() -> int:
    """Check what comes on standard input."""
    missing = without_digest(sys.stdin.read())
    for image in missing:
        sys.stdout.write(f"no digest: {image}\n")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
