"""Trees are drawn tidily, and whatever text stands in them, the picture is whole."""

import itertools
import random
from typing import get_args
from xml.etree import ElementTree

import pytest

from weft.drawing import dot, svg
from weft.drawing.figure import COLOURS, COLUMNS, Box, BoxStyle, Figure, Outline, cut, readable, width
from weft.drawing.tidy import positions

STYLES = [BoxStyle(outline, outline, hue) for outline, hue in zip(get_args(Outline), COLOURS, strict=True)]

Parents = list[int | None]


def children_of(parents: Parents) -> list[list[int]]:
    children: list[list[int]] = [[] for _ in parents]
    for node, parent in enumerate(parents):
        if parent is not None:
            children[parent].append(node)
    return children


def levels_of(parents: Parents) -> list[list[int]]:
    """The nodes of each depth, in the order in which they are drawn."""
    children = children_of(parents)
    levels = [[node for node, parent in enumerate(parents) if parent is None]]
    while below := [child for node in levels[-1] for child in children[node]]:
        levels.append(below)
    return levels


def random_parents(seed: int) -> Parents:
    draw = random.Random(seed)
    n, reach = draw.randint(1, 120), draw.choice([1, 2, 5, 200])
    return [None, *(draw.randrange(max(0, node - reach), node) for node in range(1, n))]


@pytest.mark.parametrize(
    ("parents", "expected"),
    [
        ([], []),
        ([None], [0]),
        ([None, 0], [0, 0]),
        ([None, 0, 0], [0.5, 0, 1]),
        ([None, 0, 0, 0], [1, 0, 1, 2]),
        ([None, None], [0, 1]),
        ([None, 0, 0, 1, 1], [1, 0.5, 1.5, 0, 1]),
        ([None, 0, 0, 1, 1, 2, 2], [1.5, 0.5, 2.5, 0, 1, 2, 3]),
        # The leaf between two wide subtrees stands in the middle of them, not beside one.
        ([None, 0, 0, 0, 1, 1, 1, 3, 3, 3], [2.5, 1, 2.5, 4, 0, 1, 2, 3, 4, 5]),
    ],
)
def test_small_trees_stand_as_they_should(parents: Parents, expected: list[float]) -> None:
    assert positions(parents) == expected


@pytest.mark.parametrize("seed", range(60))
def test_a_drawing_is_tidy(seed: int) -> None:
    parents = random_parents(seed)
    places, children = positions(parents), children_of(parents)
    assert min(places) == 0
    for level in levels_of(parents):
        for left, right in itertools.pairwise(level):
            assert places[right] - places[left] >= 1 - 1e-9, "nodes of a depth are apart, in their order"
    for node, below in enumerate(children):
        if below:
            assert places[node] == pytest.approx((places[below[0]] + places[below[-1]]) / 2), "a parent is in the middle"


@pytest.mark.parametrize("seed", range(10))
def test_a_mirrored_tree_is_drawn_mirrored(seed: int) -> None:
    parents = random_parents(seed)
    levels, places = levels_of(parents), positions(parents)
    # The same tree with the children of each node in the other order.
    order = [node for level in levels for node in reversed(level)]
    new = {node: place for place, node in enumerate(order)}
    mirrored = positions([None if (parent := parents[node]) is None else new[parent] for node in order])
    assert [max(places) - mirrored[new[node]] for node in range(len(parents))] == pytest.approx(places)


def test_a_tree_may_be_deep_and_wide() -> None:
    assert set(positions([None, *range(20_000)])) == {0}
    assert positions([None, *[0] * 20_000])[0] == pytest.approx(19_999 / 2)


def figure(*texts: str, n_more: int = 0) -> Figure:
    boxes = [
        Box(place - 1 if place else None, text, "a note", STYLES[place % 5], is_marked=place == 0, is_busy=place == 1)
        for place, text in enumerate(texts)
    ]
    return Figure("What is & what <is> not", boxes, STYLES, "marked ones", "busy ones", n_more)


NASTY = [
    "</text><script>alert(1)</script>",
    "\"quoted\" 'too' & \\back\\slashed\\",
    "a\nb\tc\r\x00\x1b[31m\x7f\x85",
    "\u202eturned\u2066 \u2028broken",
    "\ufffe\uffff\ufdd0\U0001ffff\ud800",
    "汉字" * 30,
    "e" + "\u0301" * 5_000,
    "🦊" * 40,
    "]]>",
    "%d {0} \\N \\n",
    " leading and trailing ",
    "",
]


def test_an_svg_is_whole_whatever_the_texts_are() -> None:
    drawn = svg.draw(figure(*NASTY, n_more=1_234))
    root = ElementTree.fromstring(drawn.encode())
    kinds = {element.tag.removeprefix("{http://www.w3.org/2000/svg}") for element in root.iter()}
    assert kinds == {"svg", "title", "style", "rect", "text", "path", "g", "circle"}
    texts = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == "What is & what <is> not"
    assert texts[1:25:2] == [cut(text) for text in NASTY]
    assert texts[25:] == ["… and 1,234 more", *(style.about for style in STYLES), "marked ones", "busy ones"]
    boxes = list(root.iter("{http://www.w3.org/2000/svg}g"))
    assert len(boxes) == len(NASTY)
    assert [len(list(box.iter("{http://www.w3.org/2000/svg}circle"))) for box in boxes] == [1] + [0] * 11
    assert ["busy" in box[1].attrib["class"] for box in boxes] == [False, True] + [False] * 10
    assert "more" not in "".join(element.text or "" for element in ElementTree.fromstring(svg.draw(figure("a"))).iter())


def test_a_box_says_by_its_shape_what_it_says_by_its_colour() -> None:
    root = ElementTree.fromstring(svg.draw(figure("a", "b", "c", "d", "e")))
    shapes = []
    for box in root.iter("{http://www.w3.org/2000/svg}g"):
        drawn = [(element.tag.partition("}")[2], element.attrib["class"]) for element in box if "box" in element.get("class", "")]
        shapes.append(drawn)
    assert shapes == [
        [("rect", "box blue")],
        [("rect", "box teal busy"), ("rect", "box teal")],
        [("path", "box gold")],
        [("rect", "box green dashed")],
        [("rect", "box grey dotted")],
    ]


def luminance(colour: str) -> float:
    """As WCAG 2 defines it."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted([luminance(one), luminance(other)])
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize(
    ("page", "first", "texts"),
    [("#ffffff", 0, ["#1b1f24", "#57606a"]), ("#14161a", 2, ["#e6e9ee", "#aab2bd"])],
    ids=["light", "dark"],
)
def test_every_text_and_line_can_be_read_in_both_modes(page: str, first: int, texts: list[str]) -> None:
    assert all(colour in svg.STYLE for colour in (page, *texts))
    for colours in COLOURS.values():
        inside, line = colours[first : first + 2]
        assert min(contrast(text, inside) for text in texts) >= 4.5
        assert contrast(line, page) >= 3
    assert min(contrast(text, page) for text in texts) >= 4.5


def test_a_graph_is_whole_whatever_the_texts_are() -> None:
    drawn = dot.draw(figure(*NASTY, n_more=7))
    lines = drawn.splitlines()
    assert lines[0] == "digraph tree {"
    assert lines[-1] == "}"
    for line in lines:
        # Outside of quoted texts nothing is left of what stands in them.
        outside, is_quoted, is_escaped = "", False, False
        for character in line:
            if is_escaped:
                is_escaped = False
            elif is_quoted and character == "\\":
                is_escaped = True
            elif character == '"':
                is_quoted = not is_quoted
            elif not is_quoted:
                outside += character
        assert not is_quoted, line
        assert outside.isascii()
        assert "<" not in outside
    assert [line.split(" [")[0].strip() for line in lines if line.startswith("  n") and "[label" in line] == [
        f"n{place}" for place in range(len(NASTY))
    ]
    assert sum(" -> " in line for line in lines) == len(NASTY) - 1
    assert '    more [shape=plaintext, label="… and 7 more"];' in lines
    assert "more [" not in dot.draw(figure("a"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a" * COLUMNS, "a" * COLUMNS),
        ("a" * (COLUMNS + 1), "a" * (COLUMNS - 1) + "…"),
        ("汉" * (COLUMNS // 2), "汉" * (COLUMNS // 2)),
        ("汉" * COLUMNS, "汉" * (COLUMNS // 2 - 1) + "…"),
        ("e\u0301" * COLUMNS, "e\u0301" * COLUMNS),
        ("a\nb", "a↵b"),
        ("\x00\x1f", "␀␟"),
        ("", ""),
    ],
)
def test_a_line_is_cut_where_it_is_too_wide(text: str, expected: str) -> None:
    assert cut(text) == expected
    assert width(cut(text)) <= COLUMNS


def test_what_cannot_be_seen_is_told() -> None:
    assert readable("a\u202eb\ufffec\ud800") == "a\ufffdb\ufffdc\ufffd"
    assert len(cut("\u0301" * 10_000)) < 1_000
