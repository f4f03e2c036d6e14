"""Reports: self-contained, escaped, complete."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from jko import (
    AttentionModel,
    Heads,
    TokenCloud,
    minimizing_movement,
    particle_flow,
    weights,
)
from jko.cli.summary import summary_table
from jko.report import write_run_report, write_verification_report
from jko.report.comparison import Comparison
from jko.runs.store import StoreError, save_curve
from jko.verify import Card, Claim, Extent, Laboratory, figures
from rich.console import Console

LOADING = {"src", "href", "xlink:href", "data", "poster", "action", "srcset", "background"}
NAMES = {"movement": "JKO", "gradient": "gradient flow", "softmax": "softmax flow"}
VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """Addresses, identifiers, sections and text of a page; checks that elements nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.sections: list[str] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.figures = 0
        self.policy = ""
        self.feed(text)
        assert self.open == [], self.open

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.addresses += [value for name, value in attrs if name in LOADING]
        if "id" in values:
            self.ids.append(values["id"])
        if tag == "section":
            self.sections.append(values["id"])
        self.figures += tag == "figure"
        if values.get("http-equiv") == "Content-Security-Policy":
            self.policy = values["content"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "script" not in self.open and "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)


def check(path) -> Page:
    """The page loads nothing, and its identifiers are its own."""
    text = path.read_text("utf-8")
    page = Page(text)
    for address in page.addresses:
        assert address.startswith("#") or address == "data:,", address
    for style in re.findall("<style>(.*?)</style>", text, re.DOTALL):
        assert "url(" not in style
        assert "@import" not in style
    assert page.policy.startswith("default-src 'none'")
    assert "http" not in page.policy
    assert len(set(page.ids)) == len(page.ids)
    inside = set(page.ids)
    assert all(a[1:] in inside for a in page.addresses if a.startswith("#"))
    assert len(text) < 3_000_000
    return page


def make_curves(dim: int, heads: int = 2) -> dict:
    model = AttentionModel(Heads.gaussian(heads, dim, 0))
    cloud = TokenCloud.cross_polytope(10, dim, 0.2, 1)
    times = np.linspace(0, 0.2, 5)
    flows = {
        kind: particle_flow(model, cloud, (0, 0.2), kind, t_eval=times)
        for kind in ("gradient", "softmax")
    }
    return {"movement": minimizing_movement(model, cloud, (0, 0.2), 0.05)} | flows


def store(curves: dict, root, config: str = "[cloud]\n"):
    import zarr

    root.mkdir()
    zarr.create_group(store=root / "data.zarr", zarr_format=3)
    for name, curve in curves.items():
        save_curve(curve, root / "data.zarr" / name)
    (root / "config.toml").write_text(config, "utf-8")
    return root


@pytest.fixture(autouse=True)
def quick_files(monkeypatch):
    """Figures are drawn for the page only; writing their files is tested with the figures."""

    def touch(figure, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    monkeypatch.setattr("jko.report.page.save_figure", touch)


@pytest.mark.parametrize("dim", [2, 3, 5])
def test_a_run_report_shows_both_flows_and_the_defect(dim, tmp_path):
    curves = make_curves(dim)
    hostile = '# </pre><script src="http://evil/x.js">alert(1)</script>\n'
    run = store(curves, tmp_path / "run", hostile)
    path = write_run_report(str(run))
    assert path == run / "report.html"
    page = check(path)
    expected = ["summary", "checks", "motion", "figures", "steps", "config", "cite"]
    assert page.sections == expected
    assert page.figures == 9
    drawn = {file.name for file in (run / "figures").iterdir()}
    assert {"tokens.png", "defect.png", "distances.png", "certificates.png"} <= drawn
    assert len(drawn) == page.figures
    for name in ("JKO", "gradient flow", "softmax flow", "<script", "arXiv:2605.18870", "numpy"):
        assert name in page.text
    total = curves["softmax"].integrals["defect"][-1]
    assert f"Integrated defect of the softmax flow: {total:.4g}" in page.text
    assert "Could not be drawn" not in page.text
    assert page.text.count("yes") >= 4
    text = path.read_text("utf-8")
    assert text.count('class="explorer"') == 1
    assert text.count("function drawGlobe(") == 1, "the script is on the page once"
    for name in curves:
        assert f'aria-label="Tokens of {NAMES[name]}' in text
    assert "evil/x.js&quot;" in text


def test_a_run_without_flows_still_shows_the_defect(tmp_path):
    movement = make_curves(3)["movement"]
    page = check(write_run_report(store({"movement": movement}, tmp_path / "run")))
    assert "Defect of the softmax velocity along the movement" in page.text
    assert "Could not be drawn" not in page.text
    assert "distances" not in [i.removeprefix("figure-") for i in page.ids]


def test_a_run_that_stopped_early_or_was_not_met_says_so(tmp_path):
    curves = make_curves(3)
    movement = curves["movement"]
    bad = replace(movement.steps[1], objective=movement.steps[1].energy_before + 1)
    stopped = replace(
        movement,
        times=movement.times[:3],
        points=movement.points[:3],
        weights=movement.weights[:3],
        energy=movement.energy[:3],
        steps=(movement.steps[0], bad),
    )
    page = check(write_run_report(store(curves | {"movement": stopped}, tmp_path / "run")))
    assert "some checks are not met" in page.text
    assert "no" in page.words


def test_a_run_with_its_first_state_only(tmp_path):
    movement = make_curves(3)["movement"]
    first = replace(
        movement,
        times=movement.times[:1],
        points=movement.points[:1],
        weights=movement.weights[:1],
        energy=movement.energy[:1],
        steps=(),
    )
    page = check(write_run_report(store({"movement": first}, tmp_path / "run")))
    assert "motion" not in page.sections
    assert "no steps" in page.text


def test_a_directory_without_a_movement_is_an_error(tmp_path):
    with pytest.raises(StoreError):
        write_run_report(store({}, tmp_path / "run"))


SMALL = Extent(
    cases=("sphere_one_head", "sphere_three_heads"),
    problems=2,
    refinements=(5, 10),
    certified_steps=1,
    identity_steps=1,
    pairs=3,
    segments=2,
    head_counts=(1, 2),
    draws=1,
    tokens=12,
)


def make_card(holds: bool = True) -> Card:
    row = Claim(
        key="a",
        claim='A <b>claim</b> & "more".',
        measured="1 < 2",
        expected="less",
        holds=holds,
        how_known="<i>",
    )
    return Card(
        rows=(row, replace(row, key="b", holds=False, expected_to_hold=False)),
        quick=True,
        seconds=1.0,
        versions={"jko": "0.1"},
        evidence=Laboratory(SMALL),
        illustrate=figures.illustrations,
    )


def test_a_verification_report_has_card_globe_and_figures(tmp_path):
    card = make_card()
    page = check(write_verification_report(card, str(tmp_path / "out")))
    assert page.sections == ["card", "motion", "figures", "cite"]
    assert page.figures == len(figures.FIGURES)
    assert "Could not be drawn" not in page.text
    assert 'A <b>claim</b> & "more".' in page.text
    assert "fails, as expected" in page.text
    assert "Quick mode" in page.text
    for name in ("convergence", "defect", "taylor", "certificates", "balance_softmax"):
        assert (tmp_path / "out" / "figures" / f"{name}.png").is_file()
    assert (tmp_path / "out" / "card.json").is_file()


def test_a_failing_card_is_marked_and_needs_no_evidence(tmp_path):
    card = replace(make_card(holds=False), evidence=None)
    path = write_verification_report(card, tmp_path)
    page = check(path)
    assert page.sections == ["card", "cite"]
    text = path.read_text("utf-8")
    assert 'class="banner bad"' in text
    assert '<span class="badge bad">FAILS</span>' in text
    assert "drawGlobe" not in text


def test_a_figure_that_cannot_be_drawn_says_why(monkeypatch, tmp_path):
    def broken(laboratory):
        raise ValueError("no <data>")

    monkeypatch.setattr(figures, "FIGURES", (("x", "Title", "Caption.", broken),))
    page = check(write_verification_report(make_card(), tmp_path))
    assert "Could not be drawn: ValueError: no <data>" in page.text


def test_a_run_of_one_failed_step_is_told_in_words(tmp_path):
    path = weights.Oscillating(Heads.gaussian(3, rng=1))
    cloud = TokenCloud.octahedral(20, noise=0.05, rng=0)
    movement = minimizing_movement(AttentionModel(path), cloud, (0, 2), step=2)
    page = check(write_run_report(store({"movement": movement}, tmp_path / "run")))
    assert page.text.split()[:3] == ["run:", "minimizing", "movement"]
    for words in (
        "t = 0 to 2 in one step.",
        "The only step",
        "1 failed (a token would gain by moving or splitting; use a smaller step)",
        "positive areas minus negative ones",
    ):
        assert words in page.text, words
    assert not re.search(r"(?<!of )\b1 steps", page.text)
    text = _printed(summary_table({"movement": movement}, None))
    assert "1 step to t = 2" in text
    assert "1 failed (a token would gain by moving or splitting; use a smaller step)" in text


def _printed(table):
    console = Console(width=200)
    with console.capture() as caught:
        console.print(table)
    return caught.get()


def test_the_closure_on_a_rough_path_is_explained(tmp_path):
    path = weights.OrnsteinUhlenbeck(Heads.gaussian(2, 3, 0), horizon=0.2, rng=1)
    model, cloud = AttentionModel(path), TokenCloud.octahedral(6, 0.1, 0)
    movement = minimizing_movement(model, cloud, (0, 0.2), 0.1)
    flow = particle_flow(model, cloud, (0, 0.2), method="rk4", step=0.005, t_eval=[0, 0.1, 0.2])
    told = "closes (fixed steps on a path with kinks: to second order in the step)"
    for curve, said in ((flow, True), (particle_flow(model, cloud, (0, 0.2), rtol=1e-11), False)):
        comparison = Comparison.of({"movement": movement, "gradient": curve})
        statements = [check.statement for check in comparison.checks]
        assert any(told in statement for statement in statements) is said
