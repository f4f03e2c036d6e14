"""Monitors: what watches a run, apart from what computes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..steps.result import StepRecord

__all__ = ["Monitor", "Monitors", "Snapshot"]

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Snapshot:
    """The state of a run at one of its times.

    Attributes
    ----------
    time : float
    points, weights : arrays
        The cloud.
    energy : float
    record : StepRecord or None
        The step that led here (movements).
    integrals : mapping of str to float
        Integrals from the start (flows).
    """

    time: float
    points: Array
    weights: Array
    energy: float
    record: StepRecord | None = None
    integrals: Mapping[str, float] = field(default_factory=dict)


class Monitor(Protocol):
    """Something that watches a run.

    ``snapshot`` is called once for the initial state and after every kept time, ``progress``
    as often as the run likes with the time reached.  Monitors keep their own cadence.
    """

    def snapshot(self, snapshot: Snapshot) -> None:
        """A state that the curve will hold."""
        ...

    def progress(self, time: float) -> None:
        """The time that the run has reached."""
        ...


@dataclass(frozen=True)
class Monitors:
    """Several monitors as one."""

    members: tuple[Monitor, ...] = ()

    def snapshot(self, snapshot: Snapshot) -> None:
        """Pass a snapshot on."""
        for member in self.members:
            member.snapshot(snapshot)

    def progress(self, time: float) -> None:
        """Pass a time on."""
        for member in self.members:
            member.progress(time)


def as_monitor(monitor: Monitor | None) -> Monitor:
    """A monitor that may be absent."""
    return Monitors() if monitor is None else monitor
