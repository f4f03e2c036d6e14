"""How figures look: a colour-blind safe palette, one style, sizes, and export.

Figures use the object interface of matplotlib: no global figure, no window, any thread that draws
at a time.  The style is applied inside a context and leaves the user's settings alone.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from functools import wraps
from os import PathLike
from pathlib import Path
from typing import Any, ParamSpec

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..runs.curve import Curve

__all__ = ["PALETTE", "curve_color", "curve_label", "save_figure", "to_svg"]

Parameters = ParamSpec("Parameters")

#: The palette of Okabe and Ito.
PALETTE = {
    "black": "#000000",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "green": "#009E73",
    "yellow": "#F0E442",
    "blue": "#0072B2",
    "vermilion": "#D55E00",
    "purple": "#CC79A7",
    "grey": "#7F7F7F",
}

STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.labelsize": 10,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "svg.fonttype": "path",
    "svg.hashsalt": "jko",
    "figure.dpi": 110,
    "savefig.dpi": 150,
}

#: Keeps dates and addresses out of the drawings.
NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))

#: Name and colour of a curve, by kind and scheme.
CURVE_STYLES = {
    ("movement", "jko"): ("JKO", "blue"),
    ("movement", "midpoint"): ("midpoint scheme", "purple"),
    ("movement", "bdf2"): ("BDF2 scheme", "orange"),
    ("movement", "ve2"): ("VE2 scheme", "sky"),
    ("movement", "richardson-jko"): ("JKO, Richardson", "black"),
    ("movement", "richardson-midpoint"): ("midpoint, Richardson", "yellow"),
    ("flow", "gradient"): ("gradient flow", "green"),
    ("flow", "softmax"): ("softmax flow", "vermilion"),
}


def curve_label(curve: Curve) -> str:
    """What a reader calls the curve: "JKO", "gradient flow", "softmax flow", ..."""
    known = CURVE_STYLES.get((curve.kind, curve.scheme))
    return known[0] if known else f"{curve.scheme} {curve.kind}"


def curve_color(curve: Curve) -> str:
    """The colour that every figure gives the curve."""
    known = CURVE_STYLES.get((curve.kind, curve.scheme))
    return PALETTE[known[1] if known else "grey"]


def line_style(curve: Curve) -> str:
    """Flows are dashed, so that a movement drawn below them stays visible."""
    return "--" if curve.kind == "flow" else "-"


def styled(function: Callable[Parameters, Figure]) -> Callable[Parameters, Figure]:
    """Build the figure under `STYLE`."""

    @wraps(function)
    def build(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Figure:
        with mpl.rc_context(STYLE):
            return function(*args, **kwargs)

    return build


def new_figure(width: float = 7.2, height: float = 3.8) -> Figure:
    """An empty figure of that size in inches, laid out by constraints."""
    return Figure(figsize=(width, height), layout="constrained")


def legend_above(figure: Figure, axes: Axes | Sequence[Axes], columns: int = 4) -> None:
    """One legend for the figure, above the data and off it."""
    members = [axes] if isinstance(axes, Axes) else list(axes)
    found: dict[str, Artist] = {}
    for ax in members:
        handles, labels = ax.get_legend_handles_labels()
        for handle, label in zip(handles, labels, strict=True):
            found.setdefault(label, handle)
    if found:
        figure.legend(
            list(found.values()),
            list(found),
            loc="outside upper center",
            ncols=min(columns, len(found)),
        )


def slope_triangle(ax: Axes, x: float, y: float, order: float, width: float = 2.0) -> None:
    """A triangle of slope ``order`` on logarithmic axes, its lower left corner at (x, y)."""
    right, top = x * width, y * width**order
    ax.fill([x, right, right], [y, y, top], facecolor="none", edgecolor="#444444", linewidth=1)
    style: dict[str, Any] = {"fontsize": 9, "color": "#444444"}
    ax.annotate(
        "1",
        (np.sqrt(x * right), y),
        (0, -3),
        textcoords="offset points",
        ha="center",
        va="top",
        **style,
    )
    ax.annotate(
        f"{order:g}",
        (right, np.sqrt(y * top)),
        (4, 0),
        textcoords="offset points",
        ha="left",
        va="center",
        **style,
    )


def to_svg(figure: Figure) -> str:
    """The figure as an ``<svg>`` element, to be put inside a page."""
    buffer = io.StringIO()
    with mpl.rc_context(STYLE):
        figure.savefig(buffer, format="svg", metadata=NO_METADATA)
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def save_figure(figure: Figure, path: str | PathLike[str]) -> Path:
    """Write the figure in the format that the suffix of ``path`` names; its directory is made if missing."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        figure.savefig(path)
    return path
