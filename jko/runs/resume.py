"""Runs that are stored as they go, and can be continued after any interruption.

A resumed run equals an uninterrupted one to the last bit.  A movement of fixed steps goes on
from its last stored states.  A flow, or a movement that chooses its steps, has an integrator or
a controller with a state of its own that no store holds: it is computed again from its start,
which gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from os import PathLike
from typing import Any

from ..attention.model import AttentionModel
from ..measures import TokenCloud
from ..schemes import Scheme, make_scheme
from .columns import curve_snapshots
from .curve import Curve, CurveStatus
from .flow import particle_flow
from .monitors import Monitor, Monitors
from .movement import minimizing_movement
from .paths import exact_cloud
from .store import WRITE_EVERY, StoreError, StoreWriter, load_curve, run_parameters

__all__ = ["resume", "resume_flow", "resume_movement", "store_flow", "store_movement"]

#: Arguments of a run that are no parameters of it.
NOT_STORED = ("model", "cloud", "earlier", "monitor")


def store_movement(
    path: str | PathLike[str],
    model: AttentionModel,
    cloud: TokenCloud,
    t_span: tuple[float, float],
    step: float | None = None,
    scheme: str | Scheme = "jko",
    *,
    monitor: Monitor | None = None,
    every: float = WRITE_EVERY,
    overwrite: bool = False,
    **options: Any,
) -> Curve:
    """`minimizing_movement` with the same arguments, stored at ``path`` as it goes.

    ``every`` is the time between writes in seconds.  If the process dies, `resume_movement`
    continues the run.

    Raises
    ------
    StoreError
        If ``path`` exists and either is no stored curve or ``overwrite`` is false.
    """
    name = make_scheme(scheme).name
    arguments = {"t_span": t_span, "step": step, "scheme": name, **options}
    parameters = _parameters(minimizing_movement, model, cloud, arguments)
    writer = StoreWriter(
        path,
        model=model,
        kind="movement",
        scheme=name,
        cost=parameters["cost"],
        parameters=parameters,
        every=every,
        overwrite=overwrite,
    )
    curve = minimizing_movement(model, cloud, **arguments, monitor=_both(writer, monitor))
    writer.finish(curve)
    return curve


def store_flow(
    path: str | PathLike[str],
    model: AttentionModel,
    cloud: TokenCloud,
    t_span: tuple[float, float],
    velocity: str = "gradient",
    *,
    monitor: Monitor | None = None,
    every: float = WRITE_EVERY,
    overwrite: bool = False,
    **options: Any,
) -> Curve:
    """`particle_flow` with the same arguments, stored at ``path`` as it goes.

    See `store_movement`.
    """
    arguments = {"t_span": t_span, "velocity": velocity, **options}
    writer = StoreWriter(
        path,
        model=model,
        kind="flow",
        scheme=velocity,
        parameters=_parameters(particle_flow, model, cloud, arguments),
        every=every,
        overwrite=overwrite,
    )
    curve = particle_flow(model, cloud, **arguments, monitor=_both(writer, monitor))
    writer.finish(curve)
    return curve


def resume(
    path: str | PathLike[str],
    monitor: Monitor | None = None,
    *,
    model: AttentionModel | None = None,
    every: float = WRITE_EVERY,
) -> Curve:
    """Complete the run stored at ``path`` and return its whole curve.

    Parameters
    ----------
    path : path-like
        Store of a run that `store_movement` or `store_flow` began.
    monitor : Monitor, optional
        Watches what is still to be done.
    model : AttentionModel, optional
        Needed where the weight path was a callable, which no store holds.
    every : float
        Seconds between writes.

    Raises
    ------
    StoreError
        If ``path`` holds no run, or no model and none is given.
    """
    if load_curve(path).kind == "movement":
        return resume_movement(path, monitor, model=model, every=every)
    return resume_flow(path, monitor, model=model, every=every)


def resume_movement(
    path: str | PathLike[str],
    monitor: Monitor | None = None,
    *,
    model: AttentionModel | None = None,
    every: float = WRITE_EVERY,
) -> Curve:
    """Continue the stored movement; see `resume`."""
    curve, parameters = _unfinished(path, "movement")
    if _ended(curve):
        return curve
    model = _model(curve, model, path)
    cloud = exact_cloud(curve.points[0], curve.weights[0])
    if parameters["step"] is None:
        return store_movement(
            path, model, cloud, **parameters, monitor=monitor, every=every, overwrite=True
        )
    writer = StoreWriter.reopen(path, every)
    curve = minimizing_movement(
        model,
        cloud,
        **parameters,
        earlier=tuple(curve_snapshots(curve)),
        monitor=_both(writer, monitor),
    )
    writer.finish(curve)
    return curve


def resume_flow(
    path: str | PathLike[str],
    monitor: Monitor | None = None,
    *,
    model: AttentionModel | None = None,
    every: float = WRITE_EVERY,
) -> Curve:
    """Compute the stored flow again from its start, unless it is complete; see `resume`."""
    curve, parameters = _unfinished(path, "flow")
    if _ended(curve):
        return curve
    return store_flow(
        path,
        _model(curve, model, path),
        exact_cloud(curve.points[0], curve.weights[0]),
        **parameters,
        monitor=monitor,
        every=every,
        overwrite=True,
    )


def _parameters(
    run: Callable[..., Curve],
    model: AttentionModel,
    cloud: TokenCloud,
    arguments: dict[str, Any],
) -> dict[str, Any]:
    """All parameters of a run, defaults included: a later version may have other defaults."""
    bound = signature(run).bind(model, cloud, **arguments)
    bound.apply_defaults()
    return {name: value for name, value in bound.arguments.items() if name not in NOT_STORED}


def _both(writer: StoreWriter, monitor: Monitor | None) -> Monitors:
    return Monitors((writer,) if monitor is None else (writer, monitor))


def _unfinished(path: str | PathLike[str], kind: str) -> tuple[Curve, dict[str, Any]]:
    curve, parameters = load_curve(path), run_parameters(path)
    if curve.kind != kind:
        raise StoreError(f"{path} holds a {curve.kind}, not a {kind}")
    if not parameters:
        raise StoreError(f"{path} holds a saved curve without the parameters of its run")
    return curve, parameters


def _ended(curve: Curve) -> bool:
    return curve.status in (CurveStatus.COMPLETE, CurveStatus.UNCONVERGED)


def _model(
    curve: Curve, model: AttentionModel | None, path: str | PathLike[str]
) -> AttentionModel:
    found = model if curve.model is None else curve.model
    if found is None:
        raise StoreError(
            f"{path} cannot be resumed by itself: its weight path was a callable, which a store "
            "cannot hold; pass model="
        )
    return found
