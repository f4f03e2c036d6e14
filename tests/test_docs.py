"""The documents: lessons and pages run, links lead somewhere, public names show equations."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import importlib.util
import inspect
import io
import json
import pkgutil
import re
from enum import Enum
from pathlib import Path

import jko
import matplotlib as mpl
import pytest
from jko.config import example_config
from jko.config.read import build_cloud, build_model, parse_config

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LESSONS = sorted((DOCS / "lessons").glob("*.ipynb"))
GALLERY = sorted((DOCS / "gallery").rglob("plot_*.py"))
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted((DOCS / "lessons").glob("*.md"))]

#: Pages whose Python blocks are run one after the other.
RUNNABLE = (
    "README.md",
    *(f"docs/{page}.md" for page in ("start", "layout", "fixed-support", "explore", "transformer")),
)

#: Rooms whose public names must show an equation or an example.
ROOMS = ("jko.sphere", "jko.problems", "jko.transport", "jko.schemes", "jko.diagnostics")
MODULES = ("jko", "jko.attention.weights", "jko.steps.grid")

FORMULA = re.compile(r":math:|\.\. math::|>>> |``[^`]*( [=<>+*/-] | == |\||\^)[^`]*``")


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """An empty folder to work in, matplotlib without windows and with its settings restored."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JKO_QUICK", "1")
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    monkeypatch.setattr(plt, "show", lambda: None)
    with mpl.rc_context():
        yield tmp_path
    plt.close("all")


def run(source, name, scope):
    """Execute, and return what was printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, name, "exec"), scope)
    return printed.getvalue()


def test_there_are_two_lessons_and_a_gallery():
    assert len(LESSONS) == 2
    assert len(GALLERY) >= 11


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_lesson_runs(path, scratch):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    scope = {"__name__": "__main__"}
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            run("".join(cell["source"]), f"{path.name}[{number}]", scope)
    assert scope["QUICK"]


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_lesson_has_exercises_with_answers_and_no_stored_output(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    text = "\n".join("".join(cell["source"]) for cell in cells)
    exercises = re.findall(r"\*\*Exercise \d+\.\*\*", text)
    assert len(exercises) >= 5
    assert text.count("<summary>Answer</summary>") == len(exercises)
    assert not any(cell.get("outputs") for cell in cells)


@pytest.mark.parametrize("page", RUNNABLE)
def test_code_of_the_page_runs(page, scratch):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)
    assert blocks
    scope = {"__name__": "__main__"}
    for number, block in enumerate(blocks):
        run(block, f"{page}[{number}]", scope)


@pytest.mark.parametrize("path", GALLERY, ids=lambda path: path.stem)
def test_gallery_script_has_a_title_and_ends_in_a_figure(path):
    source = path.read_text(encoding="utf-8")
    title, rule = source.removeprefix('r"""\n').splitlines()[:2]
    assert set(rule) == {"="}
    assert len(rule) == len(title)
    assert "# %%" in source
    assert re.search(r"^figure = ", source, re.MULTILINE)
    compile(source, str(path), "exec")


def anchors(text):
    """Names of the headings and labels of a Markdown page."""
    found = set(re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE))
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = re.sub(r"[^\w\s-]", "", heading.lower())
        found.add(re.sub(r"\s", "-", plain.strip()))
    return found


def links(page):
    """Targets of the Markdown links and images of a page, code left out."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_internal_links_lead_somewhere(page):
    broken = []
    for link in links(page):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = link.partition("#")
        target = page if not name else (page.parent / name).resolve()
        if name.removeprefix("../").startswith("examples/"):
            continue  # written when the site is built, which checks them
        candidates = [target, target.with_suffix(".rst"), target.with_suffix(".md")]
        existing = next((path for path in candidates if path.exists()), None)
        lost = existing is None
        if existing is not None and anchor and existing.suffix == ".md":
            lost = anchor not in anchors(existing.read_text(encoding="utf-8"))
        if lost:
            broken.append(link)
    assert broken == []


def public_objects():
    """Every public class and function of the rooms, once, by its full name."""
    found = [m.name for m in pkgutil.walk_packages(jko.__path__, "jko.")]
    modules = [*MODULES, *(name for name in found if name.startswith(ROOMS))]
    seen = {}
    for name in modules:
        module = importlib.import_module(name)
        for public in getattr(module, "__all__", ()):
            value = getattr(module, public)
            if inspect.isclass(value) or inspect.isroutine(value):
                seen.setdefault(id(value), (f"{name}.{public}", value))
    return sorted(seen.values(), key=lambda pair: pair[0])


def test_every_public_name_has_an_equation_or_an_example():
    objects = public_objects()
    lacking = [
        name
        for name, value in objects
        if not (inspect.isclass(value) and issubclass(value, (Exception, Enum)))
        and not FORMULA.search(inspect.getdoc(value) or "")
    ]
    assert len(objects) > 60
    assert lacking == []


def test_examples_in_docstrings_are_right():
    tried = 0
    for info in pkgutil.walk_packages(jko.__path__, "jko."):
        if info.name.endswith("__main__"):
            continue
        result = doctest.testmod(importlib.import_module(info.name))
        assert result.failed == 0, info.name
        tried += result.attempted
    assert tried > 10


def test_reference_lists_every_name_of_the_package():
    text = "\n".join(path.read_text("utf-8") for path in (DOCS / "reference").glob("*.rst"))
    modules = set(re.findall(r"automodule:: (\S+)", text))
    listed = set(re.findall(r"auto(?:class|function|exception):: (?:jko\.)?(\S+)", text))
    rooms = {"sphere": "jko.sphere", "weights": "jko.attention.weights"}
    missing = [
        name for name in jko.__all__ if name not in listed and rooms.get(name) not in modules
    ]
    assert missing == []
    paths = [f"weights.{name}" for name in jko.weights.__all__]
    assert [name for name in paths if name not in listed] == []


def test_layout_figure_is_the_import_contract():
    script = DOCS / "figures" / "make_layout_figure.py"
    spec = importlib.util.spec_from_file_location("make_layout_figure", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.require_order()
    assert module.draw() == (DOCS / "figures" / "layout.svg").read_text(encoding="utf-8")


def test_heads_of_the_first_page_are_a_valid_configuration():
    text = (DOCS / "start.md").read_text(encoding="utf-8")
    own = re.search(r"```toml\n(.*?)```", text, re.DOTALL).group(1)
    example = example_config()
    before, rest = example.split("[weights.heads]")
    config = parse_config(before + own + rest[rest.index("[run]") :])
    heads = build_model(config, build_cloud(config)).heads(0.0)
    assert heads.count == 2
    assert heads.weights.tolist() == [0.25, 0.75]
