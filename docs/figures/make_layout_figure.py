"""Draw the rooms of the package, in the order of the import contract, to layout.svg."""

from __future__ import annotations

import tomllib
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

#: Rooms drawn in one column, from the contract's layers; what flows to the next column.
COLUMNS = (
    (("sphere", "measures"), "clouds"),
    (("attention",), "energy, mobility"),
    (("transport",), "costs, plans"),
    (("steps",), "steps, certificates"),
    (("schemes",), "one problem a step"),
    (("runs",), "curves"),
    (("diagnostics", "problems"), "balances, orders"),
    (("plotting", "report", "verify"), "figures, card"),
    (("config", "cli"), ""),
)
NOTES = {
    "sphere": "exp, log, distance",
    "measures": "TokenCloud",
    "attention": "heads, paths, kernel",
    "transport": "POT, distances",
    "steps": "particles, grid",
    "schemes": "jko, midpoint, ...",
    "runs": "movement, flow, store",
    "diagnostics": "balance, convergence",
    "problems": "known answers",
    "plotting": "figures",
    "report": "report.html",
    "verify": "theorem card",
    "config": "TOML",
    "cli": "the command",
}
FILL = ("#E8F1F8", "#0072B2")
WIDTH, HEIGHT, GAP_X, GAP_Y, PER_ROW = 158, 46, 62, 12, 5


def contract() -> list[str]:
    """Layers of the import contract, lowest first."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    layers = tomllib.loads(text)["tool"]["importlinter"]["contracts"][0]["layers"]
    return [room.strip() for layer in reversed(layers) for room in layer.split("|")]


def require_order() -> None:
    """The picture must show the contract's order."""
    order = contract()
    drawn = [room for rooms, _ in COLUMNS for room in rooms]
    missing = [room for room in drawn if room not in order]
    if missing:
        raise ValueError(f"rooms that the contract does not know: {missing}")
    heights = [max(order.index(room) for room in rooms) for rooms, _ in COLUMNS[:-2]]
    if heights != sorted(heights):
        raise ValueError("columns are not in the order of the contract")


def box(x: float, y: float, room: str) -> str:
    """One room: its name and what is in it."""
    return (
        f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="{FILL[0]}" '
        f'stroke="{FILL[1]}" stroke-width="1.3"/>'
        f'<text x="{x + WIDTH / 2}" y="{y + 19}" class="room">{room}</text>'
        f'<text x="{x + WIDTH / 2}" y="{y + 36}" class="note">{NOTES[room]}</text>'
    )


def arrow(x: float, y: float, label: str) -> str:
    """From one column to the next, with what is handed on."""
    words = label.split(", ") if ", " in label else [label]
    heights = [y - 8 - 12 * k for k in reversed(range(len(words)))]
    lines = "".join(
        f'<text x="{x + GAP_X / 2}" y="{height}" class="flow">{word}</text>'
        for height, word in zip(heights, words, strict=True)
    )
    return f'<path d="M{x + 4} {y} H{x + GAP_X - 9}" class="arrow"/>{lines}'


def draw() -> str:
    """The picture as SVG text."""
    tallest = 3 * HEIGHT + 2 * GAP_Y
    parts, row_height = [], tallest + 46
    for index, (rooms, label) in enumerate(COLUMNS):
        row, column = divmod(index, PER_ROW)
        x = 16 + column * (WIDTH + GAP_X)
        middle = 22 + row * row_height + tallest / 2
        total = len(rooms) * HEIGHT + (len(rooms) - 1) * GAP_Y
        for k, room in enumerate(rooms):
            parts.append(box(x, middle - total / 2 + k * (HEIGHT + GAP_Y), room))
        if label and column < PER_ROW - 1:
            parts.append(arrow(x + WIDTH, middle, label))
        elif label:
            down = f"M{x + WIDTH / 2} {middle + total / 2 + 4} V{22 + row_height - 30}"
            turn = f"H{16 + WIDTH / 2} V{22 + row_height + tallest / 2 - HEIGHT / 2 - 9}"
            parts.append(f'<path d="{down} {turn}" class="arrow"/>')
            at = 22 + row_height - 37
            parts.append(f'<text x="{x - 70}" y="{at}" class="flow">{label}</text>')
    width = 32 + PER_ROW * WIDTH + (PER_ROW - 1) * GAP_X
    height = 30 + 2 * tallest + 46
    style = (
        "text{font-family:'DejaVu Sans',Verdana,sans-serif;text-anchor:middle;fill:#1a1a1a}"
        ".room{font-size:14px;font-weight:bold}.note{font-size:11px}"
        ".flow{font-size:10px;font-style:italic;fill:#444}"
        ".arrow{stroke:#444;stroke-width:1.5;fill:none;marker-end:url(#tip)}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 44 {width} {height - 44}" role="img" '
        f'aria-label="Rooms of the package and what flows between them">'
        f"<style>{style}</style>"
        '<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="2" refY="4" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#444"/></marker></defs>'
        f'<rect width="{width}" height="{height}" fill="white"/>' + "".join(parts) + "</svg>\n"
    )


if __name__ == "__main__":
    require_order()
    (HERE / "layout.svg").write_text(draw(), encoding="utf-8")
