r"""The JKO step on fixed nodes as a quadratic program, and what every solver of it shares.

With sources ``x_i`` of weight ``a_i``, nodes ``z_j``, ground cost ``c`` and the kernel matrix
:math:`K_{jl} = \pm\sum_h w_h e^{\langle z_j, D_h z_l\rangle}` at the energy's time,

.. math::

    \min_{P \ge 0,\; P 1 = a} \Phi(P), \qquad
    \Phi(P) = \frac{1}{2\tau}\sum_{ij} P_{ij}\, c(x_i, z_j) + \tfrac12 \nu^T K \nu, \qquad \nu = P^T 1 .

Its gradient in ``P_ij`` is the reduced cost :math:`r_{ij} = c(x_i, z_j)/(2\tau) + V_j` with the potential
:math:`V = K\nu`, and the Frank-Wolfe gap

.. math::

    gap(P) = \sum_i a_i\, gap_i, \qquad gap_i = \sum_j \frac{P_{ij}}{a_i} r_{ij} - \min_j r_{ij} \ge 0

is a duality gap: :math:`\Phi - \min\Phi \le gap` when ``K`` is positive semidefinite on mean-zero vectors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array

from ...attention.fields import KernelOverflowError
from ...attention.model import AttentionModel
from ...measures import TokenCloud
from ...transport.cost import ground_cost
from ...transport.plan import MEMORY_LIMIT, PlanTooLargeError

__all__ = ["GridPlan", "GridState", "SupportProblem", "kernel_matrix", "support_problem"]

Array = NDArray[np.float64]
IntArray = NDArray[np.intp]

#: Dense tables that a solve holds at its peak, in numbers of (n, m) and of (m, m) entries.
PLAN_TABLES = 8
NODE_TABLES = 6


@dataclass(frozen=True, eq=False)
class GridPlan:
    """A sparse plan: ``mass[k]`` goes from source ``rows[k]`` to node ``columns[k]``."""

    rows: IntArray
    columns: IntArray
    mass: Array

    @classmethod
    def assignment(cls, columns: IntArray, weights: Array) -> GridPlan:
        """All the mass of source ``i`` to node ``columns[i]``."""
        return cls(np.arange(weights.size), columns, weights)

    def measure(self, nodes: int) -> Array:
        """Second marginal ``nu``, shape (m,)."""
        return histogram(self.columns, self.mass, nodes)

    def repaired(self, weights: Array, threshold: float = 0.0) -> GridPlan:
        """The plan with first marginal ``weights``: clipped at zero, rows rescaled.

        Entries of at most ``threshold`` times their row's weight are dropped first.
        """
        kept = self.mass > threshold * weights[self.rows]
        rows, columns, mass = self.rows[kept], self.columns[kept], self.mass[kept]
        total = histogram(rows, mass, weights.size)
        return GridPlan(rows, columns, mass * (weights / total)[rows])

    def matrix(self, sources: IntArray, shape: tuple[int, int]) -> coo_array:
        """As a sparse matrix; row ``i`` of the plan is row ``sources[i]`` of the matrix."""
        return coo_array((self.mass, (sources[self.rows], self.columns)), shape=shape)


@dataclass(frozen=True, kw_only=True, eq=False)
class GridState:
    """A plan with everything the quadratic program says about it.

    Attributes
    ----------
    plan : GridPlan
    measure, potential : (m,)
        ``nu`` and ``V = K nu``.
    value, transport, energy : float
        ``Phi``, its transport part (divided by 2 tau) and the energy.
    best : (n,)
        Node of smallest reduced cost of every source.
    token_gap : (n,)
        ``gap_i``, per unit mass.
    gap : float
        Frank-Wolfe gap ``sum_i a_i gap_i``.
    """

    plan: GridPlan
    measure: Array
    potential: Array
    value: float
    transport: float
    energy: float
    best: IntArray
    token_gap: Array
    gap: float

    @property
    def rounding(self) -> float:
        """Size of the rounding errors in the gap: no solver can be asked for less."""
        size = float(np.abs(self.potential).max()) + self.transport
        return 32 * float(np.finfo(float).eps) * size


@dataclass(eq=False)
class SupportProblem:
    """The quadratic program; counts the potentials it was asked for.

    Parameters
    ----------
    rate : (n, m)
        ``c(x_i, z_j) / (2 tau)``.
    weights : (n,)
        Source weights, all positive.
    kernel : (m, m)
        ``K``, with the sign of the model.
    """

    rate: Array
    weights: Array
    kernel: Array
    evaluations: int = 0

    @property
    def nodes(self) -> int:
        """Number of nodes m."""
        return int(self.kernel.shape[0])

    def potential(self, measure: Array) -> Array:
        """``V = K nu``."""
        self.evaluations += 1
        value: Array = self.kernel @ measure
        return value

    def state(self, plan: GridPlan) -> GridState:
        """Evaluate a plan."""
        measure = plan.measure(self.nodes)
        potential = self.potential(measure)
        transport = float(plan.mass @ self.rate[plan.rows, plan.columns])
        energy = 0.5 * float(measure @ potential)
        reduced = self.rate + potential
        best = reduced.argmin(axis=1)
        index = np.arange(self.weights.size)
        lowest = reduced[index, best]
        excess = reduced[plan.rows, plan.columns] - lowest[plan.rows]
        token_gap = histogram(plan.rows, plan.mass * excess, self.weights.size) / self.weights
        return GridState(
            plan=plan,
            measure=measure,
            potential=potential,
            value=transport + energy,
            transport=transport,
            energy=energy,
            best=best,
            token_gap=token_gap,
            gap=float(self.weights @ token_gap),
        )

    def start(self) -> GridState:
        """Every source at its cheapest node: at itself, if it is one."""
        return self.state(GridPlan.assignment(self.rate.argmin(axis=1), self.weights))


def histogram(index: IntArray, mass: Array, size: int) -> Array:
    """Sums of ``mass`` by ``index``, shape (size,)."""
    return np.asarray(np.bincount(index, mass, size), dtype=float)


def require_memory(sources: int, nodes: int) -> None:
    """Raise `PlanTooLargeError` if the dense tables of a solve are out of reach."""
    needed = 8 * (PLAN_TABLES * sources * nodes + NODE_TABLES * nodes * nodes)
    if needed > MEMORY_LIMIT:
        raise PlanTooLargeError(
            f"a step from {sources} sources to {nodes} nodes needs about "
            f"{needed / 2**30:.1f} GiB, more than the limit of {MEMORY_LIMIT / 2**30:.0f} GiB; "
            "use fewer nodes, or solver='particles'"
        )


def kernel_matrix(model: AttentionModel, points: Array, t: float) -> Array:
    r"""``K_jl = sign * sum_h w_h exp(<z_j, D_h z_l>)`` at time ``t``, shape (m, m), symmetric.

    Raises
    ------
    KernelOverflowError
        If an entry exceeds the largest double.
    """
    heads = model.heads(t)
    total = np.zeros((points.shape[0], points.shape[0]))
    with np.errstate(over="ignore"):
        for weight, matrix in zip(heads.weights, heads.matrices, strict=True):
            scores = points @ matrix @ points.T
            total += weight * np.exp((scores + scores.T) / 2)
    if not np.isfinite(total).all():
        raise KernelOverflowError(
            f"the kernel matrix overflows double precision (e^709): the largest head has norm "
            f"{heads.norms.max():.4g}; scale the heads down"
        )
    return model.sign * total


def support_problem(
    model: AttentionModel,
    cloud: TokenCloud,
    t: float,
    step: float,
    energy_time: float,
    nodes: Array,
    cost: str,
) -> tuple[SupportProblem, IntArray, Array]:
    """The program of one step, the indices of its sources in the cloud, and their mobilities.

    Tokens of weight zero are left out: they carry nothing.
    """
    sources = np.flatnonzero(cloud.weights > 0)
    require_memory(sources.size, nodes.shape[0])
    ground = ground_cost(cost, model, cloud, t).take(sources)
    rate = ground.matrix(nodes)
    rate /= 2 * step
    problem = SupportProblem(
        rate=rate,
        weights=cloud.weights[sources],
        kernel=kernel_matrix(model, nodes, energy_time),
    )
    return problem, sources, ground.mobility
