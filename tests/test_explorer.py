"""The page to play with: its data are the curves, and a real browser plays it."""

from __future__ import annotations

import base64
import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from jko import AttentionModel, Heads, TokenCloud, minimizing_movement, particle_flow, weights
from jko.report import explorer_data as data_module
from jko.report import write_run_report
from jko.report.explorer import explorer_head, explorer_html, write_explorer
from jko.report.explorer_data import DECADES, explorer_data, shown_tokens, stop_times
from jko.runs.store import save_curve

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

#: A browser that talks to nobody.
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def make_curves(dim: int = 3, heads: int = 3, sign: int = 1) -> list:
    path = weights.Oscillating(Heads.gaussian(heads, dim, 1))
    model = AttentionModel(path, sign=sign)
    cloud = TokenCloud.cross_polytope(12, dim, 0.2, 1)
    times = np.linspace(0, 1, 11)
    flows = [
        particle_flow(model, cloud, (0, 1), kind, t_eval=times) for kind in ("gradient", "softmax")
    ]
    return [minimizing_movement(model, cloud, (0, 1), 0.1), *flows]


@pytest.fixture(scope="module")
def curves():
    return make_curves()


def unpack(text: str, kind: str, *shape: int) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), kind).astype(float).reshape(shape)


def values_of(colour: dict, index: int, *shape: int) -> np.ndarray:
    """Undo the colour scale."""
    place = unpack(colour["values"][index], "<u2", *shape) / 65535
    low, high = colour["low"], colour["high"]
    if colour["scale"] == "log":
        return low * (high / low) ** place
    return low + place * (high - low)


# -- data ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [2, 3])
def test_positions_are_those_of_the_curves(dim):
    curves = make_curves(dim)
    data = explorer_data(curves)
    assert data["dim"] == dim
    times = np.array(data["times"])
    for entry, curve in zip(data["curves"], curves, strict=True):
        points = unpack(entry["points"], "<i2", times.size, 12, dim) / 32767
        expected = np.stack([curve.at(t).points for t in times])
        assert np.abs(points - expected).max() < 2e-5
        assert entry["energy"]["v"] == pytest.approx(curve.energy, rel=1e-7)
        assert entry["energy"]["t"] == pytest.approx(curve.times)


def test_many_dimensions_are_shown_by_principal_coordinates():
    data = explorer_data(make_curves(5))
    assert data["axes"] == ["PC1", "PC2", "PC3"]
    points = unpack(data["curves"][0]["points"], "<i2", len(data["times"]), 12, 3)
    assert np.linalg.norm(points / 32767, axis=2).max() <= 1 + 1e-4


def test_colours_and_rates_are_those_of_the_model(curves):
    data = explorer_data(curves)
    mobility, defect = data["colours"]
    shape = (len(data["times"]), 12)
    for k, curve in enumerate(curves):
        shown_b, shown_d = values_of(mobility, k, *shape), values_of(defect, k, *shape)
        for m in (0, 7, shape[0] - 1):
            t = data["times"][m]
            cloud = curve.at(t)
            b = curve.model.effective_mobility(cloud.points, cloud, t)
            soft, grad = (curve.model.velocity(cloud, t, kind) for kind in ("softmax", "gradient"))
            density = 0.5 * cloud.weights * b * np.sum((soft - grad) ** 2, axis=1)
            assert shown_b[m] == pytest.approx(b, rel=1e-3)
            floor = np.maximum(density, defect["high"] / DECADES)
            assert shown_d[m] == pytest.approx(floor, rel=1e-3)
            entry = data["curves"][k]
            assert entry["defect"]["v"][m] == pytest.approx(density.sum(), rel=1e-6)
            assert entry["slope"]["v"][m] == pytest.approx(curve.model.slope_squared(cloud, t))


@pytest.mark.parametrize("heads", [Heads.gaussian(1, 3, 1), Heads([np.eye(3)] * 3)])
def test_equal_heads_have_no_defect_to_colour(heads):
    model = AttentionModel(heads)
    curve = minimizing_movement(model, TokenCloud.cross_polytope(8, 3, 0.2, 1), (0, 0.2), 0.1)
    defect = explorer_data([curve])["colours"][1]
    assert (defect["low"], defect["high"]) == (0.0, 0.0)


def test_a_constant_mobility_has_a_scale():
    model = AttentionModel(Heads(np.zeros((2, 3, 3))))
    curve = particle_flow(model, TokenCloud.cross_polytope(6, 3, 0.2, 1), (0, 1))
    mobility = explorer_data([curve])["colours"][0]
    assert mobility["low"] == mobility["high"] == 1.0


def test_strong_heads_have_a_logarithmic_mobility_or_say_why_not():
    cloud = TokenCloud.cross_polytope(6, 3, 0.2, 1)
    flow = particle_flow(AttentionModel(Heads(np.diag([9.0, 1, -9])[None])), cloud, (0, 0.01))
    assert explorer_data([flow])["colours"][0]["scale"] == "log"
    huge = replace(flow, model=AttentionModel(Heads(np.diag([900.0, 1, -900])[None])))
    data = explorer_data([huge])
    assert data["colours"] == []
    assert "overflows" in data["note"]


def test_without_a_model_there_are_positions_and_energies_only(curves):
    data = explorer_data([replace(curve, model=None) for curve in curves])
    assert data["charts"] == ["energy"]
    assert data["colours"] == []
    assert "was not stored" in data["note"]
    assert data["note"] in explorer_html([replace(curves[0], model=None)])


def test_stops_contain_the_steps_of_the_movement(curves):
    times = stop_times(curves)
    assert np.abs(times[:, None] - curves[0].times).min(axis=0).max() < 1e-12
    assert times.size == 41
    assert np.all(np.diff(times) > 0)


def test_a_curve_that_ended_early_limits_the_stops(curves):
    short = replace(
        curves[2],
        times=curves[2].times[:6],
        points=curves[2].points[:6],
        weights=curves[2].weights[:6],
        energy=curves[2].energy[:6],
    )
    assert stop_times([curves[0], short])[-1] == pytest.approx(0.5)
    only = replace(
        short,
        times=short.times[:1],
        points=short.points[:1],
        weights=short.weights[:1],
        energy=short.energy[:1],
    )
    data = explorer_data([curves[0], only])
    assert data["times"] == [0.0]
    assert 'max="0"' in explorer_html([curves[0], only])


def test_stops_differ_far_from_time_zero(curves):
    late = replace(curves[0], times=1e6 + curves[0].times, model=None)
    times = explorer_data([late])["times"]
    assert len(set(times)) == len(times)


def test_large_clouds_are_thinned(curves):
    curve = curves[0]
    many = replace(
        curve,
        model=None,
        points=np.repeat(curve.points, 500, axis=1),
        weights=np.repeat(curve.weights, 500, axis=1) / 500,
    )
    assert shown_tokens(many).size == 2000
    text = explorer_html([many, many, many])
    assert len(text) < 3_000_000


def test_colours_that_cost_too_much_are_left_out(curves, monkeypatch):
    monkeypatch.setattr(data_module, "WORK", 10.0)
    assert "too much" in explorer_data(curves)["note"]


def test_mass_on_fixed_nodes_is_drawn_as_it_moves(curves):
    curve = curves[0]
    share = np.linspace(0, 1, curve.times.size)[:, None]
    last = np.eye(12)[0]
    moving = replace(
        curve,
        points=np.repeat(curve.points[:1], curve.times.size, axis=0),
        weights=(1 - share) * curve.weights + share * last,
    )
    entry = explorer_data([moving])["curves"][0]
    radii = unpack(entry["masses"], "<u2", len(stop_times([moving])), 12) / 1e4
    assert radii[0] == pytest.approx(np.ones(12), rel=1e-3)
    assert radii[-1] == pytest.approx(3 * last)


# -- the page ------------------------------------------------------------------------------------


def test_the_page_is_one_small_file_that_loads_nothing(curves, tmp_path):
    hostile = "</script><script>alert(1)</script>"
    path = write_explorer(curves, str(tmp_path / "new" / "page.html"), hostile, hostile)
    text = path.read_text("utf-8")
    assert len(text) < 200_000
    assert "alert(1)</script>" not in text
    assert not re.search(r"(src|href)=\"(?!data:,)", text)
    assert "url(" not in text
    assert "http:" not in text
    assert "https:" not in text
    parser = HTMLParser()
    parser.feed(text)
    parser.close()


def test_data_cannot_end_their_element(curves):
    text = explorer_html(curves)
    inside = re.search(r'<script type="application/json">(.*?)</script>', text, re.DOTALL).group(1)
    assert "<" not in inside
    assert json.loads(inside)["curves"][0]["label"] == "JKO"


def test_scripts_are_in_the_package():
    head = explorer_head()
    for name in ("function read(", "function drawGlobe(", "function drawChart(", "function start("):
        assert name in head


# -- the browser ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with sync_api.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield found
        found.close()


@pytest.fixture(scope="module")
def page_path(curves, tmp_path_factory):
    return write_explorer(curves, tmp_path_factory.mktemp("page") / "p.html", "Title", "Text.")


class Visit:
    """A page in the browser; what it complained of and asked for."""

    def __init__(self, browser, path, width=1280, height=720, **options):
        self.page = browser.new_page(viewport={"width": width, "height": height}, **options)
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.problems.append(message.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.settle()

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.page.close()
        if failure[0] is None:
            assert self.problems == []
            assert all(url.startswith(("file://", "data:")) for url in self.requests)

    def settle(self):
        """Wait until what was asked for has been drawn."""
        self.page.evaluate(
            "() => new Promise((done) => "
            "requestAnimationFrame(() => requestAnimationFrame(() => done())))"
        )

    def ask(self, expression):
        self.settle()
        return self.page.evaluate(f"(() => {{ const e = {EXPLORER}; return {expression}; }})()")

    def text(self, query):
        self.settle()
        return self.page.inner_text(query)

    def pixels(self, query="canvas.globe"):
        self.settle()
        return self.page.evaluate(
            "(q) => [...document.querySelectorAll(q)].map((c) => c.toDataURL())", query
        )


EXPLORER = "document.querySelector('.explorer').explorer"
SLIDER = "input[type=range]"


def test_the_slider_moves_tokens_and_cursors_from_the_keyboard(browser, page_path, curves):
    with Visit(browser, page_path) as visit:
        page = visit.page
        first, cursor = visit.ask("e.positions(0)"), visit.ask("e.charts.map((c) => c.cursor)")
        before = visit.pixels()
        page.focus(SLIDER)
        for _ in range(8):
            page.keyboard.press("ArrowRight")
        assert page.get_attribute(SLIDER, "aria-valuetext") == "t = 0.2"
        assert visit.text(".now") == "t = 0.2"
        expected = np.ravel(curves[0].points[2])
        assert np.allclose(visit.ask("e.positions(0)"), expected, atol=1e-4)
        assert not np.allclose(first, expected, atol=1e-2)
        assert all(a != b for a, b in zip(before, visit.pixels(), strict=True))
        moved = visit.ask("e.charts.map((c) => c.cursor)")
        assert all(a + 10 < b for a, b in zip(cursor, moved, strict=True))
        assert f"E {curves[0].energy[2]:.4g}" in visit.text(".panel .readout")
        page.keyboard.press("End")
        for k in range(3):
            last = np.ravel(curves[k].points[-1])
            assert np.allclose(visit.ask(f"e.positions({k})"), last, atol=1e-4)
        page.keyboard.press("Home")
        assert visit.ask("e.state.time") == 0
        assert visit.pixels() == before


def test_between_stops_tokens_stay_on_the_sphere(browser, page_path):
    with Visit(browser, page_path) as visit:
        visit.ask("e.moveTo(3.5)")
        points = np.reshape(visit.ask("e.positions(2)"), (-1, 3))
        assert np.linalg.norm(points, axis=1) == pytest.approx(1, abs=1e-5)


def test_space_plays_and_pauses(browser, page_path):
    with Visit(browser, page_path) as visit:
        visit.page.focus(SLIDER)
        visit.page.keyboard.press(" ")
        assert "Pause" in visit.text(".play")
        visit.page.wait_for_function(f"() => {EXPLORER}.state.position > 0.3")
        visit.page.keyboard.press(" ")
        assert "Play" in visit.text(".play")
        assert visit.ask("e.state.position") == visit.ask("e.state.position")
        visit.ask("e.moveTo(39.9)")
        visit.page.click(".play")
        visit.page.wait_for_function(f"() => !{EXPLORER}.state.playing")
        assert visit.ask("e.state.position") == 40
        visit.page.click(".play")
        assert visit.ask("e.state.position") < 20, "it starts again"


def test_reduced_motion_plays_stop_by_stop(browser, page_path):
    with Visit(browser, page_path, reduced_motion="reduce") as visit:
        visit.page.click(".play")
        visit.page.wait_for_function(f"() => {EXPLORER}.state.position >= 1")
        assert visit.ask("e.state.position") % 1 == 0


def test_colours_change_with_the_selection_and_have_a_bar(browser, page_path):
    with Visit(browser, page_path) as visit:
        seen = [visit.pixels()]
        assert visit.page.is_hidden(".bar")
        for key in ("mobility", "defect"):
            visit.page.select_option("select", key)
            assert visit.page.is_visible(".bar")
            seen.append(visit.pixels())
        assert len({pixels[0] for pixels in seen}) == 3
        assert "energy / time" in visit.text(".bar")
        visit.page.fill(".follow", "3")
        visit.page.keyboard.press("Enter")
        assert "#3:" in visit.text(".panel .readout")
        visit.page.select_option("select", "plain")
        assert visit.page.is_hidden(".bar")


def test_globes_turn_together_by_mouse_and_keyboard(browser, page_path):
    with Visit(browser, page_path) as visit:
        page, before = visit.page, visit.pixels()
        page.focus("canvas.globe")
        page.keyboard.press("ArrowLeft")
        turned = visit.pixels()
        assert all(a != b for a, b in zip(before, turned, strict=True))
        page.keyboard.press("0")
        assert visit.pixels() == before
        box = page.locator("canvas.globe").nth(1).bounding_box()
        page.mouse.move(box["x"] + 100, box["y"] + 100)
        page.mouse.down()
        page.mouse.move(box["x"] + 160, box["y"] + 120)
        page.mouse.up()
        assert all(a != b for a, b in zip(before, visit.pixels(), strict=True))


def test_a_click_follows_a_token_and_sets_the_time(browser, page_path):
    with Visit(browser, page_path) as visit:
        page = visit.page
        spot = visit.ask(
            "(({ at, cam }, p) => { const i = [...Array(12).keys()].find((i) => "
            "[0, 1, 2].reduce((s, c) => s + cam.out[c] * p[3 * i + c], 0) > 0.5); "
            "const on = (a) => [0, 1, 2].reduce((s, c) => s + a[c] * p[3 * i + c], 0); "
            "return [at.x + at.radius * on(cam.right), at.y - at.radius * on(cam.up)]; })"
            "(e.panels[0], e.positions(0))"
        )
        page.locator("canvas.globe").first.click(position={"x": spot[0], "y": spot[1]})
        assert page.input_value(".follow") != ""
        chart = page.locator(".chart canvas").first
        chart.click(position={"x": chart.bounding_box()["width"] / 2, "y": 40})
        assert 0.3 < visit.ask("e.state.time") < 0.6
        before = visit.pixels(".chart canvas")
        page.check(".chart[data-key=slope] input")
        after = visit.pixels(".chart canvas")
        assert [a != b for a, b in zip(before, after, strict=True)] == [False, True, False]
        before = visit.pixels()
        page.check(".ghost")
        after = visit.pixels()
        assert [a != b for a, b in zip(before, after, strict=True)] == [True, False, True]
        page.check(".trails")
        assert all(a != b for a, b in zip(after, visit.pixels(), strict=True))


@pytest.mark.parametrize(("width", "height"), [(1280, 720), (1920, 1080), (400, 800)])
def test_the_page_fits_its_screen(browser, page_path, width, height):
    with Visit(browser, page_path, width, height) as visit:
        visit.page.select_option("select", "defect")
        size = visit.page.evaluate(
            "[document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
        )
        assert size[0] <= width
        if width > height:
            assert size[1] <= height, "laptops and projectors show everything at once"
            tops = {round(b["y"]) for b in boxes(visit, "canvas.globe")}
            assert len(tops) == 1, "globes are side by side"
            assert min(b["width"] for b in boxes(visit, "canvas.globe")) > 300


def boxes(visit, query):
    return [item.bounding_box() for item in visit.page.locator(query).all()]


@pytest.mark.parametrize(("dim", "sign"), [(2, 1), (5, -1)])
def test_circles_and_principal_coordinates_are_drawn(browser, dim, sign, tmp_path):
    path = write_explorer(make_curves(dim, 2, sign), tmp_path / "p.html", "Title")
    with Visit(browser, path) as visit:
        before = visit.pixels()
        visit.page.select_option("select", "defect")
        visit.page.check(".trails")
        visit.ask("e.moveTo(20)")
        assert all(a != b for a, b in zip(before, visit.pixels(), strict=True))


def test_a_run_report_works_in_the_browser(browser, curves, tmp_path, monkeypatch):
    import zarr

    monkeypatch.setattr("jko.report.page.save_figure", lambda figure, path: None)
    zarr.create_group(store=tmp_path / "data.zarr", zarr_format=3)
    for name, curve in zip(("movement", "gradient", "softmax"), curves, strict=True):
        save_curve(curve, tmp_path / "data.zarr" / name)
    path = write_run_report(tmp_path)
    with Visit(browser, path) as visit:
        visit.page.focus(SLIDER)
        visit.page.keyboard.press("End")
        last = np.ravel(curves[0].points[-1])
        assert np.allclose(visit.ask("e.positions(0)"), last, atol=1e-4)
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_drawing_is_fast_enough_to_play(browser, curves, tmp_path):
    curve = curves[0]
    many = replace(
        curve,
        points=np.repeat(curve.points, 100, axis=1),
        weights=np.repeat(curve.weights, 100, axis=1) / 100,
    )
    path = write_explorer([many, many, many], tmp_path / "p.html", "Title")
    with Visit(browser, path) as visit:
        visit.page.select_option("select", "mobility")
        spent = visit.ask(
            "(() => { const a = performance.now(); for (let k = 0; k < 10; k++) e.draw(); "
            "return (performance.now() - a) / 10; })()"
        )
        # 3600 tokens; a tenth of a second would be seen as stutter, on a slow machine too
        assert spent < 100


def test_one_curve_needs_no_sequence():
    curve = make_curves(3, 2, 1)[0]
    assert explorer_html(curve) == explorer_html([curve])
    with pytest.raises(TypeError, match="curves must be a Curve or a sequence of them, got int"):
        explorer_html(3)
