"""One case of a study, in a process of its own, so that its memory is its own: prints its rows as JSON.

python -m tests.bench.store.one store|cluster STUDY CASE DIRECTORY
"""

import gc
import json
import sys
from pathlib import Path

import uvloop

from tests.bench.cluster.studies import CLUSTER_STUDIES
from tests.bench.procfs import memory_mb
from tests.bench.store.studies import STUDIES


def main() -> None:
    of, name, case, directory = sys.argv[1:]
    study = (CLUSTER_STUDIES if of == "cluster" else STUDIES)[name]
    sys.setswitchinterval(0.0005)  # the three lines as in `headgate serve`
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    rows = uvloop.run(study.measure(Path(directory), json.loads(case)))
    peak = {"peak_mb": memory_mb("VmHWM")}
    print(json.dumps([(row, {**peak, **quantities}) for row, quantities in rows]))


if __name__ == "__main__":
    main()
