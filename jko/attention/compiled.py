r"""Kernel sums by compiled code, where it was built: on one thread or several.

The module ``_compiled`` is built from C when the package is installed with a compiler; without
it everything works, more slowly (see ``docs/decisions.md`` for by how much).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .threads import PARALLEL_WORK, SYMMETRIC_TASKS, run_tasks

try:
    from . import _compiled
except ImportError:
    _compiled = None  # type: ignore[assignment]

__all__ = [
    "compiled_factors",
    "compiled_series",
    "compiled_sums",
    "has_compiled_series",
    "instruction_set",
    "is_compiled",
]

Array = NDArray[np.float64]

#: Exponentials of one task between targets and other sources, and points of one of a series.
TASK_WORK = 2_000_000
POINTS = 8_192


def instruction_set() -> str | None:
    """``"avx512"``, ``"avx2"`` or ``"base"``, what the compiled code uses; None without it."""
    return None if _compiled is None else _compiled.instruction_set()


@cache
def is_compiled(dim: int, columns: int) -> bool:
    """Whether there is compiled code for points of ``dim`` and payloads of ``columns`` entries."""
    return _compiled is not None and _compiled.supports(dim, columns)


def compiled_sums(
    at: Array, points: Array, payload: Array, matrices: Array, threads: int | None
) -> Array:
    """`exponential_sums` where `is_compiled`, with half of the exponentials where ``at is points``."""
    symmetric = at is points
    at, points, payload, matrices = (
        np.ascontiguousarray(array) for array in (at, points, payload, matrices)
    )
    sums = _symmetric_sums if symmetric else _row_sums
    return sums(at, points, payload, matrices, threads)


def _row_sums(
    at: Array, points: Array, payload: Array, matrices: Array, threads: int | None
) -> Array:
    heads, (count, dim), (sources, columns) = matrices.shape[0], at.shape, payload.shape
    total = np.empty((heads, count, columns))
    size = max(1, TASK_WORK // sources)

    def task(item: tuple[slice, slice]) -> None:
        some, part = item
        x, d, out = at[part], matrices[some], total[some, part]
        _compiled.row_sums(x, d, points, payload, out, len(d), len(x), dim, columns)

    work = heads * count * sources
    if work < TASK_WORK:
        task((slice(None), slice(None)))
        return total
    parts = [slice(start, start + size) for start in range(0, count, size)]
    run_tasks(task, [(slice(h, h + 1), part) for h in range(heads) for part in parts], work, threads)
    return total


def _symmetric_sums(
    at: Array, points: Array, payload: Array, matrices: Array, threads: int | None
) -> Array:
    """Sums at the sources themselves; the heads are symmetric."""
    heads, (count, dim), columns = matrices.shape[0], at.shape, payload.shape[1]
    work = heads * count * count / 2
    if work < PARALLEL_WORK:
        total = np.empty((heads, count, columns))
        _compiled.symmetric_sums(
            at, matrices, points, payload, total, heads, count, dim, columns, 0, 1
        )
        return total
    parts = -(-SYMMETRIC_TASKS // heads)
    partial = np.empty((heads, parts, count, columns))

    def task(item: tuple[int, int]) -> None:
        head, part = item
        d, out = matrices[head], partial[head, part]
        _compiled.symmetric_sums(
            at, d, points, payload, out, 1, count, dim, columns, part, parts
        )

    run_tasks(task, [(h, part) for h in range(heads) for part in range(parts)], work, threads)
    return partial.sum(axis=1)


def has_compiled_series() -> bool:
    """Whether there is compiled code for the factors and series of `fourier`."""
    return _compiled is not None


def compiled_factors(points: Array, degree: int) -> list[tuple[Array, Array]]:
    """`fourier.features` at points (B, d)."""
    points = np.ascontiguousarray(points)
    count, dim = points.shape
    shapes = [(2 * degree + 1, 1)]
    if dim == 3:
        shapes = [(degree + 1, degree // 2 * 2 + 1), (degree, (degree + 1) // 2 * 2)]
    pairs = [(np.empty((i, count)), np.empty((o, count))) for i, o in shapes]
    _compiled.fourier_factors(points, dim, degree, *(rows for pair in pairs for rows in pair))
    return pairs


def compiled_series(
    at: Array,
    coefficients: Sequence[Array],
    degree: int,
    total: Array,
    work: float,
    threads: int | None,
) -> None:
    """`fourier.Series.evaluate`: fill ``total`` (H, m, P) from coefficients (O, H, P, I).

    ``work`` is that of one point, see `run_tasks`.
    """
    at = np.ascontiguousarray(at)
    count, dim = at.shape
    heads, _, columns = total.shape
    groups: list[Any] = []
    for c in coefficients:
        groups += [np.ascontiguousarray(c.transpose(1, 2, 0, 3)), c.shape[0], c.shape[3]]
    size = max(64, min(POINTS, int(TASK_WORK / work)))

    def task(start: int) -> None:
        stop = min(start + size, count)
        _compiled.fourier_values(at, total, dim, degree, heads, columns, start, stop, *groups)

    run_tasks(task, range(0, count, size), work * count, threads)
