r"""Direct particle flows, with the integrals of the energy balance carried along."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import integrate

from .. import sphere
from .._validation import choice, finite_array, positive_number, time_span
from ..attention.fields import KernelOverflowError
from ..attention.model import VELOCITIES, AttentionModel
from ..measures import TokenCloud, require_cloud
from .curve import Curve, CurveStatus
from .monitors import Monitor, Snapshot, as_monitor
from .movement import step_times

__all__ = ["particle_flow"]

Array = NDArray[np.float64]
RightHandSide = Callable[[float, Array], Array]

ADAPTIVE = {
    "DOP853": integrate.DOP853,
    "RK45": integrate.RK45,
    "RK23": integrate.RK23,
    "Radau": integrate.Radau,
    "BDF": integrate.BDF,
    "LSODA": integrate.LSODA,
}
#: The adaptive solvers take no smaller relative tolerance.
SMALLEST_RTOL = float(100 * np.finfo(float).eps)
FIXED = ("euler", "heun", "rk4")
INTEGRALS = ("energy_time_derivative", "metric_speed_squared", "slope_squared", "defect")


def particle_flow(
    model: AttentionModel,
    cloud: TokenCloud,
    t_span: tuple[float, float],
    velocity: str = "gradient",
    method: str = "DOP853",
    rtol: float = 1e-9,
    step: float | None = None,
    t_eval: ArrayLike | None = None,
    *,
    atol: float | None = None,
    max_step: float = np.inf,
    monitor: Monitor | None = None,
) -> Curve:
    r"""Integrate :math:`\dot x_i = v(x_i)` for all tokens.

    Parameters
    ----------
    model : AttentionModel
    cloud : TokenCloud
        Initial measure.
    t_span : (float, float)
        Start and end time.
    velocity : {"gradient", "softmax"}
        :math:`-p/\hat b`, the gradient flow, or :math:`\mp\sum_h w_h\nabla\log b_h`, the transformer.
    method : str
        ``"DOP853"``, ``"RK45"``, ``"RK23"``, ``"Radau"``, ``"BDF"``, ``"LSODA"``: the adaptive solvers behind
        `scipy.integrate.solve_ivp`, restarted at the kinks of a piecewise linear weight path.
        ``"euler"``, ``"heun"``, ``"rk4"``: fixed steps, right for rough sampled paths.
    rtol, atol : float
        Tolerances of the adaptive methods; ``atol`` defaults to ``rtol``.
    step : float, optional
        Step of the fixed methods (required there); the last one is shortened if need be.
    t_eval : array_like, optional
        Times to keep, increasing, within the span.  By default every step.
    max_step : float
        Largest step of the adaptive methods.
    monitor : Monitor, optional
        Watches the run.

    Returns
    -------
    Curve
        Its ``integrals`` hold the time integrals of the energy balance, integrated as extra
        components of the same ODE.  An interrupted or failed run returns what was done.

    Raises
    ------
    ValueError, TypeError
        For invalid arguments, before any work.

    Notes
    -----
    Coordinates are ambient and normalised inside the right-hand side.  The adaptive solvers
    are stepped one step at a time, so that a run can be watched and interrupted.  On paths with
    kinks the fixed-step methods integrate the explicit change of the energy exactly in time
    (and to second order in the tokens' motion), so that any step keeps the balance meaningful.
    """
    require_cloud(cloud)
    start, end = time_span(t_span)
    choice(velocity, "velocity", VELOCITIES)
    choice(method, "method", (*ADAPTIVE, *FIXED))
    kept = _kept_times(t_eval, start, end)
    if positive_number(rtol, "rtol") < SMALLEST_RTOL:
        raise ValueError(f"rtol must be at least {SMALLEST_RTOL:.2g} (rounding), got {rtol}")
    if atol is not None:
        positive_number(atol, "atol")
    if max_step != np.inf:
        positive_number(max_step, "max_step")
    system = _System(model, cloud, velocity)
    state = system.initial()
    model.energy(cloud, start)
    model.heads(end)  # a path that ends before the span does is an error before any work
    # a path that ends earlier is an error now, not after the last good step
    model.heads(end)
    if method in FIXED:
        if step is None:
            raise ValueError(f"step must be given for the fixed-step method {method!r}")
        step = positive_number(step, "step")
        pieces = _fixed_pieces(system, state, start, end, step, method, kept)
    else:
        if step is not None:
            raise ValueError(
                f"step must be None for the adaptive method {method!r}; bound it with max_step"
            )
        settings = dict(rtol=rtol, atol=rtol if atol is None else atol, max_step=max_step)
        pieces = _adaptive_pieces(system, state, start, end, method, settings, kept)
    return system.collect(pieces, start, state, kept, as_monitor(monitor))


def _kept_times(t_eval: ArrayLike | None, start: float, end: float) -> Array | None:
    if t_eval is None:
        return None
    times = finite_array(t_eval, "t_eval", 1)
    if times.size == 0 or (np.diff(times) <= 0).any():
        raise ValueError("t_eval must be increasing and not empty")
    slack = 1e-12 * max(1.0, abs(start), abs(end))
    if times[0] < start - slack or times[-1] > end + slack:
        raise ValueError(f"t_eval must lie in [{start}, {end}], got {times[0]} .. {times[-1]}")
    return np.clip(times, start, end)


class _IntegratorError(RuntimeError):
    """The adaptive solver gave up."""


@dataclass(eq=False)
class _System:
    """The ODE of the tokens and of the four integrals, as one flat vector."""

    model: AttentionModel
    cloud: TokenCloud
    velocity: str
    evaluations: int = 0
    #: Times from here on belong to the next piece of a piecewise linear path.
    kink: float = np.inf
    #: Whether the explicit change of the energy is taken from energies instead of the ODE.
    rough: bool = False

    def initial(self) -> Array:
        return np.concatenate([self.cloud.points.ravel(), np.zeros(len(INTEGRALS))])

    def points(self, state: Array) -> Array:
        return sphere.normalize(state[: -len(INTEGRALS)].reshape(self.cloud.points.shape))

    def __call__(self, t: float, state: Array) -> Array:
        self.evaluations += 1
        weights = self.cloud.weights
        cloud = TokenCloud(self.points(state), weights)
        fields = self.model.own_fields(cloud, t)
        slope = fields.slope_squared(weights)
        if self.velocity == "gradient":
            speed, defect = slope, 0.0
        else:
            speed = fields.metric_speed_squared(weights, "softmax")
            defect = fields.defect_rate(weights)
        rate = 0.0
        if not self.rough:
            # at a kink the path's derivative is that of the next piece
            inside = t if t < self.kink else np.nextafter(self.kink, -np.inf)
            rate = fields.energy_time_derivative(weights, self.model.path.derivative(inside))
        return np.concatenate(
            [fields.velocity(self.velocity).ravel(), [rate, speed, slope, defect]]
        )

    def explicit_change(self, t: float, state: Array, stop: float, end: Array) -> float:
        """The explicit energy change over a step of a rough path, exact in time.

        Mean of ``E(mu, stop) - E(mu, t)`` over the step's two ends: second order in the motion
        of the tokens, whatever kinks the path has in between.
        """
        change = 0.0
        for value in (state, end):
            cloud = TokenCloud(self.points(value), self.cloud.weights)
            change += self.model.energy(cloud, stop) - self.model.energy(cloud, t)
        return change / 2

    def snapshot(self, t: float, state: Array) -> Snapshot:
        points = self.points(state)
        energy = self.model.energy(TokenCloud(points, self.cloud.weights), t)
        integrals = dict(zip(INTEGRALS, state[-len(INTEGRALS) :].tolist(), strict=True))
        return Snapshot(
            time=t,
            points=points,
            weights=self.cloud.weights,
            energy=energy,
            integrals=integrals,
        )

    def collect(
        self,
        pieces: Iterator[tuple[float, Array]],
        start: float,
        state: Array,
        kept: Array | None,
        monitor: Monitor,
    ) -> Curve:
        """Run the pieces to the end, or to whatever stops them, and build the curve."""
        snapshots = []
        status, detail = CurveStatus.COMPLETE, ""
        try:
            if kept is None or kept[0] == start:
                snapshots.append(self.snapshot(start, state))
                monitor.snapshot(snapshots[0])
            for t, value in pieces:
                snapshots.append(self.snapshot(t, value))
                monitor.snapshot(snapshots[-1])
                monitor.progress(t)
        except KeyboardInterrupt:
            status = CurveStatus.INTERRUPTED
        except (_IntegratorError, KernelOverflowError) as problem:
            status, detail = CurveStatus.INTEGRATOR_FAILED, str(problem)
        if not snapshots:
            snapshots.append(self.snapshot(start, state))
        return Curve(
            model=self.model,
            kind="flow",
            scheme=self.velocity,
            times=np.array([s.time for s in snapshots]),
            points=np.array([s.points for s in snapshots]),
            weights=np.array([s.weights for s in snapshots]),
            energy=np.array([s.energy for s in snapshots]),
            integrals={
                name: np.array([s.integrals[name] for s in snapshots]) for name in INTEGRALS
            },
            evaluations=self.evaluations,
            status=status,
            detail=detail,
        )


def _adaptive_pieces(
    system: _System,
    state: Array,
    start: float,
    end: float,
    method: str,
    settings: dict[str, float],
    kept: Array | None,
) -> Iterator[tuple[float, Array]]:
    """States at the kept times (or at every step), piece by piece between kinks of the path."""
    kinks = system.model.path.breakpoints(start, end)
    first_step = None
    for left, right in zip([start, *kinks], [*kinks, end], strict=True):
        if right <= left:
            continue
        system.kink = np.inf if right == end else float(right)
        bounded = None if first_step is None else min(first_step, right - left)
        with _overflow_is_failure(left):
            solver = ADAPTIVE[method](system, left, state, right, first_step=bounded, **settings)
        while solver.status == "running":
            with _overflow_is_failure(solver.t):
                message = solver.step()
            if solver.status == "failed":
                raise _IntegratorError(f"at t = {solver.t:g}: {message}")
            if kept is None:
                yield float(solver.t), solver.y
            else:
                inside = kept[(kept > solver.t_old) & (kept <= solver.t)]
                if inside.size:
                    dense = solver.dense_output()
                    for t in inside:
                        yield float(t), solver.y if t == solver.t else dense(t)
        first_step, state = solver.h_abs if hasattr(solver, "h_abs") else None, solver.y


@contextmanager
def _overflow_is_failure(t: float) -> Iterator[None]:
    """The solvers square the state in their error norms: integrals above 1e154 overflow there."""
    try:
        with np.errstate(over="raise"):
            yield
    except FloatingPointError as problem:
        raise _IntegratorError(
            f"at t = {t:g}: the integrals of the energy balance overflow double precision in the "
            "error norm, which squares them (e^709); scale the heads down or take fixed steps"
        ) from problem


def _fixed_pieces(
    system: _System,
    state: Array,
    start: float,
    end: float,
    step: float,
    method: str,
    kept: Array | None,
) -> Iterator[tuple[float, Array]]:
    """Fixed steps; kept times are met exactly by shortening the step before them."""
    times = step_times(start, end, step)
    if kept is not None:
        times = _merge(times, kept)
    advance = {"euler": _euler, "heun": _heun, "rk4": _rk4}[method]
    system.rough = system.model.path.breakpoints(start, end).size > 0
    for t, stop in pairwise(times.tolist()):
        new = advance(system, t, state, stop - t)
        if system.rough:
            explicit = INTEGRALS.index("energy_time_derivative") - len(INTEGRALS)
            new[explicit] += system.explicit_change(t, state, stop, new)
        state = new
        if kept is None or stop in kept:
            yield stop, state


def _merge(times: Array, kept: Array) -> Array:
    """Union of both; a grid time within rounding of a kept one is replaced by it."""
    near = np.abs(times[:, None] - kept[None]).min(axis=1) <= 1e-9 * max(1.0, np.abs(times).max())
    return np.union1d(times[~near | (times == times[0])], kept)


def _euler(f: RightHandSide, t: float, y: Array, h: float) -> Array:
    return y + h * f(t, y)


def _heun(f: RightHandSide, t: float, y: Array, h: float) -> Array:
    k1 = f(t, y)
    return y + h / 2 * (k1 + f(t + h, y + h * k1))


def _rk4(f: RightHandSide, t: float, y: Array, h: float) -> Array:
    k1 = f(t, y)
    k2 = f(t + h / 2, y + h / 2 * k1)
    k3 = f(t + h / 2, y + h / 2 * k2)
    k4 = f(t + h, y + h * k3)
    return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
