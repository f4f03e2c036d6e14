"""Token clouds in shards on the workers of a dask cluster, and what is known at them.

The client is a `distributed.Client`; nothing here imports it.
"""

from __future__ import annotations

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
from .model import VELOCITIES

__all__ = ["Client", "Part", "Shard", "ShardedCloud", "ShardedFields"]

Array = NDArray[np.float64]


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
class Part:
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


# What follows runs on the workers.


def _integral(shard: Shard, part: Part, name: str, *arguments: Any) -> float:
    return float(getattr(part.fields, name)(shard.weights, *arguments))


def _velocity(shard: Shard, part: Part, kind: str) -> Array:
    return part.fields.velocity(kind)


def _moved(shard: Shard, part: Part, kind: str, step: float) -> Shard:
    points = sphere.exp(shard.points, step * part.fields.velocity(kind))
    return Shard(points=points, weights=shard.weights)
