"""Import of the package after its numerical libraries, and the first call."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

from _measure import Section, Verdict, duration

SCRIPT = """
import json, time
import numpy, scipy, ot
start = time.perf_counter()
import jko
imported = time.perf_counter()
model = jko.AttentionModel(jko.Heads.gaussian(4, 3, 0))
cloud = jko.TokenCloud.uniform(2000, 3, 0)
ready = time.perf_counter()
model.velocity(cloud, 0)
first = time.perf_counter()
model.velocity(cloud, 0)
second = time.perf_counter()
print(json.dumps([imported - start, first - ready, second - first]))
"""


def imports(quick: bool) -> Section:
    runs = []
    for _ in range(1 if quick else 7):
        result = subprocess.run(
            [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
        )
        runs.append(json.loads(result.stdout))
    times = [statistics.median(column) for column in zip(*runs, strict=True)]
    return Section(
        title="Import and first call",
        text=f"Medians of {len(runs)} fresh processes; velocities at n = 2000, H = 4.",
        columns=("`import jko` after numpy, scipy and POT", "first velocity", "second velocity"),
        rows=[[duration(value) for value in times]],
        verdicts=[
            Verdict(
                name="`import jko` after numpy, scipy and POT",
                target="under 0.7 s",
                measured=duration(times[0]),
                met=times[0] < 0.7,
            )
        ],
    )
