"""Let the gallery show figures of matplotlib's object interface.

A script ends with ``figure = ...``; the gallery's own scraper only knows figures of pyplot.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from jko.plotting.style import STYLE
from matplotlib.figure import Figure
from sphinx_gallery.scrapers import figure_rst

#: Pixels an inch in the pages.
RESOLUTION = 130


def scrape(block: tuple[str, str, int], block_vars: dict[str, Any], gallery_conf: Any) -> str:
    """Save the script's ``figure`` once, after the block that made it."""
    variables = block_vars["example_globals"]
    figure = variables.get("figure")
    if not isinstance(figure, Figure) or variables.get("_figure_shown") is figure:
        return ""
    variables["_figure_shown"] = figure
    path = Path(next(block_vars["image_path_iterator"]))
    with mpl.rc_context(STYLE):
        figure.savefig(path, dpi=RESOLUTION)
    title = Path(block_vars["src_file"]).read_text(encoding="utf-8").splitlines()[1]
    return figure_rst([str(path)], gallery_conf["src_dir"], title)


def _get_sg_image_scraper() -> Any:
    return scrape


def setup(app: Any) -> dict[str, bool]:
    """Nothing to register; the gallery finds the scraper by the module's name."""
    return {"parallel_read_safe": True}
