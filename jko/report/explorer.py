"""The page to play with: tokens of all curves side by side on globes, with one time slider.

The markup and the data are made here; ``explorer*.js`` draw them on canvases, without any other
library, and ``explorer.css`` lays them out.
"""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

from ..plotting.arguments import Curves, as_curves
from ..plotting.style import curve_label
from ..runs.curve import Curve
from .explorer_data import explorer_data

__all__ = ["explorer_head", "explorer_html", "write_explorer"]

#: The browser runs what is in the file and loads nothing.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"

SCRIPTS = ("explorer_data.js", "explorer_globe.js", "explorer_chart.js", "explorer.js")

#: Title, unit and accessible name of the charts.
CHARTS = {
    "energy": ("Energy E", "", "Energy over time"),
    "slope": ("Squared slope G²", "energy / time", "Squared slope over time"),
    "defect": ("Defect rate", "energy / time", "Defect rate of the softmax velocity over time"),
}

KEYS = (
    "Slider: ← → one stop, Home, End, space plays and pauses. Globe: drag or arrow keys turn it, "
    "+ − zoom, 0 resets, a click on a token follows it. Charts: click or drag sets the time."
)
DENSITY = (
    "Defect per token: ½ aᵢ b̂ |v_soft − v_grad|², with weight aᵢ and effective mobility b̂; summed "
    "over the tokens, the defect rate at each curve's own measures."
)
FLAT_KEYS = (
    "Slider: ← → one stop, Home, End, space plays and pauses. "
    "A click on a token follows it. Charts: click or drag sets the time."
)


def explorer_head() -> str:
    """Style and script for the head of a page that holds an `explorer_html`."""
    here = files("jko").joinpath("report")
    style = here.joinpath("explorer.css").read_text("utf-8")
    script = "\n".join(here.joinpath(name).read_text("utf-8") for name in SCRIPTS)
    # in a function, for the names in it are no concern of the page
    script = f'(() => {{\n"use strict";\n{script}\n}})();'
    return f"<style>\n{style}\n</style>\n<script>\n{script}\n</script>"


def explorer_html(curves: Curves) -> str:
    """The explorer of some curves as an element; needs `explorer_head` on the page.

    Parameters
    ----------
    curves : Curve or sequence of Curve
        One to four, in the same dimension, that share a span of time; the first sets the stops
        of the slider.
    """
    curves = as_curves(curves)
    data = explorer_data(curves)
    panels = "\n".join(_panel(curve, k, data["dim"]) for k, curve in enumerate(curves))
    shown = {key: text for key, text in CHARTS.items() if key in data["charts"]}
    charts = "\n".join(_chart(key, *text) for key, text in shown.items())
    note = f'<p class="hint">{escape(data["note"] or DENSITY)}</p>'
    keys = FLAT_KEYS if data["dim"] == 2 else KEYS
    # "<" would end the element early; JSON reads the escape as the same character
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return f"""<div class="explorer">
{_controls(data)}
<div class="panels">
{panels}
</div>
<div class="charts">
{charts}
</div>
{note}
<p class="hint">{escape(keys)}</p>
<script type="application/json">{text}</script>
</div>"""


def write_explorer(
    curves: Curves, path: str | PathLike[str], title: str, text: str = ""
) -> Path:
    """Write a page with nothing but the explorer: one file that opens offline.

    Parameters
    ----------
    curves : Curve or sequence of Curve
        See `explorer_html`.
    path : path-like
        The file; its directory is made if missing.
    title, text : str
        Heading and a sentence below it, plain texts.

    Returns
    -------
    Path
        ``path``.
    """
    path = Path(path)
    policy = escape(POLICY, quote=True)
    lead = f"<p>{escape(text)}</p>" if text else ""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
{explorer_head()}
</head>
<body class="explorer-page">
<main>
<h1>{escape(title)}</h1>
{lead}
{explorer_html(curves)}
</main>
</body>
</html>
""",
        "utf-8",
    )
    return path


def _controls(data: dict[str, Any]) -> str:
    times, colours = data["times"], data["colours"]
    last = len(times) - 1
    options = '<option value="plain">curve</option>' + "".join(
        f'<option value="{colour["key"]}">{escape(colour["label"])}</option>' for colour in colours
    )
    dead = " disabled" if last == 0 else ""
    ghost = (
        '<label><input type="checkbox" class="ghost"> gradient flow as rings</label>\n'
        if data["ghost"] is not None
        else ""
    )
    return f"""<div class="controls">
<div class="play-row">
<button type="button" class="play"{dead}>▶ Play</button>
<label class="time"><span class="sr">time</span><input type="range" min="0" max="{last}" step="1" value="0"{dead}></label>
<output class="now"></output>
</div>
<label>colour <select>{options}</select></label>
<label>token <input type="number" class="follow" aria-label="token to follow" min="0" max="{data["count"]}" placeholder="none"></label>
<label><input type="checkbox" class="trails"> trails</label>
{ghost}<span class="bar" hidden><span class="low"></span><span class="ramp"></span>
<span class="high"></span><span class="unit"></span></span>
</div>"""


def _panel(curve: Curve, index: int, dim: int) -> str:
    name = escape(curve_label(curve), quote=True)
    shape = {2: "circle", 3: "globe"}.get(dim, "globe of principal coordinates")
    return (
        f'<div class="panel" data-index="{index}"><h3><span class="swatch"></span>{name}</h3>\n'
        f'<canvas class="globe" tabindex="0" role="img" aria-label="Tokens of {name} on a {shape}">'
        '</canvas>\n<p class="readout"></p></div>'
    )


def _chart(key: str, title: str, unit: str, label: str) -> str:
    # an energy may be negative; the rates are not
    log = '<label><input type="checkbox"> log</label>' if key != "energy" else ""
    small = f" <small>{escape(unit)}</small>" if unit else ""
    return (
        f'<div class="chart" data-key="{key}"><h3>{escape(title)}{small}{log}</h3>\n'
        f'<canvas role="img" aria-label="{escape(label, quote=True)}"></canvas></div>'
    )
