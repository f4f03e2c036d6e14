r"""What the explorer draws, as JSON with the long arrays packed in 16-bit integers.

Positions are packed with a step of 1/32767 of the radius, values per token with a step of 1/65535
of their colour scale: finer than a pixel and than a colour.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..plotting.style import curve_color, curve_label, line_style
from ..plotting.tokens import Principal, common_times, principal_coordinates
from ..runs.curve import Curve

__all__ = ["TOKENS", "explorer_data", "shown_tokens", "stop_times"]

Array = NDArray[np.float64]

#: Tokens drawn per curve; stops of the slider, at most and wished; coordinates of all stops.
TOKENS, STOPS, WISHED, COORDINATES = 2000, 121, 40, 600_000

#: Exponentials that the colours of all stops may cost; at least as many stops are evaluated.
WORK, FEWEST = 1e10, 11

#: Terms per token of the expansion that replaces the pairwise sums in dimension 2 and 3.
EXPANSION = 3000

#: A colour scale over more than this ratio is logarithmic.
LOGARITHMIC = 20.0

#: Ratio that the scale of the defect spans; smaller values have the lowest colour.
DECADES = 1e3

#: Squares below this share of the speed's are differences of equal numbers.
ROUNDING = 1e-28

#: Points of a line in a chart, and colours of the map, at most.
LINE, RAMP = 400, 33


@dataclass(frozen=True, kw_only=True, eq=False)
class Values:
    """Values along one curve at the stops: per token (m, n), and per measure (m,)."""

    log_mobility: Array
    defect_density: Array
    speed_density: Array
    slope: Array
    defect: Array


def explorer_data(curves: Sequence[Curve]) -> dict[str, Any]:
    """Everything that ``explorer.js`` needs, of at least one curve."""
    n, dim = curves[0].points.shape[1:]
    times = stop_times(curves)
    place = principal_coordinates(curves) if dim > 3 else None
    values, note = _all_values(curves, times)
    drawn = []
    for k, curve in enumerate(curves):
        entry = _curve(curve, times, place)
        if values:
            entry["slope"] = _line(times, values[k].slope)
            entry["defect"] = _line(times, values[k].defect)
        drawn.append(entry)
    ghosts = [k for k, c in enumerate(curves) if (c.kind, c.scheme) == ("flow", "gradient")]
    return {
        "dim": min(int(dim), 4),
        "axes": [f"{'x' if place is None else 'PC'}{k + 1}" for k in range(min(dim, 3))],
        "count": int(n) - 1,
        "times": _significant(times, 10),
        "curves": drawn,
        "charts": ["energy", "slope", "defect"] if values else ["energy"],
        "colours": _colours(values),
        "map": _ramp(),
        "ghost": ghosts[0] if ghosts and len(curves) > 1 else None,
        "note": note,
    }


def shown_tokens(curve: Curve) -> NDArray[np.intp]:
    """Indices of the tokens that are drawn: all, or equispaced ones of a large cloud."""
    n = curve.points.shape[1]
    return np.unique(np.linspace(0, n - 1, min(n, TOKENS)).round().astype(np.intp))


def stop_times(curves: Sequence[Curve]) -> Array:
    """Stops of the slider: saved times of the first curve in the span that all curves cover.

    Long runs are thinned; the intervals of short ones are divided into equal parts.
    """
    span = common_times(curves, 2)
    if span.size < 2:
        return span
    most = int(np.clip(_affordable(curves), FEWEST, STOPS))
    saved = curves[0].times
    saved = np.unique([*span, *saved[(saved > span[0]) & (saved < span[1])]])
    chosen = np.linspace(0, saved.size - 1, min(saved.size, most)).round().astype(np.intp)
    saved = saved[chosen]
    intervals = saved.size - 1
    parts = max(1, min(-(-WISHED // intervals), (most - 1) // intervals))
    inner = np.arange(intervals * parts + 1) / parts
    times: Array = np.interp(inner, np.arange(saved.size), saved)
    return times


def _affordable(curves: Sequence[Curve]) -> float:
    """Number of stops that the size of the page and the work allow."""
    size = COORDINATES / sum(3 * shown_tokens(curve).size for curve in curves)
    return min(size, WORK / max(_work(curves), 1.0))


def _work(curves: Sequence[Curve]) -> float:
    """Exponentials per stop, over all curves with a model."""
    total = 0.0
    for curve in curves:
        if curve.model is not None:
            n, dim = curve.points.shape[1:]
            pairs = n * min(n, EXPANSION) if dim <= 3 else n * n
            total += float(pairs) * curve.model.heads(float(curve.times[0])).count
    return total


def _all_values(curves: Sequence[Curve], times: Array) -> tuple[list[Values], str]:
    """Values of all curves, or none and why."""
    if any(curve.model is None for curve in curves):
        return [], "No colours and slopes: the weight path of this run was not stored."
    if _work(curves) * FEWEST > 3 * WORK:
        return [], "No colours and slopes: they would cost too much for this many tokens."
    try:
        return [_values(curve, times) for curve in curves], ""
    except ArithmeticError as problem:
        return [], f"No colours and slopes: {problem}."


def _values(curve: Curve, times: Array) -> Values:
    model, tokens = curve.model, shown_tokens(curve)
    assert model is not None
    rows: dict[str, list[Any]] = {name: [] for name in Values.__annotations__}
    for t in times:
        cloud = curve.at(float(t))
        fields = model.own_fields(cloud, float(t))
        gap = fields.softmax_velocity - fields.gradient_velocity
        share = 0.5 * cloud.weights * fields.effective_mobility
        rows["log_mobility"].append(fields.log_effective_mobility[tokens])
        rows["defect_density"].append((share * np.sum(gap**2, axis=1))[tokens])
        speed = share * np.sum(fields.gradient_velocity**2, axis=1)
        rows["speed_density"].append(speed[tokens])
        rows["slope"].append(fields.slope_squared(cloud.weights))
        rows["defect"].append(fields.defect_rate(cloud.weights))
    return Values(**{name: np.array(row) for name, row in rows.items()})


def _curve(curve: Curve, times: Array, place: Principal | None) -> dict[str, Any]:
    """A curve's look, its positions (m, n, <= 3) at the stops, its energy at saved times."""
    tokens = shown_tokens(curve)
    clouds = [curve.at(float(t)) for t in times]
    points = np.stack([cloud.points[tokens] for cloud in clouds])
    points = points if place is None else place(points)
    index = np.linspace(0, curve.times.size - 1, min(curve.times.size, LINE))
    saved = np.unique(index.round().astype(np.intp))
    return {
        "label": curve_label(curve),
        "color": curve_color(curve),
        "dashed": line_style(curve) != "-",
        "marks": curve.kind == "movement" and saved.size <= 61,
        "tokens": tokens.tolist(),
        "points": _pack(np.round(32767 * np.clip(points, -1, 1)), "<i2"),
        **_sizes(curve, np.stack([cloud.weights[tokens] for cloud in clouds])),
        "energy": _line(curve.times[saved], curve.energy[saved]),
    }


def _sizes(curve: Curve, weights: Array) -> dict[str, Any]:
    """Radii for areas in proportion to the weights (m, n), as far as they can be told apart."""
    relative = weights * curve.points.shape[1]
    if curve.on_nodes:
        radii = np.sqrt(np.clip(relative, 0.0, 9.0))
        return {"masses": _pack(np.round(10_000 * radii), "<u2")}
    return {"sizes": np.round(np.sqrt(np.clip(relative[0], 0.25, 4.0)), 2).tolist()}


def _line(times: Array, values: Array) -> dict[str, list[float]]:
    return {"t": _significant(times, 10), "v": _significant(values, 8)}


def _significant(values: Array, digits: int) -> list[float]:
    return [float(f"{value:.{digits}g}") for value in np.asarray(values).tolist()]


def _pack(values: Array, kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype=kind).tobytes()).decode("ascii")


def _colours(values: list[Values]) -> list[dict[str, Any]]:
    """Colour scales, common to all curves and times, and the tokens' places on them."""
    if not values:
        return []
    logs = [v.log_mobility for v in values]
    low, high = min(v.min() for v in logs), max(v.max() for v in logs)
    mobility: dict[str, Any] = {"key": "mobility", "label": "effective mobility b̂", "unit": "", "floor": False}
    if high - low > np.log(LOGARITHMIC):
        mobility |= _scale("log", np.exp(low), np.exp(high), logs, low, high)
    else:
        plain = [np.exp(v) for v in logs]
        mobility |= _scale("linear", np.exp(low), np.exp(high), plain, np.exp(low), np.exp(high))
    densities = [v.defect_density for v in values]
    top = max(v.max() for v in densities)
    if top <= ROUNDING * max(v.speed_density.max() for v in values):
        top, densities = 0.0, [np.zeros_like(v) for v in densities]
    floor = top / DECADES
    defect = {
        "key": "defect",
        "label": "defect per token",
        "unit": "energy / time",
        "floor": True,
    }
    if top == 0:
        return [mobility, defect | _scale("linear", 0.0, 0.0, densities, 0.0, 0.0)]
    logs = [np.log(np.maximum(v, floor)) for v in densities]
    defect |= _scale("log", floor, top, logs, np.log(floor), np.log(top))
    return [mobility, defect]


def _scale(
    kind: str, low: float, high: float, values: Sequence[Array], start: float, end: float
) -> dict[str, Any]:
    """A scale from ``low`` to ``high`` whose transformed values run from ``start`` to ``end``."""
    width = end - start if end > start else 1.0
    placed = [np.round(65535 * np.clip((v - start) / width, 0, 1)) for v in values]
    ends = _significant(np.array([low, high]), 6)
    return {
        "scale": kind,
        "low": ends[0],
        "high": ends[1],
        "values": [_pack(value, "<u2") for value in placed],
    }


def _ramp() -> list[str]:
    """The map viridis: perceptually even, and readable with any colour vision."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(color) for color in colormaps["viridis"](np.linspace(0, 1, RAMP))]
