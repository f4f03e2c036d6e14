r"""Sums of exponentials by numpy: tiles that stay in the cache.

A tile of exponentials stays in the second-level cache between the product that makes it, the
exponential and the product that consumes it.  Where the targets are the sources the tile (I, J)
serves as (J, I) too.  Tiles are spread over threads; both products of a tile are small enough for
BLAS to run them on the thread that asks.
"""

from __future__ import annotations

import threading
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from .threads import SYMMETRIC_TASKS, run_tasks

__all__ = ["row_sums", "tiled_sums"]

Array = NDArray[np.float64]

#: Entries of one tile of exponentials: 512 KiB, half of a second-level cache.
TILE_ENTRIES = 65_536

#: Entries that a thread keeps for its next tile.
SCRATCH_ENTRIES = 131_072

#: Multiplications up to which OpenBLAS runs a matrix product on the calling thread.
SERIAL_PRODUCT = 262_144

#: Dimension from which a tile is all product and little exponential: large tiles and BLAS's
#: own threads then do better than ours.
BLAS_DIMENSION = 33
BLAS_TILE_ENTRIES = 1_048_576

#: Fewer tokens than this fit one tile: there is no symmetric half to save.
SYMMETRIC_COUNT = 257

#: Shifted exponents are cut off here: they add nothing, and subnormal products are slow.
LOG_TINY = -600.0

_local = threading.local()


def tiled_sums(
    at: Array, points: Array, payload: Array, matrices: Array, threads: int | None
) -> Array:
    """`exponential_sums` in tiles, with half of the exponentials where ``at is points``."""
    if at is points and points.shape[0] >= SYMMETRIC_COUNT:
        return _symmetric_sums(points, payload, matrices, threads)
    return row_sums(at, points, payload, matrices, threads)[0]


def scratch(entries: int) -> Array:
    """Uninitialised memory of this thread, the same at every call.

    Fresh memory of the size of a tile costs as much as the exponentials in it: the system maps
    it page by page.  Memory beyond `SCRATCH_ENTRIES` is not kept.
    """
    kept: Array | None = getattr(_local, "scratch", None)
    if kept is None or kept.size < entries:
        kept = np.empty(entries)
        if entries <= SCRATCH_ENTRIES:
            _local.scratch = kept
    return kept[:entries]


def _tile_entries(dim: int, columns: int) -> int:
    """Entries of a tile whose two products stay on the calling thread."""
    if dim >= BLAS_DIMENSION:
        return BLAS_TILE_ENTRIES
    return min(TILE_ENTRIES, SERIAL_PRODUCT // max(dim, columns))


def row_sums(
    at: Array,
    points: Array,
    payload: Array,
    matrices: Array,
    threads: int | None,
    log_weights: Array | None = None,
) -> tuple[Array, Array]:
    """Sums over row tiles, one row per (head, target), and the shifts of their exponents.

    With ``log_weights`` these are added to the exponents, which are shifted by the largest.
    """
    heads, dim = matrices.shape[:2]
    count, sources, columns = at.shape[0], points.shape[0], payload.shape[1]
    rows = np.matmul(at, matrices).reshape(heads * count, dim)
    transposed = np.ascontiguousarray(points.T)
    shifted = log_weights is not None
    if log_weights is not None:
        rows = np.concatenate([rows, np.ones((heads * count, 1))], axis=1)
        transposed = np.concatenate([transposed, log_weights[None]])
    totals = np.zeros((heads * count, columns))
    shift = np.zeros((heads * count, 1))
    entries = _tile_entries(dim, columns)
    height = max(1, min(heads * count, max(128, entries // sources)))
    width = min(sources, max(1, entries // height))
    chunks = [slice(start, start + width) for start in range(0, sources, width)]

    def task(starts: range) -> None:
        buffer = scratch(height * width).reshape(height, width)
        for start in starts:
            sum_tile(buffer, start)

    def sum_tile(buffer: Array, start: int) -> None:
        tile = slice(start, start + height)
        block = rows[tile]
        views = [buffer[: block.shape[0], : sources - c.start] for c in chunks]
        if shifted:
            for c, scores in zip(chunks, views, strict=True):
                np.matmul(block, transposed[:, c], out=scores)
                largest = scores.max(axis=1, keepdims=True)
                shift[tile] = np.maximum(shift[tile], largest) if c.start else largest
        for c, scores in zip(chunks, views, strict=True):
            np.matmul(block, transposed[:, c], out=scores)
            if shifted:
                scores -= shift[tile]
                np.maximum(scores, LOG_TINY, out=scores)
            np.exp(scores, out=scores)
            totals[tile] += scores @ payload[c]

    work = 0 if dim >= BLAS_DIMENSION else heads * count * sources
    run_tasks(task, _batches(range(0, heads * count, height)), work, threads)
    return totals.reshape(heads, count, columns), shift.reshape(heads, count, 1)


def _batches(starts: range, count: int = 32) -> list[range]:
    """At least ``count`` runs of consecutive tiles if there are as many."""
    size = max(1, len(starts) // count)
    return [starts[k : k + size] for k in range(0, len(starts), size)]


def _symmetric_sums(points: Array, payload: Array, matrices: Array, threads: int | None) -> Array:
    """Sums at the sources themselves: a tile (I, J) above the diagonal is used for (J, I) too."""
    heads, dim = matrices.shape[:2]
    count, columns = payload.shape
    blocks = -(-count // isqrt(_tile_entries(dim, columns)))
    height = -(-count // blocks)
    tiles = [slice(start, min(start + height, count)) for start in range(0, count, height)]
    transposed = np.ascontiguousarray(points.T)
    parts = min(len(tiles), -(-SYMMETRIC_TASKS // heads))

    def task(item: tuple[int, int]) -> Array:
        head, part = item
        rows = points @ matrices[head]
        total = np.zeros((count, columns))
        buffer = scratch(height * height)
        for k in range(part, len(tiles), parts):
            i = tiles[k]
            for j in tiles[k:]:
                shape = (i.stop - i.start, j.stop - j.start)
                tile = buffer[: shape[0] * shape[1]].reshape(shape)
                np.matmul(rows[i], transposed[:, j], out=tile)
                np.exp(tile, out=tile)
                total[i] += tile @ payload[j]
                if i != j:
                    total[j] += tile.T @ payload[i]
        return total

    items = [(head, part) for head in range(heads) for part in range(parts)]
    work = 0 if dim >= BLAS_DIMENSION else heads * count * count / 2
    partial = run_tasks(task, items, work, threads)
    totals = np.empty((heads, count, columns))
    for head in range(heads):
        totals[head] = partial[head * parts]
        for part in range(1, parts):
            totals[head] += partial[head * parts + part]
    return totals
