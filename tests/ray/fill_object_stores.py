"""Fill the object store of every node of a Ray cluster, and hold it so until this process is killed.

Use: ``fill_object_stores.py HOST:PORT``. Ray cannot spill objects to disk that a process reads.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import ray

OBJECT_BYTES = 4 << 20


@ray.remote(num_cpus=0)
class Filler:
    def fill(self) -> int:
        """Put objects and read them until they no longer fit; return how many did."""
        self.arrays = []
        free = ray.cluster_resources()["object_store_memory"] / len(nodes_alive())
        for _ in range(int(free / OBJECT_BYTES) + 4):  # Ray puts the last ones on disk
            self.arrays.append(ray.get(ray.put(np.ones(OBJECT_BYTES, np.uint8))))
        return len(self.arrays)


def nodes_alive() -> list[str]:
    return [node["NodeID"] for node in ray.nodes() if node["Alive"]]


ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
fillers = [
    Filler.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote()
    for node in nodes_alive()
]
counts = ray.get([filler.fill.remote() for filler in fillers])
print("objects of 4 MB in each store:", *counts, flush=True)
time.sleep(600)
