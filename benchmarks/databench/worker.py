"""A process of contestants: makes batches when told to and says how long they took.

Started by `turns.Worker` with a list of entries `{"name", "module", "make", ...}`, of
each of which `make(**rest)` of the module returns an iterator that never ends.
"""

import importlib
import json
import os
import pathlib
import sys
import time


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # peers print
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    iterators, failed = {}, {}
    for entry in json.loads(sys.argv[1]):
        name, module, make = (entry.pop(key) for key in ("name", "module", "make"))
        try:
            iterators[name] = getattr(importlib.import_module(module), make)(**entry)
            next(iterators[name])
        except Exception as err:  # a peer that is not installed, or broken
            iterators.pop(name, None)
            failed[name] = f"{type(err).__name__}: {err}"[:200]
    _say(answers, {"ready": list(iterators), "failed": failed})
    for line in sys.stdin:
        name, count = json.loads(line)
        iterator = iterators[name]
        start = time.perf_counter()
        for _ in range(count):
            next(iterator)
        _say(answers, {"seconds": time.perf_counter() - start})
    answers.close()
    os._exit(0)  # peers' threads may never end


def _say(answers, answer: dict) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
