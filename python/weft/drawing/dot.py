"""Drawings in Graphviz's DOT language."""

from weft.drawing.figure import COLOURS, Box, BoxStyle, Figure, cut, readable

SHAPES = {
    "round": 'shape=box, style="rounded,filled"',
    "double": 'shape=box, peripheries=2, style="filled"',
    "cornerless": 'shape=octagon, style="filled"',
    "dashed": 'shape=box, style="dashed,filled"',
    "dotted": 'shape=box, style="dotted,filled"',
}


def draw(figure: Figure) -> str:
    """Returns the graph. All texts are quoted, and truncated to a line."""
    first = figure.styles[0]
    legend = [
        *(_node(f"look{place}", style.about, style) for place, style in enumerate(figure.styles)),
        _node("marked", "● " + figure.marked, first, is_marked=True),
        _node("busy", figure.busy, first, is_busy=True),
        *([f"more [shape=plaintext, label={_quoted(figure.more)}];"] if figure.n_more else []),
    ]
    lines = [
        "digraph tree {",
        f"  label={_quoted(readable(figure.title))}; labelloc=t; rankdir=LR; bgcolor=white;",
        '  node [fontname="monospace", fontsize=10, margin="0.1,0.05"]; edge [color="#8c959f", arrowhead=none];',
        *(f"  {_box(place, box)}" for place, box in enumerate(figure.boxes)),
        *(f"  n{box.parent} -> n{place};" for place, box in enumerate(figure.boxes) if box.parent is not None),
        "  subgraph cluster_legend {",
        '    label="legend"; color="#8c959f";',
        *(f"    {line}" for line in legend),
        "  }",
        "}",
    ]
    return "\n".join([*lines, ""])


def _box(place: int, box: Box) -> str:
    label = f"{'● ' if box.is_marked else ''}{cut(box.text)}\n{cut(box.note)}"
    return _node(f"n{place}", label, box.style, is_marked=box.is_marked, is_busy=box.is_busy)


def _node(name: str, label: str, style: BoxStyle, *, is_marked: bool = False, is_busy: bool = False) -> str:
    # Text is black, on Graphviz's white background.
    inside, line = COLOURS[style.hue][:2]
    line = "#b3261e" if is_marked else line
    width = ", penwidth=3" if is_busy else ""
    return f'{name} [label={_quoted(label)}, {SHAPES[style.outline]}, fillcolor="{inside}", color="{line}"{width}];'


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
