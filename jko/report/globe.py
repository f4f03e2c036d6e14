"""The moving picture: tokens of all curves on a sphere that can be turned, with a time slider."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..plotting.style import curve_color, curve_label
from ..plotting.tokens import common_times, principal_coordinates
from ..runs.curve import Curve

__all__ = ["globe_figure", "globe_html", "plotly_script"]

Array = NDArray[np.float64]

#: Tokens drawn per curve, frames, and coordinates in all frames together, at most.
TOKENS, FRAMES, COORDINATES = 2000, 61, 400_000

#: Radius of the opaque ball that hides the far side, just inside the tokens.
BALL = 0.985

SYMBOLS = {"movement": "circle", "gradient": "square-open", "softmax": "diamond"}


def plotly_script() -> str:
    """The plotly library as a ``<script>`` element, about 5 MB."""
    from plotly.offline import get_plotlyjs

    return f"<script>{get_plotlyjs()}</script>"


def globe_html(curves: Sequence[Curve]) -> str:
    """The moving picture as a ``<div>`` and a script; needs `plotly_script` on the page."""
    from plotly.io import to_html

    return str(
        to_html(
            globe_figure(curves),
            include_plotlyjs=False,
            full_html=False,
            auto_play=False,
            div_id="globe",
            config={"displaylogo": False, "responsive": True},
            validate=False,
        )
    )


def globe_figure(curves: Sequence[Curve]) -> dict[str, Any]:
    """Tokens over time: on the circle (d = 2), the sphere (d = 3), else by principal axes.

    The figure is plain data: plotly's own classes check every number, which takes seconds.
    """
    n, dim = curves[0].points.shape[1:]
    tokens = _shown_tokens(n)
    count = int(np.clip(COORDINATES / (3 * len(curves) * tokens.size), 11, FRAMES))
    times = common_times(curves, count)
    place, flat = _projection(curves), dim == 2
    background = _background(dim)
    shown = [
        _trace(curve, place(_points(curve, times[0], tokens)), tokens, flat) for curve in curves
    ]
    moving = list(range(len(background), len(background) + len(curves)))
    frames = [
        {
            "name": str(k),
            "data": [_coordinates(place(_points(curve, t, tokens)), flat) for curve in curves],
            "traces": moving,
        }
        for k, t in enumerate(times)
    ]
    layout = _layout(dim) | _controls(times)
    return {"data": [*background, *shown], "frames": frames, "layout": layout}


def _shown_tokens(count: int) -> NDArray[np.intp]:
    return np.unique(np.linspace(0, count - 1, min(count, TOKENS)).round().astype(np.intp))


def _points(curve: Curve, t: float, tokens: NDArray[np.intp]) -> Array:
    return curve.at(float(t)).points[tokens]


def _projection(curves: Sequence[Curve]) -> Any:
    if curves[0].points.shape[2] <= 3:
        return lambda points: points
    return principal_coordinates(curves)


def _coordinates(points: Array, flat: bool) -> dict[str, Any]:
    """A trace's coordinates alone, to four digits: 1e-4 of the radius is less than a pixel."""
    x, y, *z = np.round(points, 4).T.tolist()
    kind = {"type": "scatter"} if flat else {"type": "scatter3d", "z": z[0]}
    return kind | {"x": x, "y": y}


def _trace(curve: Curve, points: Array, tokens: NDArray[np.intp], flat: bool) -> dict[str, Any]:
    relative = curve.weights[0][tokens] * curve.points.shape[1]
    kind = curve.kind if curve.kind == "movement" else curve.scheme
    base = 7.0 if flat else 5.5 * min(1.0, np.sqrt(100 / tokens.size) * 1.2)
    size = base * np.sqrt(np.clip(relative, 0.25, 4.0))
    if kind == "gradient":
        size = 1.5 * size
    marker = {
        "color": curve_color(curve),
        "symbol": SYMBOLS.get(kind, "diamond"),
        "size": np.round(size, 2).tolist(),
        "opacity": 1.0,
        "line": {"width": 1.5 if kind == "gradient" else 0, "color": curve_color(curve)},
    }
    return _coordinates(points, flat) | {
        "mode": "markers",
        "name": curve_label(curve),
        "marker": marker,
        "hovertemplate": f"{curve_label(curve)}, token %{{customdata}}<extra></extra>",
        "customdata": tokens.tolist(),
    }


def _background(dim: int) -> list[dict[str, Any]]:
    """The circle; an opaque ball with a graticule; a graticule alone where tokens lie inside."""
    angle = np.linspace(0, 2 * np.pi, 73)
    line = {"color": "#b8c0c7", "width": 1}
    common = {"mode": "lines", "line": line, "hoverinfo": "skip", "showlegend": False}
    if dim == 2:
        circle = {"type": "scatter", "x": np.cos(angle), "y": np.sin(angle)}
        return [circle | common]
    x, y, z = _graticule(angle)
    lines = {"type": "scatter3d", "x": x, "y": y, "z": z} | common
    return [lines] if dim > 3 else [_ball(), lines]


def _graticule(angle: Array) -> tuple[list[float | None], ...]:
    """Parallels and meridians as one broken line."""
    circles = []
    for latitude in np.radians([-60, -30, 0, 30, 60]):
        ring = [np.cos(latitude) * np.cos(angle), np.cos(latitude) * np.sin(angle)]
        circles.append(np.stack([*ring, np.full_like(angle, np.sin(latitude))]))
    for longitude in np.radians([0, 30, 60, 90, 120, 150]):
        ring = [np.cos(longitude) * np.cos(angle), np.sin(longitude) * np.cos(angle)]
        circles.append(np.stack([*ring, np.sin(angle)]))
    columns: tuple[list[float | None], ...] = ([], [], [])
    for circle in circles:
        for column, values in zip(columns, np.round(circle, 4).tolist(), strict=True):
            column += [*values, None]
    return columns


def _ball() -> dict[str, Any]:
    theta, phi = np.meshgrid(np.linspace(0, np.pi, 25), np.linspace(0, 2 * np.pi, 49))
    x, y = np.sin(theta) * np.cos(phi), np.sin(theta) * np.sin(phi)
    return {
        "type": "surface",
        "x": np.round(BALL * x, 3),
        "y": np.round(BALL * y, 3),
        "z": np.round(BALL * np.cos(theta), 3),
        "surfacecolor": np.zeros_like(x),
        "colorscale": [[0, "#eef2f5"], [1, "#eef2f5"]],
        "showscale": False,
        "hoverinfo": "skip",
        "lighting": {"ambient": 1, "diffuse": 0, "specular": 0, "fresnel": 0},
    }


def _layout(dim: int) -> dict[str, Any]:
    layout: dict[str, Any] = {
        "height": 620,
        "margin": {"l": 0, "r": 0, "t": 10, "b": 0},
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"},
        "font": {"family": "system-ui, Segoe UI, Helvetica Neue, Arial, sans-serif", "size": 13},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
    }
    names = [f"x{k}" for k in (1, 2, 3)] if dim <= 3 else [f"PC{k}" for k in (1, 2, 3)]
    axis: dict[str, Any] = {
        "range": [-1.05, 1.05],
        "showgrid": False,
        "zeroline": False,
        "showticklabels": False,
        "ticks": "",
    }
    if dim == 2:
        layout["xaxis"] = axis | {"title": {"text": names[0]}}
        layout["yaxis"] = axis | {
            "title": {"text": names[1]},
            "scaleanchor": "x",
            "domain": [0.1, 1],
        }
        return layout
    axis |= {"showbackground": False, "showspikes": False}
    scene = {f"{k}axis": axis | {"title": {"text": n}} for k, n in zip("xyz", names, strict=True)}
    layout["scene"] = scene | {
        "aspectmode": "cube",
        "camera": {"eye": {"x": 0.98, "y": 0.98, "z": 0.62}},
    }
    return layout


def _controls(times: Array) -> dict[str, Any]:
    """Slider and buttons."""
    jump = {
        "mode": "immediate",
        "frame": {"duration": 0, "redraw": True},
        "transition": {"duration": 0},
    }
    run = {
        "fromcurrent": True,
        "frame": {"duration": 60, "redraw": True},
        "transition": {"duration": 0},
    }
    steps = [
        {"method": "animate", "label": f"{t:.3g}", "args": [[str(k)], jump]}
        for k, t in enumerate(times)
    ]
    slider = {
        "steps": steps,
        "currentvalue": {"prefix": "t = ", "xanchor": "left"},
        "x": 0.14,
        "len": 0.84,
        "pad": {"t": 10, "b": 10},
    }
    buttons = [
        {"label": "▶ play", "method": "animate", "args": [None, run]},
        {"label": "❚❚ pause", "method": "animate", "args": [[None], jump]},
    ]
    menu = {
        "type": "buttons",
        "direction": "down",
        "buttons": buttons,
        "x": 0.0,
        "y": 0.0,
        "xanchor": "left",
        "yanchor": "top",
        "pad": {"t": 10, "r": 10},
        "showactive": False,
    }
    return {"sliders": [slider], "updatemenus": [menu]}
