"""All benchmarks, both sides of each in one process, and the page of results.

    python experiments/benchmarks/run.py [--quick] [--only NAME ...] [--out DIR] [--page FILE]

The page in the documentation is made by ``--page docs/benchmarks.md``.  PyTorch is needed for one
comparison, which is left out without it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from _measure import Section, Verdict, load, machine
from accuracy import accuracy
from growth import growth, largest
from imports import imports
from step_against_autodiff import step_against_autodiff
from velocities import (
    dense_against_einsum,
    harmonic_against_dense,
    harmonic_against_its_products,
)

BENCHMARKS = {
    "step": step_against_autodiff,
    "dense": dense_against_einsum,
    "harmonic": harmonic_against_dense,
    "growth": growth,
    "products": harmonic_against_its_products,
    "accuracy": accuracy,
    "largest": largest,
    "import": imports,
}

INTRODUCTION = """\
# Benchmarks

Both sides of every comparison run in turn in one process, each at work for a tenth of a second before
it is measured; a ratio is the median of the ratios of turns made one after the other, so that a change
of the machine's speed meets both. Times are medians. This page is written by

    python experiments/benchmarks/run.py --page docs/benchmarks.md
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes, in seconds")
    parser.add_argument(
        "--only", nargs="+", choices=BENCHMARKS, default=list(BENCHMARKS), help="some of them"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks"), help="directory")
    parser.add_argument("--page", type=Path, default=None, help="another place for the page")
    parsed = parser.parse_args()
    before = load()
    sections = []
    for name in parsed.only:
        print(f"{name} ...", flush=True)
        sections.append(BENCHMARKS[name](parsed.quick))
        for verdict in sections[-1].verdicts:
            print(f"  {verdict.name}: {verdict.measured} ({verdict.target})", flush=True)
    parsed.out.mkdir(parents=True, exist_ok=True)
    results = [asdict(section) for section in sections]
    (parsed.out / "benchmarks.json").write_text(json.dumps(results, indent=1))
    page = parsed.page or parsed.out / "benchmarks.md"
    page.write_text(render(sections, before, parsed.quick), encoding="utf-8")
    print(f"wrote {page}")


def render(sections: Sequence[Section], before: float, quick: bool) -> str:
    """The page in Markdown."""
    lines = [INTRODUCTION]
    if quick:
        lines.append("*Made with `--quick`: sizes are tiny and the figures mean nothing.*\n")
    lines += [f"- {line}" for line in machine()]
    lines.append(f"- Load average of the machine before the run: {before:.1f}")
    verdicts = [verdict for section in sections for verdict in section.verdicts]
    lines += ["", "## Summary", ""]
    lines += table(
        ("benchmark", "target", "measured", "met"),
        [(v.name, v.target, v.measured, _met(v)) for v in verdicts],
    )
    for section in sections:
        lines += ["", f"## {section.title}", "", section.text, ""]
        lines += table(section.columns, section.rows)
    return "\n".join(lines) + "\n"


def _met(verdict: Verdict) -> str:
    return {True: "yes", False: "**no**", None: ""}[verdict.met]


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """A Markdown table; bars inside cells are escaped."""
    lines = [tuple(columns), tuple("---" for _ in columns), *map(tuple, rows)]
    cells = [[str(cell).replace("|", r"\|") for cell in line] for line in lines]
    return ["| " + " | ".join(line) + " |" for line in cells]


if __name__ == "__main__":
    main()
