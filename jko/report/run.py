"""The report of a run: JKO, both direct flows, and the defect."""

from __future__ import annotations

from html import escape
from os import PathLike
from pathlib import Path

from ..plotting import Illustration
from ..runs.curve import Curve
from ..runs.store import StoreError, load_curve
from .comparison import Comparison
from .explorer import explorer_head, explorer_html
from .explorer_data import TOKENS
from .figures import run_illustrations
from .page import (
    Section,
    badge,
    cite_section,
    facts,
    figure,
    library_versions,
    page,
    save_drawings,
    table,
)
from .steps import step_section

__all__ = ["write_run_report"]

CURVES = ("movement", "gradient", "softmax")


def write_run_report(run_dir: str | PathLike[str]) -> Path:
    """Write ``report.html`` and ``figures/*.png`` of a run into its directory.

    Parameters
    ----------
    run_dir : path-like
        A run directory: ``data.zarr`` with the groups ``movement`` and, as far as they were
        computed, ``gradient`` and ``softmax``; ``config.toml``.

    Returns
    -------
    Path
        The page: one file that opens offline.

    Raises
    ------
    StoreError
        If the directory holds no movement.
    """
    run_dir = Path(run_dir)
    comparison = Comparison.of(load_curves(run_dir))
    drawn = run_illustrations(comparison)
    save_drawings(drawn, run_dir / "figures")
    movement = comparison.movement
    good = all(check.good is not False for check in comparison.checks)
    text = page(
        _title(run_dir.resolve().name, comparison),
        _lead(comparison),
        _banner(comparison, good),
        good,
        [section for section in _sections(run_dir, comparison, drawn) if section is not None],
        library_versions(),
        explorer_head() if movement.times.size > 1 else "",
    )
    path = run_dir / "report.html"
    path.write_text(text, "utf-8")
    return path


def load_curves(run_dir: str | PathLike[str]) -> dict[str, Curve]:
    """The curves of a run directory; flows that were not computed are left out."""
    run_dir = Path(run_dir)
    curves = {}
    for name in CURVES:
        try:
            curves[name] = load_curve(run_dir / "data.zarr" / name)
        except StoreError:
            if name == "movement":
                raise
    return curves


def _title(name: str, comparison: Comparison) -> str:
    flows = len(comparison.flows)
    direct = " and direct flows" if flows > 1 else " and direct flow" if flows else ""
    return f"{name}: minimizing movement{direct}"


def _lead(comparison: Comparison) -> str:
    movement = comparison.movement
    n, dim = movement.points.shape[1:]
    heads = f"{comparison.heads} heads" if comparison.heads else "heads of an unknown number"
    heads = "one head" if comparison.heads == 1 else heads
    tokens = "one token" if n == 1 else f"{n} tokens"
    count = movement.times.size - 1
    steps = "one step" if count == 1 else f"{count} steps"
    return (
        f"{tokens} on the unit sphere of R^{dim}, {heads}, scheme {movement.scheme}, "
        f"t = {movement.times[0]:g} to {movement.times[-1]:g} in {steps}."
    )


def _banner(comparison: Comparison, good: bool) -> str:
    state = comparison.movement.message
    if not comparison.movement.success:
        return f"{state[0].upper()}{state[1:]}."
    verdict = "every check is met" if good else "some checks are not met"
    return f"{state[0].upper()}{state[1:]}; {verdict}. {comparison.defect_sentence}"


def _sections(
    run_dir: Path, comparison: Comparison, drawn: tuple[Illustration, ...]
) -> list[Section | None]:
    curves = comparison.curves
    config = run_dir / "config.toml"
    return [
        Section(key="summary", title="Summary", body=facts(comparison.summary + _stored(run_dir))),
        Section(key="checks", title="Checks", body=_checks(comparison)),
        _explorer(curves) if comparison.movement.times.size > 1 else None,
        Section(key="figures", title="Figures", body="\n".join(figure(entry) for entry in drawn)),
        step_section(comparison.movement),
        _config(config) if config.is_file() else None,
        cite_section(),
    ]


def _stored(run_dir: Path) -> list[tuple[str, str]]:
    """What the command line measured and kept beside the curves."""
    import zarr

    attributes = zarr.open_group(store=run_dir / "data.zarr", mode="r", zarr_format=3).attrs
    error = attributes.get("flow_step_error")
    if error is None:
        return []
    return [("Flow with its step against half the step", f"{float(str(error)):.1e} rad (labelled)")]


def _checks(comparison: Comparison) -> str:
    kinds = {True: ("yes", "good"), False: ("no", "bad"), None: ("measured", "none")}
    rows = [
        (check.statement, check.measured, badge(*kinds[check.good])) for check in comparison.checks
    ]
    return table(("Statement", "Measured", "Verdict"), rows, raw=(2,))


def _explorer(curves: tuple[Curve, ...]) -> Section:
    n, dim = curves[0].points.shape[1:]
    text = (
        "The same tokens along every curve, at the same time. Between saved times tokens are "
        "placed along geodesics."
    )
    if dim > 3:
        text += " Axes: the first three principal coordinates of all tokens."
    if n > TOKENS:
        text += f" {TOKENS} of the {n} tokens are shown."
    body = (
        f"<p>{text}</p>{explorer_html(curves)}"
        "<noscript><p>The moving picture needs JavaScript; the figures below do not.</p></noscript>"
    )
    return Section(key="motion", title="Tokens over time", body=body, printed=False)


def _config(path: Path) -> Section:
    body = f"<pre>{escape(path.read_text('utf-8', errors='replace'))}</pre>"
    return Section(key="config", title="Configuration", body=body)
