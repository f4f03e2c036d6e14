"""Work spread over threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["run_tasks"]

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Exponentials below which threads cost more than they save (about a millisecond).
PARALLEL_WORK = 2_000_000

#: Tasks that a symmetric evaluation is cut into when it has fewer heads: enough to balance
#: threads, few enough for one accumulator each.
SYMMETRIC_TASKS = 16


def available_processors() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_tasks(
    task: Callable[[Item], Result], items: Sequence[Item], work: float, threads: int | None = None
) -> list[Result]:
    """``[task(item) for item in items]``, on threads when ``work`` (exponentials) pays for them.

    The pool lives for one call: it costs 0.1 ms and is safe with processes that fork.
    """
    workers = min(len(items), threads or available_processors())
    if workers < 2 or work < PARALLEL_WORK:
        return [task(item) for item in items]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(task, items))
