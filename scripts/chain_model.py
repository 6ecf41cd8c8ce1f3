"""Run random trials of the models of changes: races with kills and pauses, restores, copies that diverged.

    python -m scripts.chain_model [--count 20000] [--first N]

The models in tests/support/models are the protocol of a store that changes and of its exports, without any of the
package's code. Each trial is a few rounds of processes that take turns in a bucket. Exit code 1 if a reader got an
erased document, a file kept one, a repair failed, or a call was refused without need. `--first` begins with that trial.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

from tests.support.models import chain_trials, exports

MODELS: dict[str, Callable[[int], list[str]]] = {
    **{f"chain, {mode}": partial(chain_trials.problems, mode) for mode in chain_trials.MODES},
    "exports": partial(exports.problems, is_restored=False),
    "exports, restore": exports.problems,
}


def main() -> int:
    """Run the trials of each model, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    failed = 0
    for name, problems in MODELS.items():
        started, found, examples = time.process_time(), Counter[str](), dict[str, int]()
        for number in range(options.first, options.first + options.count):
            for problem in set(problems(number)):
                found[problem] += 1
                examples.setdefault(problem, number)
        print(f"{name}: {options.count} trials, {time.process_time() - started:.0f} s, {len(found)} kinds of problems")
        for problem, count in found.most_common():
            print(f"    {problem}: {count} times, first in trial {examples[problem]}")
        failed += bool(found)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
