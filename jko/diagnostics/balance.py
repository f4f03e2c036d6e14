r"""Energy balances: what a curve's energy did, term by term, and what does not add up.

Along any curve with velocity ``v``

.. math::

    E(\mu_t, t) - E(\mu_0, 0) = \int\partial_t E - \tfrac12\int\!\!\int\hat b|v|^2
        - \tfrac12\int G^2 + \int \mathrm{DEFECT}, \qquad
    \mathrm{DEFECT} = \tfrac12\int\hat b\,|v - v_{grad}|^2 d\mu .

The *residual* of a curve is the left side minus the first three terms on the right: zero iff
the curve is a curve of maximal slope; the *closure* subtracts the defect too and is zero up to
numerical error, always.

For a minimizing movement the two halves of the dissipation are discrete (De Giorgi): with
:math:`\tilde\mu_r` the minimiser for the step ``r``, same energy time and same frozen mobility,

.. math::

    E(\mu_k, t_{k+1}) - \Phi = \int_0^\tau \frac{W^2(\mu_k, \tilde\mu_r)}{2 r^2} dr .
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy import integrate

from .. import sphere
from ..attention.model import AttentionModel
from ..measures import TokenCloud
from ..runs.curve import Curve
from ..steps.grid import grid_de_giorgi_integral
from ..steps.particles import solve_tokens
from ..steps.proximal import jko_problem
from ..steps.result import StepRecord

__all__ = ["EnergyBalance", "de_giorgi_integral", "energy_balance"]

Array = NDArray[np.float64]

TERMS = ("energy_change", "energy_time_derivative", "dissipation", "slope", "defect")

#: Gauss-Legendre nodes on every smooth piece of an interval.
QUADRATURE_NODES = 8

#: Pieces into which the De Giorgi integral may be divided.  A smooth interpolant needs one or two; at a
#: jump every halving gains one bit for 42 more proximal problems, so that the error is stated instead.
PIECES = 3
#: The same where a restart found the step: nodes of certified problems follow the jump.
JUMP_PIECES = 8

#: Resolution of objectives, relative to the larger of one and their size.
RESOLUTION = 1e-12

#: Schemes whose steps satisfy the De Giorgi identity with the curve's own points.
VARIATIONAL = ("jko",)


@dataclass(frozen=True, kw_only=True, eq=False)
class EnergyBalance:
    r"""The terms of an energy balance, integrated from the start.

    Attributes
    ----------
    times : (K+1,)
    terms : mapping of str to (K+1,)
        ``energy_change`` :math:`E(t) - E(0)`; ``energy_time_derivative`` :math:`\int\partial_t E`;
        ``dissipation`` :math:`\frac12\int|\dot\mu|^2` (movements: :math:`\sum W^2/(2\tau)`); ``slope``
        :math:`\frac12\int G^2` (movements: the De Giorgi integral); ``defect`` :math:`\int`\ DEFECT.
    residual : (K+1,)
        ``energy_change - energy_time_derivative + dissipation + slope``: for a softmax flow it
        equals the integrated defect, for a curve of maximal slope it is zero.
    closure : (K+1,)
        ``residual - defect``: numerical error alone.
    total_variation : float
        Of the energy along the curve, the scale to compare residuals with.
    steps : int
        Steps of a movement whose slope term is a De Giorgi integral; 0 for other curves.
    unproven : int
        Steps among them whose certificate is not ``proven``.
    not_global : int
        Steps among them that are certainly no global minima: the certificate failed, or a minimiser
        for a shorter step has the lower objective.  The map from the step length to the minimiser
        may jump there, and De Giorgi's identity is not exact.
    quadrature_error : float
        Sum of the estimated errors of the De Giorgi integrals, in units of energy.
    """

    times: Array
    terms: Mapping[str, Array]
    residual: Array
    closure: Array
    total_variation: float
    steps: int = 0
    unproven: int = 0
    not_global: int = 0
    quadrature_error: float = 0.0

    @property
    def relative_closure(self) -> float:
        """Largest ``|closure|`` relative to the energy's total variation."""
        worst = float(np.abs(self.closure).max())
        return worst / self.total_variation if self.total_variation > 0 else worst

    def __repr__(self) -> str:
        rows = [f"EnergyBalance at t = {self.times[-1]:g} (integrals from t = {self.times[0]:g})"]
        rows += [f"  {name:<24}{self.terms[name][-1]: .10e}" for name in TERMS]
        rows += [f"  {'residual':<24}{self.residual[-1]: .3e}"]
        rows += [f"  {'closure':<24}{self.closure[-1]: .3e}"]
        if self.unproven or self.not_global:
            rows += [f"  {self.unproven} of {self.steps} steps are not proven to be minima"]
        if self.not_global:
            rows += [
                f"  {self.not_global} of {self.steps} steps are no global minima: De Giorgi's identity "
                "is not exact there,",
                "  as the minimiser may jump when the step grows; smaller steps mend it (quadrature "
                f"error {self.quadrature_error:.1e})",
            ]
        return "\n".join(rows)


def energy_balance(curve: Curve) -> EnergyBalance:
    r"""The energy balance of a curve.

    Direct flows: from the integrals carried with the ODE.  JKO movements: the discrete
    identity, which closes to rounding at any step if all steps are global minima (on fixed nodes,
    where its integrand is nearly a staircase, to the width of its bracket).  Of a step that is none the
    minimiser may jump as the step length grows: its integral gets bounded work, and the balance
    says how many such steps there are (``not_global``) and what the quadrature may be off.  Other movements: the continuous identity
    along the geodesic interpolation, whose defect, :math:`O(\tau^2)` for second-order schemes, is
    how far the curve is from a curve of maximal slope.

    Parameters
    ----------
    curve : Curve
        With its model.

    Raises
    ------
    ValueError
        If the curve carries no model (its weight path could not be stored).
    """
    if curve.kind == "flow":
        return _flow_balance(curve)
    if curve.model is None:
        raise ValueError("curve.model is None: the balance of a movement needs its weight path")
    if curve.scheme in VARIATIONAL:
        return _movement_balance(curve, curve.model)
    return _interpolated_balance(curve, curve.model)


def _balance(curve: Curve, rates: Array) -> EnergyBalance:
    """From per-interval terms (K, 4): time derivative, dissipation, slope, defect."""
    sums = np.concatenate([np.zeros((1, 4)), np.cumsum(rates, axis=0)])
    change = curve.energy - curve.energy[0]
    residual = change - sums[:, 0] + sums[:, 1] + sums[:, 2]
    return EnergyBalance(
        times=curve.times,
        terms=dict(zip(TERMS, (change, *sums.T), strict=True)),
        residual=residual,
        closure=residual - sums[:, 3],
        total_variation=float(np.abs(np.diff(curve.energy)).sum()),
    )


def _flow_balance(curve: Curve) -> EnergyBalance:
    integrals = curve.integrals
    columns = (
        integrals["energy_time_derivative"],
        integrals["metric_speed_squared"] / 2,
        integrals["slope_squared"] / 2,
        integrals["defect"],
    )
    return _balance(curve, np.diff(np.stack(columns, axis=1), axis=0))


def _movement_balance(curve: Curve, model: AttentionModel) -> EnergyBalance:
    rates = np.zeros((curve.times.size - 1, 4))
    error, not_global = 0.0, 0
    on_nodes = curve.on_nodes
    for k, record in enumerate(curve.steps):
        cloud = curve.cloud(k)
        rates[k, 0] = explicit_energy_change(model, cloud, record.time, record.energy_time)
        rates[k, 1] = record.distance_squared / (2 * record.step)
        failed = record.certificate.optimality == "failed"
        if on_nodes:
            bracket = grid_de_giorgi_integral(model, cloud, record, cost=curve.cost)
            rates[k, 2] = bracket.value
            error += bracket.error
        else:
            found = _interpolant_integral(model, cloud, record, curve.cost)
            rates[k, 2] = found.value
            error += found.error
            failed |= found.lowest < record.objective - RESOLUTION * max(1.0, abs(record.objective))
        not_global += failed
    unproven = sum(record.certificate.optimality != "proven" for record in curve.steps)
    return replace(
        _balance(curve, rates),
        steps=len(curve.steps),
        unproven=unproven,
        not_global=not_global,
        quadrature_error=error,
    )


def explicit_energy_change(
    model: AttentionModel, cloud: TokenCloud, start: float, end: float
) -> float:
    r""":math:`\int_{start}^{end} \partial_t E(\mu, s) ds` at fixed measure, split at the path's kinks."""
    return sum(
        weight * model.energy_time_derivative(cloud, t)
        for t, weight in _quadrature(model, start, end)
    )


def _quadrature(model: AttentionModel, start: float, end: float) -> list[tuple[float, float]]:
    """Gauss-Legendre nodes and weights on the smooth pieces of [start, end]."""
    edges = [start, *model.path.breakpoints(start, end), end]
    nodes, weights = np.polynomial.legendre.leggauss(QUADRATURE_NODES)
    result = []
    for left, right in pairwise(edges):
        half = (right - left) / 2
        result += [
            (float(left + half * (1 + x)), float(half * w))
            for x, w in zip(nodes, weights, strict=True)
        ]
    return result


def de_giorgi_integral(
    model: AttentionModel, cloud: TokenCloud, record: StepRecord, cost: str = "source"
) -> float:
    r""":math:`\int_0^\tau W^2(\mu_k, \tilde\mu_r)/(2 r^2) dr` of one step.

    Adaptive Gauss-Kronrod quadrature over the variational interpolant, every node a proximal
    problem of its own with the step's mobility and energy time.  The branch of minimisers that
    starts at the cloud is followed first; if it does not lead to the step's own minimiser
    (which then came from a restart, or jumped), every node is certified and restarted too,
    and the quadrature subdivides at the jump.  The work is bounded, and where the step is no global
    minimum (its certificate failed) the value may be off by a fraction of a percent; the balance says so.
    """
    return _interpolant_integral(model, cloud, record, cost).value


@dataclass(frozen=True, kw_only=True)
class _Interpolant:
    """A De Giorgi integral, its estimated error, and the lowest objective of the step among its nodes."""

    value: float
    error: float
    lowest: float


def _interpolant_integral(
    model: AttentionModel, cloud: TokenCloud, record: StepRecord, cost: str
) -> _Interpolant:
    problem = jko_problem(model, cloud, record.time, record.step, record.energy_time, cost)
    scale = max(abs(record.energy_before - record.objective), 1e-300)
    accuracy = max(1e-11 * scale, 1e-15 * abs(record.objective))

    def integral(certify: str, pieces: int) -> _Interpolant:
        lowest = [record.objective]

        def integrand(fraction: float) -> float:
            r = fraction * record.step
            at = solve_tokens(replace(problem, step=r), 1e-11, 1000, certify).at
            # the node as a candidate for the step itself
            lowest.append(at.energy + fraction * at.transport)
            return at.transport / r * record.step

        # with full_output scipy returns its complaints instead of warning
        value, error, *_ = integrate.quad(
            integrand, 0, 1, epsabs=accuracy, epsrel=1e-11, limit=pieces, full_output=1
        )
        return _Interpolant(value=float(value), error=float(error), lowest=min(lowest))

    end = solve_tokens(problem, 1e-11, 1000, "none").at.value
    same_branch = abs(end - record.objective) <= RESOLUTION * max(1.0, abs(end))
    if same_branch or record.certificate.optimality == "failed":
        return integral("none", PIECES)
    return integral("full", JUMP_PIECES)


def _interpolated_balance(curve: Curve, model: AttentionModel) -> EnergyBalance:
    """The continuous identity along geodesics between the labelled clouds."""
    rates = np.zeros((curve.times.size - 1, 4))
    for k in range(curve.times.size - 1):
        rates[k] = _interval_terms(curve, model, k)
    return _balance(curve, rates)


def _interval_terms(curve: Curve, model: AttentionModel, k: int) -> Array:
    start, end = float(curve.times[k]), float(curve.times[k + 1])
    x, weights = curve.points[k], curve.weights[k]
    chord = sphere.log(x, curve.points[k + 1]) / (end - start)
    total = np.zeros(4)
    for t, weight in _quadrature(model, start, end):
        moved = (t - start) * chord
        points = sphere.exp(x, moved)
        velocity = _geodesic_velocity(x, moved, chord)
        fields = model.own_fields(TokenCloud(points, weights), t)
        gap = velocity - fields.gradient_velocity
        total += weight * np.array(
            [
                fields.energy_time_derivative(weights, model.path.derivative(t)),
                fields.mobility_weighted(weights, velocity, "squared metric speed") / 2,
                fields.slope_squared(weights) / 2,
                fields.mobility_weighted(weights, gap, "defect") / 2,
            ]
        )
    return total


def _geodesic_velocity(x: Array, moved: Array, chord: Array) -> Array:
    """Derivative of ``exp_x(s chord)`` where ``moved = s chord``."""
    angle = np.sqrt(np.einsum("nd,nd->n", moved, moved))[:, None]
    speed = np.sqrt(np.einsum("nd,nd->n", chord, chord))[:, None]
    return np.cos(angle) * chord - np.sin(angle) * speed * x
