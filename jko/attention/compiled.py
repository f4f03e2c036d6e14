r"""Sums of exponentials by compiled code, where it was built: on one thread or several.

The module ``_exponentials`` is built from C when the package is installed with a compiler; without
it everything works, more slowly (see ``docs/decisions.md`` for by how much).
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from .threads import PARALLEL_WORK, run_tasks

try:
    from . import _exponentials
except ImportError:
    _exponentials = None  # type: ignore[assignment]

__all__ = ["compiled_sums", "instruction_set", "is_compiled"]

Array = NDArray[np.float64]

#: Tasks that a symmetric evaluation is cut into when it has fewer heads: enough to balance
#: threads, few enough for one accumulator each.
SYMMETRIC_TASKS = 16

#: Exponentials of one task between targets and other sources.
TASK_WORK = 2_000_000


def instruction_set() -> str | None:
    """``"avx512"``, ``"avx2"`` or ``"base"``, what the compiled code uses; None without it."""
    return None if _exponentials is None else _exponentials.instruction_set()


@cache
def is_compiled(dim: int, columns: int) -> bool:
    """Whether there is compiled code for points of ``dim`` and payloads of ``columns`` entries."""
    return _exponentials is not None and _exponentials.supports(dim, columns)


def compiled_sums(
    at: Array, points: Array, payload: Array, matrices: Array, threads: int | None
) -> Array:
    """`exponential_sums` where `is_compiled`, with half of the exponentials where ``at is points``."""
    symmetric = at is points
    rows = np.matmul(at, matrices)
    points, payload = np.ascontiguousarray(points), np.ascontiguousarray(payload)
    if not symmetric:
        return _row_sums(rows, points, payload, threads)
    return _symmetric_sums(rows, points, payload, threads)


def _row_sums(rows: Array, points: Array, payload: Array, threads: int | None) -> Array:
    """Sums for the products ``rows`` (H, m, d) of the targets and heads."""
    dim, (sources, columns) = points.shape[1], payload.shape
    total = np.empty((*rows.shape[:2], columns))
    flat, flat_total = rows.reshape(-1, dim), total.reshape(-1, columns)
    size = max(1, TASK_WORK // sources)

    def task(start: int) -> None:
        part = slice(start, start + size)
        row, out = flat[part], flat_total[part]
        _exponentials.row_sums(row, points, payload, out, 1, len(row), dim, columns)

    run_tasks(task, range(0, len(flat), size), len(flat) * sources, threads)
    return total


def _symmetric_sums(rows: Array, points: Array, payload: Array, threads: int | None) -> Array:
    """Sums at the sources themselves; the heads are symmetric."""
    (heads, count, dim), columns = rows.shape, payload.shape[1]
    work = heads * count * count / 2
    if work < PARALLEL_WORK:
        total = np.empty((heads, count, columns))
        _exponentials.symmetric_sums(
            rows, points, payload, total, heads, count, dim, columns, 0, 1
        )
        return total
    parts = -(-SYMMETRIC_TASKS // heads)
    partial = np.empty((heads, parts, count, columns))

    def task(item: tuple[int, int]) -> None:
        head, part = item
        row, out = rows[head], partial[head, part]
        _exponentials.symmetric_sums(
            row, points, payload, out, 1, count, dim, columns, part, parts
        )

    run_tasks(task, [(h, part) for h in range(heads) for part in range(parts)], work, threads)
    return partial.sum(axis=1)
