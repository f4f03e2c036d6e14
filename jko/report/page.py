"""Pieces of a self-contained page: escaped tables, figures as inline SVG, the page around them.

Nothing on the page comes from elsewhere: the style and the scripts are inside it, and its
security policy forbids the browser to load anything.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.metadata import version
from importlib.resources import files
from os import PathLike
from pathlib import Path

from ..plotting import Illustration, save_figure, to_svg

__all__ = [
    "Section",
    "badge",
    "cite_section",
    "facts",
    "figure",
    "library_versions",
    "page",
    "save_drawings",
    "table",
]

#: The browser may run what is in the page and show data in the page; nothing else.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; font-src data:"
)

PACKAGES = ("jko", "numpy", "scipy", "POT", "matplotlib")


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section of a page.

    Attributes
    ----------
    key : str
        Its anchor.
    title : str
        Plain text.
    body : str
        HTML.
    printed : bool
        Whether it makes sense on paper.
    """

    key: str
    title: str
    body: str
    printed: bool = True


def badge(text: str, kind: str) -> str:
    """A small label; ``kind`` is one of good, note, bad, none."""
    return f'<span class="badge {kind}">{escape(text)}</span>'


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "", raw: Sequence[int] = ()
) -> str:
    """A table of plain texts; the columns listed in ``raw`` hold HTML already."""
    columns = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "\n".join(
        "<tr>"
        + "".join(f"<td>{cell if k in raw else escape(cell)}</td>" for k, cell in enumerate(row))
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="wide"><table class="{kind}"><thead><tr>{columns}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """A two-column table of names and plain values."""
    rows = "\n".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>'
        for name, value in pairs
    )
    return f'<div class="wide"><table class="facts"><tbody>\n{rows}\n</tbody></table></div>'


def figure(illustration: Illustration) -> str:
    """A captioned figure, its drawing inline."""
    drawing = ""
    if illustration.figure is not None:
        svg = _own_ids(to_svg(illustration.figure), illustration.key)
        label = escape(illustration.title, quote=True)
        drawing = svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
    return (
        f'<figure id="figure-{escape(illustration.key, quote=True)}">\n'
        f"<h3>{escape(illustration.title)}</h3>\n{drawing}\n"
        f"<figcaption>{escape(illustration.caption)}</figcaption>\n</figure>"
    )


def save_drawings(illustrations: Sequence[Illustration], directory: str | PathLike[str]) -> None:
    """Write every figure as ``<key>.png``; their layout, found once, then stays."""
    directory = Path(directory)
    for illustration in illustrations:
        if illustration.figure is not None:
            save_figure(illustration.figure, directory / f"{illustration.key}.png")
            illustration.figure.set_layout_engine("none")


def _own_ids(svg: str, key: str) -> str:
    """Prefix all identifiers of a drawing, which would else collide with those of the others."""
    svg = re.sub(r'\bid="', f'id="{key}-', svg)
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{key}-", svg)


def library_versions() -> dict[str, str]:
    """Versions of Python, this package and what it stands on."""
    return {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}


def cite_section() -> Section:
    """How to cite the software and the article."""
    body = (
        "<p>Please cite the software and the article whose results it reproduces.</p>"
        "<pre>"
        + escape(
            f"The jko developers. jko: JKO schemes in the weighted Wasserstein distance of\n"
            f"multi-head attention, version {version('jko')}.\n\n"
            "Massucco, Del Grande, Carioni, Brune, Schönlieb. Multi-Headed Transformer\n"
            "Architectures as Time-dependent Wasserstein Gradient Flows. arXiv:2605.18870.\n\n"
            "For one head: Analysis of mean-field models arising from self-attention dynamics in\n"
            "transformer architectures with layer normalization. arXiv:2501.03096."
        )
        + "</pre>"
    )
    return Section(key="cite", title="How to cite", body=body)


def _section(section: Section) -> str:
    screen = "" if section.printed else ' class="screen"'
    title = escape(section.title)
    return f'<section id="{section.key}"{screen}>\n<h2>{title}</h2>\n{section.body}\n</section>'


def page(
    title: str,
    lead: str,
    banner: str,
    good: bool,
    sections: Sequence[Section],
    versions: dict[str, str],
    script: str = "",
) -> str:
    """The whole page; ``script`` is put in its head, unescaped."""
    style = files("jko").joinpath("report", "report.css").read_text("utf-8")
    links = "\n".join(f'<a href="#{s.key}">{escape(s.title)}</a>' for s in sections)
    body = "\n".join(_section(section) for section in sections)
    made = ", ".join(f"{name} {number}" for name, number in versions.items())
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{escape(POLICY, quote=True)}">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>
{style}
</style>
{script}
</head>
<body>
<header>
<h1>{escape(title)}</h1>
<p class="lead">{escape(lead)}</p>
<nav>
{links}
</nav>
<p class="banner{"" if good else " bad"}">{escape(banner)}</p>
</header>
<main>
{body}
</main>
<footer>
<h2 id="versions">Versions</h2>
<p>{escape(made)}</p>
</footer>
</body>
</html>
"""
