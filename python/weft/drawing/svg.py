"""SVG drawings: roots on the left, readable on light and dark pages."""

from collections.abc import Iterator
from html import escape

from weft.drawing.figure import COLOURS, Box, BoxStyle, Figure, cut, readable, width
from weft.drawing.tidy import positions

CHARACTER, LINE = 7.3, 15
"""Width of a character and height of a line, in pixels."""

BOX_HEIGHT, ROW, GAP, MARGIN = 38, 50, 44, 16
"""Height of a box, distance between rows, gap between levels, and margin, in pixels."""

STYLE = """\
text {{ font: 12px ui-monospace, Menlo, Consolas, monospace; fill: #1b1f24; white-space: pre }}
.page {{ fill: #ffffff }} .note {{ fill: #57606a }} .title {{ font-weight: bold }}
.edge {{ fill: none; stroke: #8c959f; stroke-width: 1.3 }} .mark {{ fill: #b3261e }}
.box {{ stroke-width: 1.3 }} .busy {{ stroke-width: 3 }} .dashed {{ stroke-dasharray: 6 3 }} .dotted {{ stroke-dasharray: 1.5 3 }}
{light}
@media (prefers-color-scheme: dark) {{
text {{ fill: #e6e9ee }} .page {{ fill: #14161a }} .note {{ fill: #aab2bd }} .edge {{ stroke: #6b7480 }} .mark {{ fill: #ff8a80 }}
{dark}
}}"""


def draw(figure: Figure) -> str:
    """Returns the drawing. All texts are escaped, and truncated to a line."""
    box_width = max([8 * CHARACTER, *map(_box_width, figure.boxes)])
    rows = positions([box.parent for box in figure.boxes])
    depths = _depths(figure)
    legend = list(_legend_lines(figure))
    top = MARGIN + LINE + 10
    legend_top = top + ROW * (max(rows, default=-1) + 1) + 6
    right = MARGIN + (max(depths, default=0) + 1) * (box_width + GAP) - GAP + MARGIN
    legend_width = max(len(about) for _, about, _, _ in legend) * CHARACTER + 2 * MARGIN + 60
    title_width = width(figure.title) * CHARACTER + 2 * MARGIN
    page_width, page_height = max(right, legend_width, title_width), legend_top + len(legend) * 22 + LINE + MARGIN
    places = [(MARGIN + depth * (box_width + GAP), top + row * ROW) for depth, row in zip(depths, rows, strict=True)]
    size = f'width="{page_width:.0f}" height="{page_height:.0f}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {page_width:.0f} {page_height:.0f}" role="img">',
        f"<title>{_escaped(figure.title)}</title>",
        f"<style>{STYLE.format(light=_colours(0), dark=_colours(2))}</style>",
        '<rect class="page" width="100%" height="100%" rx="8"/>',
        f'<text class="title" x="{MARGIN}" y="{MARGIN + 10}">{_escaped(figure.title)}</text>',
    ]
    for box, (x, y) in zip(figure.boxes, places, strict=True):
        if box.parent is not None:
            lines.append(_edge(*places[box.parent], x, y, box_width))
    for box, (x, y) in zip(figure.boxes, places, strict=True):
        lines += _box(box, x, y, box_width)
    for row, (style, about, is_marked, is_busy) in enumerate(legend):
        y = legend_top + row * 22
        if style is not None:
            lines += _shape(style, MARGIN, y, 34, 16, is_busy=is_busy, is_marked=is_marked)
        lines.append(f'<text class="note" x="{MARGIN + 44 * (style is not None)}" y="{y + 12:.1f}">{_escaped(about)}</text>')
    return "\n".join([*lines, "</svg>\n"])


def _escaped(text: str) -> str:
    return escape(readable(text))


def _box_width(box: Box) -> float:
    return max(width(cut(box.text)), width(cut(box.note))) * CHARACTER + 18


def _depths(figure: Figure) -> list[int]:
    depths: list[int] = []
    for box in figure.boxes:
        depths.append(0 if box.parent is None else depths[box.parent] + 1)
    return depths


def _legend_lines(figure: Figure) -> Iterator[tuple[BoxStyle | None, str, bool, bool]]:
    """Yields the lines of the legend: look, text, and whether the shape is marked and busy."""
    if figure.n_more:
        yield None, figure.more, False, False
    for style in figure.styles:
        yield style, style.about, False, False
    plain = figure.styles[0]
    yield plain, figure.marked, True, False
    yield plain, figure.busy, False, True


def _colours(first: int) -> str:
    return "\n".join(f".{hue} {{ fill: {of[first]}; stroke: {of[first + 1]} }}" for hue, of in COLOURS.items())


def _edge(x: float, y: float, to_x: float, to_y: float, box_width: float) -> str:
    begin, middle = x + box_width, to_x - GAP / 2
    y, to_y = y + BOX_HEIGHT / 2, to_y + BOX_HEIGHT / 2
    return f'<path class="edge" d="M{begin:.1f} {y:.1f}C{middle:.1f} {y:.1f} {middle:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}"/>'


def _box(box: Box, x: float, y: float, box_width: float) -> Iterator[str]:
    yield f"<g><title>{_escaped(box.text)}</title>"
    yield from _shape(box.style, x, y, box_width, BOX_HEIGHT, is_busy=box.is_busy, is_marked=box.is_marked)
    yield f'<text x="{x + 9:.1f}" y="{y + 16:.1f}">{escape(cut(box.text))}</text>'
    yield f'<text class="note" x="{x + 9:.1f}" y="{y + 31:.1f}">{escape(cut(box.note))}</text></g>'


def _shape(style: BoxStyle, x: float, y: float, wide: float, high: float, *, is_busy: bool, is_marked: bool) -> Iterator[str]:
    line = f' class="box {style.hue}{" busy" if is_busy else ""}'
    if style.outline == "cornerless":
        corner = min(8.0, high / 3)
        yield (
            f'<path{line}" d="M{x + corner:.1f} {y:.1f}h{wide - 2 * corner:.1f}l{corner:.1f} {corner:.1f}v{high - 2 * corner:.1f}'
            f'l-{corner:.1f} {corner:.1f}h-{wide - 2 * corner:.1f}l-{corner:.1f} -{corner:.1f}v-{high - 2 * corner:.1f}z"/>'
        )
    else:
        dashes = f" {style.outline}" if style.outline in {"dashed", "dotted"} else ""
        yield f'<rect{line}{dashes}" x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" rx="5"/>'
        if style.outline == "double":
            yield (
                f'<rect class="box {style.hue}" x="{x + 3:.1f}" y="{y + 3:.1f}" width="{wide - 6:.1f}" height="{high - 6:.1f}" '
                'rx="3"/>'
            )
    if is_marked:
        yield f'<circle class="mark" cx="{x + 1:.1f}" cy="{y + 1:.1f}" r="5"/>'
