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

The client is a `distributed.Client`; nothing here imports it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .. import sphere
from .._validation import choice, finite_number, positive_integer
from ..measures import TokenCloud
from .fields import Fields
from .fourier import grid, moments
from .harmonic import HarmonicKernel, _empty_sums, _Problem, _put, degree_groups
from .heads import Heads
from .kernel import UNSHIFTED_NORM, exponential_sums, kernel_sums, moment_payload
from .model import VELOCITIES, AttentionModel

__all__ = ["Client", "ShardedCloud", "ShardedFields", "sharded_fields"]

Array = NDArray[np.float64]
IntArray = NDArray[np.intp]

logger = logging.getLogger(__name__)


class Client(Protocol):
    """What is used of `distributed.Client`."""

    def submit(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """A future of ``function(*args)``."""

    def gather(self, futures: Any) -> Any:
        """The results of futures."""

    def scatter(self, data: Any, **options: Any) -> Any:
        """Futures of data moved to workers."""

    def nthreads(self) -> dict[str, int]:
        """Threads of every worker, by address."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Shard:
    """Some of the tokens, on one worker."""

    points: Array
    weights: Array


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


@dataclass(frozen=True, kw_only=True, eq=False)
class _Part:
    """The fields at one shard, and where they must be summed densely (H, tokens)."""

    fields: Fields
    missed: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class ShardedCloud:
    """A token cloud in shards, every shard on one worker.

    Attributes
    ----------
    client : Client
    shards : tuple of futures
        In the order of the tokens.
    workers : tuple of str
        The worker of every shard.
    n, dim : int
        Number of tokens and their dimension.
    """

    client: Client
    shards: tuple[Any, ...]
    workers: tuple[str, ...]
    n: int
    dim: int

    @classmethod
    def scatter(cls, client: Client, cloud: TokenCloud, shards: int | None = None) -> ShardedCloud:
        """Send ``cloud`` to the workers, in ``shards`` parts (default one for each worker).

        Raises
        ------
        ValueError
            If there are no workers, or more shards than tokens.
        """
        addresses = sorted(client.nthreads())
        if not addresses:
            raise ValueError("client must have at least one worker, got none")
        count = len(addresses) if shards is None else positive_integer(shards, "shards")
        if count > cloud.n:
            raise ValueError(f"shards must be at most the number of tokens {cloud.n}, got {count}")
        workers = tuple(addresses[k * len(addresses) // count] for k in range(count))
        bounds = [cloud.n * k // count for k in range(count + 1)]
        parts = [slice(*pair) for pair in pairwise(bounds)]
        futures = tuple(
            client.scatter(
                Shard(points=cloud.points[part], weights=cloud.weights[part]),
                workers=[worker],
                hash=False,
            )
            for part, worker in zip(parts, workers, strict=True)
        )
        return cls(client=client, shards=futures, workers=workers, n=cloud.n, dim=cloud.dim)

    def __repr__(self) -> str:
        return f"ShardedCloud(n={self.n}, dim={self.dim}, shards={len(self.shards)})"

    def map(
        self, function: Callable[..., Any], *common: Any, each: Sequence[Sequence[Any]] = ()
    ) -> tuple[Any, ...]:
        """Futures of ``function(shard, *row of each, *common)``, on the workers of the shards."""
        rows = zip(self.shards, *each, strict=True)
        return tuple(
            self.client.submit(function, *row, *common, workers=[worker], pure=False)
            for worker, row in zip(self.workers, rows, strict=True)
        )

    def collect(self, function: Callable[..., Any], *common: Any) -> list[Any]:
        """The values of ``function(shard, *common)``, in this process."""
        return list(self.client.gather(list(self.map(function, *common))))

    def gather(self) -> TokenCloud:
        """All tokens, in this process."""
        shards = self.client.gather(list(self.shards))
        points, weights = (
            np.concatenate([getattr(shard, name) for shard in shards])
            for name in ("points", "weights")
        )
        return TokenCloud(points, weights)


@dataclass(frozen=True, kw_only=True, eq=False)
class ShardedFields:
    """Energy, slopes and velocities at the tokens themselves, from one kernel pass.

    Attributes
    ----------
    cloud : ShardedCloud
    parts : tuple of futures
        What is known at every shard, on its worker.
    """

    cloud: ShardedCloud
    parts: tuple[Any, ...]

    def _values(self, function: Callable[..., Any], *common: Any) -> list[Any]:
        futures = self.cloud.map(function, *common, each=[self.parts])
        return list(self.cloud.client.gather(list(futures)))

    @property
    def energy(self) -> float:
        """``E``."""
        return float(sum(self._values(_integral, "energy")))

    @property
    def slope_squared(self) -> float:
        """``G^2 = int |p|^2 / bhat dmu``."""
        return float(sum(self._values(_integral, "slope_squared")))

    @property
    def defect_rate(self) -> float:
        """``1/2 int bhat |v_soft - v_grad|^2 dmu``."""
        return float(sum(self._values(_integral, "defect_rate")))

    def metric_speed_squared(self, kind: str = "gradient") -> float:
        """``int bhat |v|^2 dmu`` for the velocity named ``kind``."""
        choice(kind, "kind", VELOCITIES)
        return float(sum(self._values(_integral, "metric_speed_squared", kind)))

    def velocity(self, kind: str = "gradient") -> Array:
        """Velocities of all tokens, in this process, shape (n, d)."""
        choice(kind, "kind", VELOCITIES)
        return np.concatenate(self._values(_velocity, kind))

    def moved(self, step: float, kind: str = "gradient") -> ShardedCloud:
        r"""The cloud of :math:`\exp_{x_i}(h v_i)`, an explicit step of size ``h``; it stays on the workers."""
        step = finite_number(step, "step")
        choice(kind, "kind", VELOCITIES)
        return replace(self.cloud, shards=self.cloud.map(_moved, kind, step, each=[self.parts]))


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
    parts = cloud.map(_part, heads, model.sign, order, measures, whole, tolerance)
    missed = sum(cloud.client.gather(list(cloud.map(_missed, each=[parts]))))
    if missed.any():
        parts = _repaired(cloud, parts, heads, missed > 0, order)
    return ShardedFields(cloud=cloud, parts=parts)


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
    strong = missed & (heads.norms > UNSHIFTED_NORM)
    if strong.any():
        head = int(np.argmax(strong))
        raise ValueError(
            f"heads.matrices[{head}] has norm {heads.norms[head]:.4g}, and dense sums over "
            f"shards need norms of at most {UNSHIFTED_NORM:.0f}; evaluate in one process"
        )
    logger.debug("dense sums over %d shards for the heads %s", len(parts), np.flatnonzero(missed))
    wanted = cloud.map(_targets, each=[parts])
    sums = [cloud.map(_dense_sums, targets, heads.matrices, order) for targets in wanted]
    # sums[k][l]: what shard l adds at the targets of shard k
    return tuple(
        cloud.client.submit(
            _completed, part, list(row), order, workers=[worker], pure=False
        )
        for part, row, worker in zip(parts, sums, cloud.workers, strict=True)
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
) -> _Part:
    """Evaluate the measures of all heads at the tokens of the shard."""
    x = shard.points
    sums = _empty_sums(_Problem(x, x, shard.weights, heads.matrices, order))
    missed = np.ones((heads.count, x.shape[0]), dtype=bool)
    for m in measures:
        problem = _Problem(x, m.nodes, m.masses, heads.matrices[m.heads], order)
        error = HarmonicKernel(tolerance)._harmonic(problem, m.degree, sums, m.heads)
        for e, norm, head in zip(error, problem.norms, m.heads, strict=True):
            # as in one process, with moments rounded twice: of the tokens and of the nodes
            bound = 4 * e * np.exp(-sums.log_mobility[head])
            bound += 2 * norm * (problem.off + whole.off)
            missed[head] = ~(bound <= tolerance)
    return _Part(fields=Fields(at=x, heads=heads, sign=sign, sums=sums), missed=missed)


def _missed(shard: Shard, part: _Part) -> IntArray:
    """How many values of every head were missed."""
    return np.asarray(part.missed.sum(axis=1))


def _targets(shard: Shard, part: _Part) -> list[Array]:
    """For every head the points at which its sums were missed."""
    return [shard.points[row] for row in part.missed]


def _dense_sums(shard: Shard, targets: list[Array], matrices: Array, order: int) -> list[Array]:
    """What the shard adds to the sums of every head at its targets."""
    payload = moment_payload(shard.points, shard.weights, order)
    return [
        exponential_sums(at, shard.points, payload, matrices[h : h + 1])[0]
        if at.size
        else np.empty((0, payload.shape[1]))
        for h, at in enumerate(targets)
    ]


def _completed(part: _Part, shares: list[list[Array]], order: int) -> _Part:
    """The part with the sums of all shards written where values were missed."""
    for head, pieces in enumerate(zip(*shares, strict=True)):
        where = np.flatnonzero(part.missed[head])
        if where.size:
            total = np.asarray(sum(pieces))
            _put(part.fields.sums, [head], where, kernel_sums(total[None], 0.0, order))
    fields = replace(part.fields)  # without what was derived before
    return _Part(fields=fields, missed=np.zeros_like(part.missed))


def _integral(shard: Shard, part: _Part, name: str, *arguments: Any) -> float:
    return float(getattr(part.fields, name)(shard.weights, *arguments))


def _velocity(shard: Shard, part: _Part, kind: str) -> Array:
    return part.fields.velocity(kind)


def _moved(shard: Shard, part: _Part, kind: str, step: float) -> Shard:
    points = sphere.exp(shard.points, step * part.fields.velocity(kind))
    return Shard(points=points, weights=shard.weights)
