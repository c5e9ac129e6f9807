"""A few curves over the number of replicas, as SVG, readable on a light and on a dark page."""

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

__all__ = ["draw"]

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 300, 64, 178, 40, 44
"""Pixels of the picture, and of what is around the curves."""

LINE = 16
"""Pixels from one line of the legend to the next."""

COLOURS = ("#1d4ed8", "#0f766e", "#92620a", "#b3261e", "#7b3fb5", "#57606a", "#1a7f37", "#a8557a", "#3b82a0", "#1b1f24")
DARK = ("#7fb0ff", "#4fd1c5", "#f2b65a", "#ff8a80", "#c9a2f5", "#9aa4b2", "#56d364", "#f0a5c6", "#8fd0ea", "#e6e9ee")
MARKS = ("", "16 3", "6 3", "2 2", "8 3 2 3", "1 3", "10 4", "4 4", "12 2", "3 1")
"""Curves differ by their dashes too."""

STYLE = """\
text {{ font: 12px ui-monospace, Menlo, Consolas, monospace; fill: #1b1f24 }} .page {{ fill: #ffffff }}
.title {{ font-weight: bold }} .grid {{ stroke: #d0d7de; stroke-width: 1 }} .curve {{ fill: none; stroke-width: 1.8 }}
{light}
@media (prefers-color-scheme: dark) {{
text {{ fill: #e6e9ee }} .page {{ fill: #14161a }} .grid {{ stroke: #333a44 }}
{dark}
}}"""


def draw(title: str, xs: Sequence[int], curves: Mapping[str, Mapping[int, float]], *, is_log: bool, unit: str) -> str:
    """The picture: `curves` by their names, with their values for some of `xs`, which double."""
    values = [value for curve in curves.values() for value in curve.values()]
    ticks = _powers(min(values), max(values)) if is_log else [share / 5 for share in range(6)]
    low, high = ticks[0], ticks[-1]
    scale: Callable[[float], float] = math.log10 if is_log else float
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    steps = max(math.log2(xs[-1] / xs[0]), 1)

    def place(x: float, value: float) -> tuple[float, float]:
        share = (scale(max(value, low)) - scale(low)) / (scale(high) - scale(low))
        return LEFT + math.log2(x / xs[0]) / steps * width, TOP + (1 - share) * height

    if len(curves) > len(MARKS):
        msg = f"there are {len(curves)} curves; {len(MARKS)} can be told apart"
        raise ValueError(msg)
    colours = [
        "\n".join(f".c{nth} {{{{ stroke: {colour} }}}}".replace("{{", "{").replace("}}", "}") for nth, colour in enumerate(of))
        for of in (COLOURS, DARK)
    ]
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE.format(light=colours[0], dark=colours[1])}</style>",
        '<rect class="page" width="100%" height="100%" rx="8"/>',
        f'<text class="title" x="{LEFT}" y="22">{escape(title)}</text>',
    ]
    for tick in ticks:
        _, y = place(xs[0], tick)
        lines.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{LEFT + width}" y2="{y:.1f}"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g}{unit}</text>')
    for x in xs:
        at, _ = place(x, low)
        lines.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{x}</text>')
    lines.append(f'<text x="{LEFT + width / 2:.0f}" y="{HEIGHT - 8}" text-anchor="middle">replicas</text>')
    for nth, (name, curve) in enumerate(curves.items()):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(x, value) for x, value in curve.items()))
        look = f'class="curve c{nth}" stroke-dasharray="{MARKS[nth]}"'
        y = TOP + LINE * nth + 6
        lines.append(f'<polyline {look} points="{points}"/>')
        lines.append(f'<line {look} x1="{LEFT + width + 12}" y1="{y}" x2="{LEFT + width + 38}" y2="{y}"/>')
        lines.append(f'<text x="{LEFT + width + 44}" y="{y + 4}">{escape(name)}</text>')
    return "\n".join([*lines, "</svg>\n"])


def _powers(low: float, high: float) -> list[float]:
    """Powers of ten around values, a hundredth at least."""
    first, last = math.floor(math.log10(max(low, 0.01))), math.ceil(math.log10(max(high, 0.1)))
    return [10.0**power for power in range(first, last + 1)]
