"""Run the curves of the page to play with, and write it beside the site's static files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jko
import numpy as np
from jko.report.explorer import write_explorer

SPAN = 3.0


def curves_of(model: jko.AttentionModel, cloud: jko.TokenCloud) -> list[jko.Curve]:
    """JKO and both flows from the same start."""
    times = np.linspace(0, SPAN, 61)
    flows = [
        jko.particle_flow(model, cloud, (0, SPAN), velocity=kind, t_eval=times, rtol=1e-7)
        for kind in ("gradient", "softmax")
    ]
    return [jko.minimizing_movement(model, cloud, (0, SPAN), step=0.05), *flows]


def many_heads() -> list[jko.Curve]:
    """Three heads that oscillate: the flows part."""
    path = jko.weights.Oscillating(jko.Heads.gaussian(3, rng=1))
    return curves_of(jko.AttentionModel(path), jko.TokenCloud.octahedral(60, noise=0.05, rng=0))


def one_head() -> list[jko.Curve]:
    """One head that oscillates: the flows agree."""
    path = jko.weights.Oscillating(jko.Heads.gaussian(1, rng=1))
    return curves_of(jko.AttentionModel(path), jko.TokenCloud.octahedral(60, noise=0.05, rng=0))


def clustering() -> list[jko.Curve]:
    """Four weak frozen heads with the attractive sign, from uniform tokens."""
    # weak heads: with the strong ones of the other pages one step of JKO gathers all tokens
    heads = jko.Heads(0.4 * jko.Heads.gaussian(4, rng=3).matrices)
    model = jko.AttentionModel(heads, sign=-1)
    cloud = jko.TokenCloud.normalized(np.random.default_rng(2).normal(size=(80, 3)))
    return curves_of(model, cloud)


#: File, title, text and maker of every page.
PAGES: dict[str, tuple[str, str, Callable[[], list[jko.Curve]]]] = {
    "explore.html": (
        "Three heads: the two flows part",
        "60 tokens near the vertices of an octahedron, three oscillating heads, JKO with step 0.05.",
        many_heads,
    ),
    "explore-one-head.html": (
        "One head: softmax attention is the gradient flow",
        "60 tokens, one oscillating head, JKO with step 0.05: the defect is zero.",
        one_head,
    ),
    "explore-clustering.html": (
        "The attractive sign: tokens cluster",
        "80 uniform tokens, four weak frozen heads, energy −E, JKO with step 0.05.",
        clustering,
    ),
}


def build(app: Any, problem: Exception | None) -> None:
    """Write all pages once the site is there."""
    if problem is not None or app.builder.format != "html":
        return
    for name, (title, text, make) in PAGES.items():
        write_explorer(make(), Path(app.outdir) / "_static" / name, title, text)


def setup(app: Any) -> dict[str, bool]:
    """Register the writer."""
    app.connect("build-finished", build)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
