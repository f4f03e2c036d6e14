"""What the curves of a run say of each other: distances, checks, the defect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..diagnostics.balance import energy_balance
from ..plotting import curve_label, defect_over_time
from ..runs.curve import Curve
from ..transport.distance import labelled_distance, wasserstein

__all__ = ["Check", "Comparison"]

Array = NDArray[np.float64]

#: Times at which distances are measured, and operations of the transport solver they may take.
TIMES, PLAN_WORK = 41, 3e9

#: Clouds above this size get the labelled distance, an upper bound that needs no plan.
PLAN_TOKENS = 3000

PLAN_TOLERANCE = 1e-9

#: What to expect of balances where the heads' path has kinks.
ROUGH = " (fixed steps on a path with kinks: to second order in the step)"

#: Relative closures below this are those of adaptive steps, which stop at the kinks.
PRECISE = 1e-7

#: Rounding allowed when an objective is compared with the energy before the step.
ROUNDING = 1e-13


@dataclass(frozen=True, kw_only=True)
class Check:
    """A statement about the run; ``good`` is None for numbers that are measured, not judged."""

    statement: str
    measured: str
    good: bool | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """The curves of a run.

    Attributes
    ----------
    movement : Curve
    flows : mapping of str to Curve
        ``gradient`` and ``softmax``, as far as they are there.
    distance_name : str
        What `distances` are.
    times : (m,)
        Times of `distances`.
    distances : mapping of str to (m,)
        Between pairs of curves, in radians.
    """

    movement: Curve
    flows: Mapping[str, Curve]
    distance_name: str
    times: Array
    distances: Mapping[str, Array]

    @classmethod
    def of(cls, curves: Mapping[str, Curve]) -> Comparison:
        """Measure the distances between all curves."""
        movement = curves["movement"]
        flows = {name: curve for name, curve in curves.items() if name != "movement"}
        members = [movement, *flows.values()]
        plain = movement.points.shape[1] <= PLAN_TOKENS
        times = _distance_times(members, plain)
        pairs = [(a, b) for k, a in enumerate(members) for b in members[k + 1 :]]
        return cls(
            movement=movement,
            flows=flows,
            distance_name="W₂" if plain else "labelled distance (at least W₂)",
            times=times,
            distances={
                f"{curve_label(a)} to {curve_label(b)}": _distances(a, b, times, plain)
                for a, b in pairs
            },
        )

    @property
    def curves(self) -> tuple[Curve, ...]:
        """All curves, the movement first."""
        return (self.movement, *self.flows.values())

    @property
    def heads(self) -> int | None:
        """Number of heads, if the model could be stored."""
        model = self.movement.model
        return None if model is None else model.heads(float(self.movement.times[0])).count

    @property
    def defect_curve(self) -> Curve:
        """The curve whose defect is reported: the softmax flow, or else the movement."""
        return self.flows.get("softmax", self.movement)

    @property
    def defect(self) -> float | None:
        """Integrated defect of `defect_curve`; None without a model."""
        try:
            return float(defect_over_time(self.defect_curve)[2][-1])
        except ValueError:
            return None

    @property
    def defect_sentence(self) -> str:
        """The defect in words."""
        value = self.defect
        if value is None:
            return "The defect of softmax attention is unknown: the weight path was not stored."
        flow = self.flows.get("softmax")
        if flow is None:
            return f"Defect of the softmax velocity along the movement: {value:.4g} (energy)."
        lost = self._dissipated(flow)
        share = f", {value / lost:.1%} of the energy it dissipated" if lost > 0 else ""
        return f"Integrated defect of the softmax flow: {value:.4g}{share}."

    @staticmethod
    def _dissipated(flow: Curve) -> float:
        work = flow.integrals["energy_time_derivative"]
        return float(flow.energy[0] - flow.energy[-1] + work[-1])

    @property
    def summary(self) -> list[tuple[str, str]]:
        """Names and values of the run's main numbers."""
        return list(self._facts())

    def _facts(self) -> Iterator[tuple[str, str]]:
        movement = self.movement
        yield "Scheme, ground cost", f"{movement.scheme}, {movement.cost}"
        steps = np.diff(movement.times)
        if steps.size:
            equal = np.ptp(steps) <= 1e-9 * steps.max()
            text = f"{steps.max():g}" if equal else f"{steps.min():.3g} to {steps.max():.3g}"
            yield "Steps" if steps.size > 1 else "Step", f"{steps.size} of size {text}"
        yield "Ended because", movement.message
        yield "Kernel passes of the movement", f"{movement.evaluations}"
        for curve in self.curves:
            first, last = curve.energy[0], curve.energy[-1]
            yield f"Energy, {curve_label(curve)}", f"{first:.8g} to {last:.8g}"
        for flow in self.flows.values():
            if not flow.success:
                yield f"{curve_label(flow)} ended because", flow.message
        for pair, values in self.distances.items():
            yield f"{self.distance_name}, {pair}, at the end", f"{values[-1]:.4e} rad"
        yield "Defect", self.defect_sentence

    @property
    def checks(self) -> list[Check]:
        """Statements about the run with verdicts."""
        found = [*_step_checks(self.movement)] if self.movement.steps else []
        return [*found, *self._flow_checks()]

    def _flow_checks(self) -> Iterator[Check]:
        for name, flow in self.flows.items():
            balance = energy_balance(flow)
            scale = max(balance.total_variation, 1e-300)
            closure = float(np.abs(balance.closure).max())
            rough = ROUGH if _kinked(flow) and closure > PRECISE * scale else ""
            yield Check(
                statement=f"Energy balance of the {curve_label(flow)}, defect included, closes{rough}",
                measured=f"largest error {closure:.1e}, {closure / scale:.1e} of E's variation",
                good=None,
            )
            if name == "softmax":
                residual = float(balance.residual[-1])
                yield Check(
                    statement="Residual of the softmax flow's balance without the defect",
                    measured=f"{residual:.6g}; integrated defect {balance.terms['defect'][-1]:.6g}",
                    good=None,
                )
        yield Check(
            statement="Defect of multi-head softmax attention",
            measured=self.defect_sentence,
            good=None,
        )


def _kinked(curve: Curve) -> bool:
    """Whether the heads follow a sampled path, with kinks."""
    start, end = float(curve.times[0]), float(curve.times[-1])
    return curve.model is not None and curve.model.path.breakpoints(start, end).size > 0


def _step_checks(movement: Curve) -> Iterator[Check]:
    steps = movement.steps
    certificates = [step.certificate for step in steps]
    stationary = sum(step.success for step in steps)
    norm = max(c.gradient_norm for c in certificates)
    yield Check(
        statement="Every step is stationary",
        measured=f"{stationary} of {len(steps)}; largest relative gradient norm {norm:.1e}",
        good=stationary == len(steps),
    )
    rise = max((s.objective - s.energy_before) / max(1, abs(s.energy_before)) for s in steps)
    yield Check(
        statement="The objective decreases in every step",
        measured=f"largest change {rise:.2e} (relative to the energy, at least to 1)",
        good=rise <= ROUNDING,
    )
    gap = max(c.plan_gap for c in certificates)
    by = Counter(c.plan_checked_by for c in certificates)
    yield Check(
        statement="Every plan is optimal",
        measured=f"largest relative gap {gap:.1e}; checked {_counts(by, 'by ')}",
        good=gap <= PLAN_TOLERANCE,
    )
    kinds = Counter(c.optimality for c in certificates)
    largest = max(c.optimality_gap for c in certificates)
    remedy = " (a token would gain by moving or splitting; use a smaller step)"
    yield Check(
        statement="No better position of a token was found",
        measured=f"{_counts(kinds).replace('failed', f'failed{remedy}')}; largest gap {largest:.1e} (energy)",
        good=None if kinds["unchecked"] else kinds["failed"] == 0,
    )
    convex = sum(c.convex for c in certificates)
    yield Check(
        statement="The energy is convex, so that a zero gap proves a global minimum",
        measured=f"in {convex} of {len(steps)} steps",
        good=None,
    )


def _counts(counter: Counter[str], word: str = "") -> str:
    return ", ".join(f"{number} {word}{name}" for name, number in counter.most_common())


def _distance_times(curves: list[Curve], plain: bool) -> Array:
    """Saved times of the movement within the span of all curves, last one included."""
    end = min(curve.times[-1] for curve in curves)
    times = curves[0].times[curves[0].times <= end + 1e-12 * max(1.0, abs(end))]
    n = curves[0].points.shape[1]
    affordable = int(PLAN_WORK / (3 * max(n, 1) ** 2 * 100)) if plain else TIMES
    most = int(np.clip(affordable, 6, TIMES))
    index = np.unique(np.linspace(0, times.size - 1, min(times.size, most)).round().astype(int))
    return times[index]


def _distances(a: Curve, b: Curve, times: Array, plain: bool) -> Array:
    values = np.empty(times.size)
    for k, t in enumerate(times):
        left, right = a.at(float(t)), b.at(float(t))
        values[k] = (
            wasserstein(left, right)
            if plain
            else labelled_distance(left.points, right.points, left.weights)
        )
    return values
