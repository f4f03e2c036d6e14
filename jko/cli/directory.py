"""The directory of a run: what it holds, and computing what it does not hold yet."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..attention.model import AttentionModel
from ..config import (
    ConfigError,
    RunConfig,
    build_cloud,
    build_model,
    flow_options,
    load_config,
    movement_options,
)
from ..measures import TokenCloud
from ..runs.curve import Curve, CurveStatus
from ..runs.flow import particle_flow
from ..runs.groups import consolidate, scatter
from ..runs.monitors import Monitor
from ..runs.paths import exact_cloud
from ..runs.resume import resume, store_flow, store_movement
from ..runs.store import StoreError, load_curve
from ..transport.distance import labelled_distance

__all__ = ["Job", "RunDirectory", "create_run", "open_run"]

Array = NDArray[np.float64]

CONFIG, DATA, FIGURES, REPORT = "config.toml", "data.zarr", "figures", "report.html"

MOVEMENT = "movement"

#: Attribute of the store: measured distance of a fixed-step flow to the one of half the step.
STEP_ERROR = "flow_step_error"

#: A monitor for a computation: its title, its time span, the time it has reached.
MonitorFor = Callable[[str, tuple[float, float], float], Monitor]


@dataclass(frozen=True, kw_only=True)
class RunDirectory:
    """Where the parts of a run are.

    Attributes
    ----------
    root : Path
        Holds ``config.toml``; ``data.zarr``, a Zarr store with one group per curve (``movement``,
        ``gradient``, ``softmax``); ``figures``; ``report.html``.
    """

    root: Path

    @property
    def config(self) -> Path:
        """The configuration, as it was given."""
        return self.root / CONFIG

    @property
    def data(self) -> Path:
        """The Zarr store."""
        return self.root / DATA

    def curve(self, name: str) -> Path:
        """The group of one curve."""
        return self.data / name

    def stored(self, name: str) -> Curve | None:
        """What is stored of a curve; None if not even its first state is."""
        try:
            return load_curve(self.curve(name))
        except StoreError:
            return None


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run that is ready to be computed, as far as it is not computed already.

    Attributes
    ----------
    place : RunDirectory
    config : RunConfig
    model : AttentionModel
    cloud : TokenCloud
    """

    place: RunDirectory
    config: RunConfig
    model: AttentionModel
    cloud: TokenCloud

    @property
    def names(self) -> tuple[str, ...]:
        """The curves of the run, in the order in which they are computed."""
        return (MOVEMENT, *dict.fromkeys(self.config.flows.velocities))

    @property
    def span(self) -> tuple[float, float]:
        """Start and end time."""
        return self.config.run.span

    def compute(self, monitor_for: MonitorFor) -> dict[str, Curve]:
        """Compute, or complete, one curve after the other; stop after one that is interrupted."""
        curves: dict[str, Curve] = {}
        scatter(self.place.data)
        for name in self.names:
            times = curves[MOVEMENT].times if curves else None
            curves[name] = self._compute(name, monitor_for, times)
            if curves[name].status is CurveStatus.INTERRUPTED:
                break
        return curves

    def finish(self, curves: dict[str, Curve]) -> None:
        """Make the store of a run that is complete quick to open as a whole."""
        if all(curve.success for curve in curves.values()):
            consolidate(self.place.data)

    def _compute(self, name: str, monitor_for: MonitorFor, times: Array | None) -> Curve:
        path, every = self.place.curve(name), self.config.output.write_every
        stored = self.place.stored(name)
        if stored is not None:
            goes_on = stored.success or name == MOVEMENT
            reached = float(stored.times[-1]) if goes_on else self.span[0]
            return resume(path, monitor_for(name, self.span, reached), every=every)
        # what a death before the first complete state has left
        shutil.rmtree(path, ignore_errors=True)
        watch = monitor_for(name, self.span, self.span[0])
        options: dict[str, Any] = {"monitor": watch, "every": every}
        if name == MOVEMENT:
            options |= movement_options(self.config)
            return store_movement(path, self.model, self.cloud, **options)
        kept = times if self.config.run.step is None else None
        options |= flow_options(self.config, self.model, kept) | {"velocity": name}
        return store_flow(path, self.model, self.cloud, **options)

    def flow_step_error(self, curves: dict[str, Curve], monitor_for: MonitorFor) -> float | None:
        """Labelled distance between a fixed-step flow and the one of half the step.

        Measured once per run, after a fifth of the span, and kept in the store; None for the
        adaptive methods, which control their own error.
        """
        options = flow_options(self.config, self.model)
        flows = [name for name in self.names if name != MOVEMENT and curves[name].success]
        if options["step"] is None or not flows:
            return None
        import zarr

        store = zarr.open_group(store=self.place.data, mode="r+", zarr_format=3)
        if STEP_ERROR not in store.attrs:
            flow = curves[flows[0]]
            index = int(np.ceil((flow.times.size - 1) / 5))
            options |= {"velocity": flows[0], "step": options["step"] / 2}
            span = float(flow.times[0]), float(flow.times[index])
            options |= {"t_span": span, "t_eval": flow.times[[index]]}
            watch = monitor_for("flow, half step", span, span[0])
            finer = particle_flow(self.model, self.cloud, **options, monitor=watch)
            if finer.status is CurveStatus.INTERRUPTED:
                raise KeyboardInterrupt
            store.attrs[STEP_ERROR] = labelled_distance(
                flow.points[index], finer.points[-1], self.cloud.weights
            )
        return float(str(store.attrs[STEP_ERROR]))


def create_run(config_file: Path, root: Path, overwrite: bool) -> Job:
    """A new run directory for a configuration, everything checked before anything is written.

    Raises
    ------
    ConfigError
        If the configuration, or a file it names, is wrong.
    StoreError
        If ``root`` is in use.
    """
    config = load_config(config_file)
    text = config_file.read_bytes()
    cloud = build_cloud(config, config_file.parent)
    model = build_model(config, cloud, config_file.parent)
    _first_energy(model, cloud, config)
    place = RunDirectory(root=root)
    _clear(place, overwrite)
    root.mkdir(parents=True, exist_ok=True)
    place.config.write_bytes(text)
    _create_data(place)
    return Job(place=place, config=config, model=model, cloud=cloud)


def open_run(root: Path) -> Job:
    """The run in a directory, with the very model and tokens that it began with.

    Raises
    ------
    ConfigError
        If its configuration cannot be read.
    StoreError
        If ``root`` is no run directory, or nothing of it was stored.
    """
    place = RunDirectory(root=root)
    if not place.config.is_file():
        raise StoreError(f"{root} is no run directory: it holds no {CONFIG}")
    config = load_config(place.config)
    begun = place.stored(MOVEMENT)
    if begun is None:
        raise StoreError(
            f"{root} stopped before its first state was stored: there is nothing to resume, "
            "start it again with: jko run --overwrite"
        )
    if begun.model is None:
        raise StoreError(f"{place.curve(MOVEMENT)}: {begun.detail}")
    cloud = exact_cloud(begun.points[0], begun.weights[0])
    return Job(place=place, config=config, model=begun.model, cloud=cloud)


def _first_energy(model: AttentionModel, cloud: TokenCloud, config: RunConfig) -> None:
    try:
        model.energy(cloud, config.run.span[0])
    except ArithmeticError as problem:
        raise ConfigError(f"[weights]: {problem}") from problem


def _clear(place: RunDirectory, overwrite: bool) -> None:
    """Make room: only in an empty directory, or where a run was and may be overwritten."""
    root = place.root
    if not root.exists():
        return
    if not root.is_dir():
        raise StoreError(f"{root} exists and is no directory")
    content = {entry.name for entry in root.iterdir()}
    if not content:
        return
    foreign = sorted(content - {CONFIG, DATA, FIGURES, REPORT})
    if CONFIG not in content or foreign:
        stray = f", {foreign[0]} for one" if foreign else ""
        raise StoreError(f"{root} holds other files{stray}; choose an empty or a new directory")
    if not overwrite:
        raise StoreError(
            f"{root} holds a run already; continue it with: jko resume {root}, or pass --overwrite"
        )
    for part in (DATA, FIGURES):
        shutil.rmtree(root / part, ignore_errors=True)
    (root / REPORT).unlink(missing_ok=True)


def _create_data(place: RunDirectory) -> None:
    import zarr

    zarr.create_group(store=place.data, zarr_format=3)
