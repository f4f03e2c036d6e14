r"""How large a step may be for its certificate to be a proof.

With :math:`\Lambda = \sum_h w_h |D_h| e^{|D_h|}`, which bounds both :math:`|\nabla V|` and :math:`-\mathrm{Hess}\,V` for every
measure, a competitor of token ``i`` lies within :math:`R = 2\tau\Lambda/\hat b_i` of ``x_i`` and the one-token
problem is strongly convex there if :math:`2\Lambda\cot R > \Lambda`: hence :math:`\tau \le \tfrac12\arctan(2)\,\min\hat b/\Lambda`
(on the circle :math:`\tau \le \min\hat b/\Lambda`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .. import sphere
from .._validation import finite_number
from ..attention.heads import Heads
from ..attention.model import AttentionModel
from ..measures import TokenCloud, require_cloud
from ..transport.cost import theta_cot_theta
from .bounds import PotentialBounds
from .branch import Curvature
from .cells import Cells
from .survey import SURVEY_LEVEL, Survey

__all__ = ["StepAdvice", "step_advice"]

Array = NDArray[np.float64]

STEPS_TRIED = 240
MAX_TABLE = 8_000_000


@dataclass(frozen=True, kw_only=True)
class StepAdvice:
    r"""Step sizes below which a step's certificate can be expected to be a proof.

    Attributes
    ----------
    guaranteed : float
        Every smaller step from this cloud is ``proven`` (if the energy is convex, by the
        argument above; otherwise with :math:`\sum_h w_h |D_h|(1 + |D_h|) e^{|D_h|}` added to the constant, so
        that the whole objective is convex too).  Infinite if all heads vanish.
    tightened : float
        The same argument with the derivatives of V at the *current* measure, bounded on cells
        around each token.  An advice, not a theorem: the new measure's V differs.
    """

    guaranteed: float
    tightened: float

    @property
    def gain(self) -> float:
        """How many times larger the tightened step is."""
        if not np.isfinite(self.guaranteed):
            return 1.0
        return self.tightened / self.guaranteed if self.guaranteed > 0 else np.inf


def step_advice(
    model: AttentionModel, cloud: TokenCloud, t: float, energy_time: float | None = None
) -> StepAdvice:
    r"""Advice for a step from ``cloud`` at time ``t``, the energy taken at ``energy_time``.

    Guaranteed: :math:`\tau \le \tfrac12 \arctan(2)\, \min_i \hat b_i / \Lambda`, on the circle
    :math:`\min_i \hat b_i / \Lambda`; see `StepAdvice`.

    Raises
    ------
    ValueError
        If a time is not finite or the dimensions differ.
    """
    require_cloud(cloud)
    energy_time = t if energy_time is None else finite_number(energy_time, "energy_time")
    mobility = model.effective_mobility(cloud.points, cloud, t)
    heads = model.heads(energy_time)
    guaranteed = _guaranteed_step(heads, model.sign, float(mobility.min()), cloud.dim)
    if not np.isfinite(guaranteed):
        return StepAdvice(guaranteed=guaranteed, tightened=guaranteed)
    # bounds of very strong heads overflow to infinity, and then advise nothing
    with np.errstate(over="ignore", invalid="ignore"):
        tightened = _tightened_step(model, cloud, energy_time, mobility)
    return StepAdvice(guaranteed=guaranteed, tightened=max(guaranteed, tightened))


def _guaranteed_step(heads: Heads, sign: int, mobility: float, dim: int) -> float:
    norms = heads.norms
    with np.errstate(over="ignore"):
        constant = float(heads.weights @ (norms * np.exp(norms)))
        if not (sign > 0 and heads.positive_semidefinite):
            constant += float(heads.weights @ (norms * (1 + norms) * np.exp(norms)))
    factor = 1.0 if dim == 2 else float(np.arctan(2) / 2)
    return factor * mobility / constant if constant > 0 else np.inf


def _tightened_step(
    model: AttentionModel, cloud: TokenCloud, t: float, mobility: Array
) -> float:
    """Largest tried step for which every smaller one passes the local proof's conditions."""
    heads = model.heads(t)
    bounds = PotentialBounds.of_measure(cloud.points, cloud.weights, heads, model.sign)
    own = model.fields(cloud.points, cloud, t, 0).first_variation
    survey = _survey(model, cloud, t, bounds)
    best = np.inf
    block = max(1, MAX_TABLE // max(survey.concavity.size, 1))
    for first in range(0, cloud.n, block):
        part = slice(first, first + block)
        steps = _largest_steps(survey, cloud.points[part], mobility[part], own[part])
        best = min(best, float(steps.min()))
    return best


def _survey(model: AttentionModel, cloud: TokenCloud, t: float, bounds: PotentialBounds) -> Survey:
    """Cells for d = 2, 3; one cap, the whole sphere, otherwise."""
    if cloud.dim not in SURVEY_LEVEL:
        return Survey(
            centers=cloud.points[:1],
            radii=np.array([np.pi]),
            concavity=np.array([bounds.concavity]),
            bounds=bounds,
        )
    cells = Cells.cover(cloud.dim, SURVEY_LEVEL[cloud.dim])
    fields = model.fields(cells.centers, cloud, t, 2)
    return Survey.of(fields, cells.radii, Curvature.of(fields.heads, model.sign, bounds))


def _largest_steps(
    survey: Survey, points: Array, mobility: Array, potential: Array
) -> Array:
    """For every token the largest tried step up to which the conditions hold."""
    circle = points.shape[1] == 2
    distance = np.maximum(sphere.distance_matrix(points, survey.centers) - survey.radii, 0)
    order = np.argsort(distance, axis=1)
    near = np.take_along_axis(distance, order, axis=1)
    worst = np.maximum.accumulate(survey.concavity[order], axis=1)
    room = potential - survey.bounds.lower
    scale = mobility / max(survey.bounds.lipschitz, 1e-300)
    limit = np.pi if circle else np.pi / 2
    result = np.zeros(points.shape[0])
    holds = np.ones(points.shape[0], dtype=bool)
    for factor in np.geomspace(1e-4, 10, STEPS_TRIED):
        step = factor * scale
        radius = np.minimum(
            np.sqrt(2 * step * np.maximum(room, 0) / mobility),
            2 * step * survey.bounds.lipschitz / mobility,
        )
        reached = (near <= radius[:, None]).sum(axis=1) - 1
        concavity = worst[np.arange(points.shape[0]), np.maximum(reached, 0)]
        shape = 1.0 if circle else theta_cot_theta(np.minimum(radius, np.pi / 2))
        holds &= (radius < limit) & (mobility * shape / step > concavity)
        result = np.where(holds, step, result)
    return result
