"""Timing two sides in one process, the machine, and the table a benchmark returns."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jko.attention.compiled import instruction_set

#: Seconds between the runs of two sides.
PAUSE = 0.2

#: Seconds that a side works before it is measured, and runs whose median is a measurement.
WARM = 0.1
RUNS = 5


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One line of the summary: what was asked, what was measured."""

    name: str
    target: str
    measured: str
    met: bool | None


@dataclass(frozen=True, kw_only=True)
class Section:
    """The outcome of one benchmark."""

    title: str
    text: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    verdicts: Sequence[Verdict] = field(default_factory=tuple)


def interleaved(
    sides: Mapping[str, Callable[[], object]], repetitions: int, warm: bool = True
) -> dict[str, list[float]]:
    """Seconds of every side, run in turn ``repetitions`` times after one run to warm up.

    When runs are repeated there is a pause before each turn, since threads of BLAS and OpenMP go
    on spinning for a tenth of a second after their last task, at the expense of the other side.
    Then the side works unmeasured for `WARM` seconds, at least once: caches and clock are those
    of a side at work, as a step among the hundreds of a run.  The time of a turn is the median
    of `RUNS` runs in a row, of one where a run takes as long as the warm-up.
    """
    times: dict[str, list[float]] = {name: [] for name in sides}
    for repetition in range(-1 if warm else 0, repetitions):
        for name, side in sides.items():
            lasted = _work(side) if repetitions > 1 else np.inf
            runs = [_timed(side) for _ in range(RUNS if lasted < WARM else 1)]
            if repetition >= 0:
                times[name].append(median(runs))
    return times


def _work(side: Callable[[], object]) -> float:
    """Pause, then let the side work for a while; seconds of its last run."""
    time.sleep(PAUSE)
    start = time.perf_counter()
    while True:
        lasted = _timed(side)
        if time.perf_counter() - start >= WARM:
            return lasted


def _timed(side: Callable[[], object]) -> float:
    start = time.perf_counter()
    side()
    return time.perf_counter() - start


def ratio(slow: Sequence[float], fast: Sequence[float]) -> float:
    """Median of the ratios of runs made one after the other."""
    return statistics.median(s / f for s, f in zip(slow, fast, strict=True))


def median(times: Sequence[float]) -> float:
    return statistics.median(times)


def duration(seconds: float) -> str:
    """Three figures with a readable unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def growth_exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Slope of log(value) over log(size), by least squares."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def machine() -> list[str]:
    """Processor, memory, versions and the load by other programs; no names or paths."""
    lines = [
        f"Processor: {_processor()}, {_count()} cores, {_memory()}",
        f"{platform.system()}, Python {platform.python_version()}",
        ", ".join(f"{name} {version}" for name, version in _versions().items()),
        f"BLAS: {_blas()}",
        f"Kernel sums: {instruction_set() or 'numpy, no compiled code'}",
    ]
    if hasattr(os, "getloadavg"):
        lines.append(f"Load average of the machine at the end of the run: {os.getloadavg()[0]:.1f}")
    return lines


def load() -> float:
    """Running processes, averaged over a minute; 0 where the system does not tell."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _count() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory() -> str:
    try:
        size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return "memory unknown"
    return f"{size / 2**30:.0f} GiB of memory"


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in ("numpy", "scipy", "POT", "torch"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _blas() -> str:
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        build = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
        return f"{build['name']} {build['version']}"
    np.ones((2, 2)) @ np.ones((2, 2))
    found = {
        f"{pool['internal_api']} {pool['version']} ({pool.get('architecture')}, "
        f"{pool['num_threads']} threads)"
        for pool in threadpool_info()
        if pool["user_api"] == "blas"
    }
    return "; ".join(sorted(found)) or "unknown"
