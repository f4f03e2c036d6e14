"""Sphinx configuration; the build reads nothing from the network."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

import jko  # noqa: E402

project = "jko"
author = "The jko developers"
project_copyright = "the jko developers"
version = release = jko.__version__

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx-mathjax-offline",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx_gallery.gen_gallery",
    "sphinxcontrib.bibtex",
    "site_explorer",
    "site_figures",
    "site_references",
]
exclude_patterns = ["_build", "_ext", "figures", "gallery", "examples/**.ipynb", "examples/**.py"]

# a name in single backticks is a Python object; where none is found the build fails
default_role = "py:obj"
nitpicky = True
nitpick_ignore_regex = [("py:class", r".*")]

# toctree patterns and gallery's own configuration: not about the content
suppress_warnings = ["config.cache"]

# -- pages -------------------------------------------------------------------------------------

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
myst_dmath_double_inline = True

# lessons are run when the site is built; a cell that fails stops the build
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_execution_show_tb = True

bibtex_bibfiles = ["references.bib"]
bibtex_default_style = "unsrt"

# -- reference ---------------------------------------------------------------------------------

autosummary_generate = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_preserve_defaults = True
numpydoc_show_class_members = False
numpydoc_attributes_as_param_list = True

# -- gallery -----------------------------------------------------------------------------------

sphinx_gallery_conf = {
    "examples_dirs": ["gallery"],
    "gallery_dirs": ["examples"],
    "filename_pattern": r"plot_",
    "image_scrapers": ("site_figures",),
    "reset_modules": (),
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "capture_repr": (),
    "remove_config_comments": True,
    "show_memory": False,
    "write_computation_times": False,
    "show_signature": False,
    "download_all_examples": False,
    "min_reported_time": 0,
    "plot_gallery": "True",
}

# -- HTML --------------------------------------------------------------------------------------

html_theme = "furo"
html_title = f"jko {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
mathjax_path = "mathjax/tex-chtml.js"
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#0072B2",
        "color-brand-content": "#0072B2",
    },
    "dark_css_variables": {
        "color-brand-primary": "#56B4E9",
        "color-brand-content": "#56B4E9",
    },
}
