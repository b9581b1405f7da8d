"""`make digest`: whether cycles decide as when the digests were last renewed, family by family.

`make digest ARGS=gangs/17` prints what the cycles of one story decide, a line each: to compare two versions of the
engine by `diff`. `make digest ARGS=--renew` keeps today's digests as what is expected; that goes with a new
ENGINE_VERSION only.
"""

import sys
from hashlib import sha256

from tests.measured.digest.engine import ENGINE_VERSION
from tests.measured.digest.families import FAMILIES, expected, renew, run_story


def main(arguments: list[str]) -> int:
    """Tell stories; exit code 1 if one is decided otherwise."""
    if arguments and arguments != ["--renew"]:
        for named in arguments:
            family, _, number = named.partition("/")
            run_story(family, int(number), sys.stdout.buffer.write)
        return 0
    digests: dict[str, tuple[str, ...]] = {}
    differing: list[str] = []
    for family, count in FAMILIES.items():
        stories = [run_story(family, number) for number in range(count)]
        digests[family] = tuple(one.digest for one in stories)
        digest = sha256("".join(digests[family]).encode()).hexdigest()
        cycles, decisions = sum(one.cycles for one in stories), sum(one.decisions for one in stories)
        print(f"{family:<11} {digest}  {count} stories, {cycles} cycles, {decisions} events", flush=True)
        if not arguments:
            before = expected().stories[family]
            differing += [f"{family}/{number}" for number in range(count) if digests[family][number] != before[number]]
    if arguments:
        renew(digests)
        return 0
    if differing:
        print(f"decided otherwise than by engine {expected().engine_version}: {' '.join(differing)}")
        return 1
    print(f"all as engine {expected().engine_version} decides; this is engine {ENGINE_VERSION}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
