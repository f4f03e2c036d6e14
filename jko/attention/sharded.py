r"""Tokens that live in shards on the workers of a dask cluster.

A harmonic pass needs nothing of the other workers' tokens but their moments
:math:`M = \sum_j a_j w(y_j)`, a few thousand numbers, and moments add up:

1. every worker sums the moments of its shard, the client adds them in the order of the shards;
2. the sum becomes masses of the nodes of a small grid, a measure with the same moments as all
   tokens together (see `jko.attention.harmonic`), which is sent to every worker;
3. every worker evaluates that measure at its own tokens.

Values whose bound misses the tolerance are summed densely, every shard adding its part.
Tokens, kernel sums and velocities stay where they are, and results depend on the number of
shards (by rounding) but not on the workers.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._validation import finite_number
from .fields import Fields
from .fourier import grid, moments
from .harmonic import HarmonicKernel, _empty_sums, _Problem, _put, degree_groups
from .heads import Heads
from .kernel import UNSHIFTED_NORM, KernelSums, exponential_sums, moment_payload
from .model import AttentionModel
from .shards import Part, Shard, ShardedCloud, ShardedFields

__all__ = ["ShardedCloud", "ShardedFields", "sharded_fields", "sharded_fields_at"]

Array = NDArray[np.float64]
IntArray = NDArray[np.intp]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Whole:
    """What everyone knows of all tokens: mass, mean and the largest distance from norm one."""

    mass: float
    mean: Array
    off: float


@dataclass(frozen=True, kw_only=True, eq=False)
class _Measure:
    """A measure on a grid with the moments of all tokens, and the heads it serves."""

    nodes: Array
    masses: Array
    heads: IntArray
    degree: int


def sharded_fields(
    model: AttentionModel, cloud: ShardedCloud, t: float, order: int = 1
) -> ShardedFields:
    """`AttentionModel.own_fields` of tokens on the workers; they stay there.

    Order 0 gives mobilities and energy, 1 adds gradients and velocities, 2 second moments.

    Raises
    ------
    ValueError
        If the dimensions differ, or if a head that needs dense sums has a norm above 300.
    """
    heads, common = _shared(model, cloud, t, order)
    parts = cloud.map(_part, *common)
    missed = sum(cloud.client.gather(list(cloud.map(_missed, each=[parts]))))
    if missed.any():
        parts = _repaired(cloud, parts, heads, missed > 0, order)
    return ShardedFields(cloud=cloud, parts=parts)


def sharded_fields_at(
    model: AttentionModel, cloud: ShardedCloud, t: float, at: Array, order: int = 1
) -> Fields:
    """`AttentionModel.fields` at points ``at`` (m, d) of this process, of tokens on the workers.

    Raises
    ------
    ValueError
        As `sharded_fields`.
    """
    heads, common = _shared(model, cloud, t, order)
    part = _part(Shard(points=at, weights=np.zeros(at.shape[0])), *common)
    missed = np.asarray(part.missed.any(axis=1))
    if missed.any():
        _require_plain(heads, missed)
        sums = cloud.collect(_dense_sums_at, [at[row] for row in part.missed], heads, order)
        part = _completed(part, sums, order)
    return part.fields


def _shared(
    model: AttentionModel, cloud: ShardedCloud, t: float, order: int
) -> tuple[Heads, tuple[Any, ...]]:
    """The heads, and the arguments of `_part` that all shards share."""
    heads = model.path(finite_number(t, "t"))
    if cloud.dim != heads.dim:
        raise ValueError(
            f"cloud has dimension {cloud.dim} but the heads have dimension {heads.dim}"
        )
    whole = _whole(cloud)
    tolerance = getattr(model.kernel, "tolerance", None)
    degrees = np.zeros(heads.count, dtype=np.intp)
    if tolerance is not None and cloud.dim in (2, 3):
        degrees = HarmonicKernel(tolerance).degrees(
            whole.mean[None], np.array([whole.mass]), heads.matrices, order
        )
    measures = _measures(cloud, degrees, order)
    return heads, (heads, model.sign, order, measures, whole, tolerance)


def _whole(cloud: ShardedCloud) -> _Whole:
    masses, sums, offs = zip(*cloud.collect(_summary), strict=True)
    mass = float(sum(masses))
    return _Whole(mass=mass, mean=np.asarray(sum(sums)) / mass, off=max(offs))


def _measures(cloud: ShardedCloud, degrees: IntArray, order: int) -> list[_Measure]:
    """One measure for every group of heads of similar degree."""
    groups = degree_groups(degrees)
    if not groups:
        return []
    highest = [int(degrees[group].max()) for group in groups]
    shares = cloud.collect(_moments, [degree + order for degree in highest])
    measures = []
    for group, degree, parts in zip(groups, highest, zip(*shares, strict=True), strict=True):
        total = [np.asarray(sum(pair)) for pair in zip(*parts, strict=True)]
        source = grid(cloud.dim, degree + order)
        measures.append(
            _Measure(nodes=source.nodes, masses=source.spread(total), heads=group, degree=degree)
        )
    return measures


def _repaired(
    cloud: ShardedCloud,
    parts: tuple[Any, ...],
    heads: Heads,
    missed: NDArray[np.bool_],
    order: int,
) -> tuple[Any, ...]:
    """The parts with dense sums where they were missed; targets travel, tokens do not."""
    _require_plain(heads, missed)
    logger.debug("dense sums over %d shards for the heads %s", len(parts), np.flatnonzero(missed))
    wanted = cloud.map(_targets, each=[parts])
    sums = [cloud.map(_dense_sums_at, targets, heads, order) for targets in wanted]
    # sums[k][l]: what shard l adds at the targets of shard k
    return tuple(
        cloud.client.submit(
            _completed, part, list(row), order, workers=[worker], pure=False
        )
        for part, row, worker in zip(parts, sums, cloud.workers, strict=True)
    )


def _require_plain(heads: Heads, missed: NDArray[np.bool_]) -> None:
    strong = missed & (heads.norms > UNSHIFTED_NORM)
    if strong.any():
        head = int(np.argmax(strong))
        raise ValueError(
            f"heads.matrices[{head}] has norm {heads.norms[head]:.4g}, and dense sums over "
            f"shards need norms of at most {UNSHIFTED_NORM:.0f}; evaluate in one process"
        )


# What follows runs on the workers.


def _summary(shard: Shard) -> tuple[float, Array, float]:
    off = np.abs(np.sqrt(np.einsum("ni,ni->n", shard.points, shard.points)) - 1)
    return float(shard.weights.sum()), shard.weights @ shard.points, float(off.max())


def _moments(shard: Shard, degrees: list[int]) -> list[list[Array]]:
    return [moments(shard.points, shard.weights, degree) for degree in degrees]


def _part(
    shard: Shard,
    heads: Heads,
    sign: int,
    order: int,
    measures: list[_Measure],
    whole: _Whole,
    tolerance: float,
) -> Part:
    """Evaluate the measures of all heads at the tokens of the shard."""
    x = shard.points
    sums = _empty_sums(_Problem(x, x, shard.weights, heads.matrices, order))
    missed = np.ones((heads.count, x.shape[0]), dtype=bool)
    for m in measures:
        problem = _Problem(x, m.nodes, m.masses, heads.matrices[m.heads], order)
        error = HarmonicKernel(tolerance)._harmonic(problem, m.degree, sums, m.heads)
        for e, norm, head in zip(error, problem.norms, m.heads, strict=True):
            # as in one process, with moments rounded twice: of the tokens and of the nodes
            bound = 4 * e / sums.totals[head, :, 0]
            bound += 2 * norm * (problem.off + whole.off)
            missed[head] = ~(bound <= tolerance)
    return Part(fields=Fields(at=x, heads=heads, sign=sign, sums=sums), missed=missed)


def _missed(shard: Shard, part: Part) -> IntArray:
    """How many values of every head were missed."""
    return np.asarray(part.missed.sum(axis=1))


def _targets(shard: Shard, part: Part) -> list[Array]:
    """For every head the points at which its sums were missed."""
    return [shard.points[row] for row in part.missed]


def _dense_sums_at(
    shard: Shard, targets: list[Array], heads: Heads, order: int
) -> list[Array]:
    """What the shard adds to the sums of every head at its targets."""
    payload = moment_payload(shard.points, shard.weights, order)
    return [
        exponential_sums(at, shard.points, payload, heads.matrices[h : h + 1])[0]
        if at.size
        else np.empty((0, payload.shape[1]))
        for h, at in enumerate(targets)
    ]


def _completed(part: Part, shares: list[list[Array]], order: int) -> Part:
    """The part with the sums of all shards written where values were missed."""
    for head, pieces in enumerate(zip(*shares, strict=True)):
        where = np.flatnonzero(part.missed[head])
        if where.size:
            total = np.asarray(sum(pieces))
            _put(part.fields.sums, [head], where, KernelSums(order=order, totals=total[None]))
    # without what was derived before
    fields = replace(part.fields, sums=replace(part.fields.sums))
    return Part(fields=fields, missed=np.zeros_like(part.missed))
