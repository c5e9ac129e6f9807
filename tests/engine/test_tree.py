"""A tree of texts computes what is new, and only that; what it holds is bounded, saved and loaded."""

import asyncio
import gc
import math
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, TypedDict
from xml.etree import ElementTree

import msgspec
import pytest

import weft
from tests.engine.tiny_models import KINDS, Kind
from tests.helpers import ended_by, is_idle, names_in, prompt_of, wait_until
from tests.server.matchers import Json
from weft import Finished, Node, Token, Tree
from weft.drawing.figure import readable
from weft.tree.tree import MAX_CACHE_FILES

SVG = "{http://www.w3.org/2000/svg}"


class Long(TypedDict):
    """Options."""

    max_tokens: int
    ignore_eos: bool


LONG: Long = {"max_tokens": 24, "ignore_eos": True}
"""Of a node of more tokens than it takes for them to be shared."""


@pytest.fixture
async def tree(engine: weft.Engine, request: pytest.FixtureRequest) -> AsyncIterator[Tree]:
    """A tree over a prompt of 40 tokens that no other test begins with."""
    yield Tree(engine, prompt_of(40, request.node.name))
    await wait_until(lambda: is_idle(engine))


def computed(nodes: list[Node]) -> int:
    return sum(node.usage.n_computed for node in nodes if node.usage is not None)


async def test_a_node_is_what_was_written_after_its_parent(engine: weft.Engine) -> None:
    tree = Tree(engine, "Once upon a time, there was a fox")
    first, second = await tree.root.extend(n=2, max_tokens=8, seed=3, ignore_eos=True)
    answer = await engine.complete("Once upon a time, there was a fox", n=2, max_tokens=8, seed=3, ignore_eos=True, logprobs=1)
    assert [node.text for node in (first, second)] == answer.texts
    assert [node.tokens for node in (first, second)] == [branch.token_ids for branch in answer.choices]
    assert [[each and each.chosen.token for each in node.logprobs] for node in tree.root.children] == [
        list(node.tokens) for node in tree.root.children
    ]
    assert first.logprob == pytest.approx(sum(each.chosen.logprob for each in answer.choices[0].logprobs), abs=0.2)
    assert (first.id, second.id, first.parent, first.depth, tree.root.depth) == (1, 2, tree.root, 1, 0)
    assert tree.root.text == "Once upon a time, there was a fox"
    assert (first.path, first.path_text) == ([*tree.root.tokens, *first.tokens], tree.root.text + first.text)
    assert tree.root.children == (first, second)
    assert tree.leaves == [first, second]
    assert tree.nodes == [tree.root, first, second]
    assert (first.finish_reason, first.stop_reason, tree.root.finish_reason, tree.root.logprob) == ("length", None, None, None)
    assert (len(tree), tree[2], first.ancestors) == (3, second, [tree.root, first])


async def test_extending_a_child_computes_one_token_of_its_path(tree: Tree, engine: weft.Engine) -> None:
    children = await tree.root.extend(n=3, **LONG)
    assert computed(children) == 40
    before = engine.stats().n_computed
    for child in children:
        assert computed(await child.extend(n=2, **LONG)) == 1
    assert engine.stats().n_computed - before == 3
    assert (tree.n_computed, tree.n_cached, tree.n_predicted) == (43, 2 * 40 + 3 * (2 * 64 - 1), 9 * 24)


async def test_another_child_of_a_node_computes_one_token_of_the_path(tree: Tree) -> None:
    await tree.root.extend(n=2, **LONG)
    assert computed(await tree.root.extend(n=4, **LONG)) == 1


async def test_a_text_of_ones_own_is_computed_and_nothing_before_it(tree: Tree) -> None:
    [child] = await tree.root.extend(**LONG)
    own = child.append(" But then the fox")
    assert (own.parent, own.text, own.finish_reason, own.logprobs) == (
        child,
        " But then the fox",
        None,
        (None,) * len(own.tokens),
    )
    # The last token of the child was drawn and not computed.
    assert computed(await own.extend(n=2, **LONG)) == 1 + len(own.tokens)
    listed = child.append(own.tokens)
    assert (listed.tokens, listed.text) == (own.tokens, own.text)
    assert computed(await listed.extend(**LONG)) == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_of_memory_computes_only_what_is_new(kind: Kind, tiny_models: dict[Kind, Path]) -> None:
    async with an_engine(model=tiny_models[kind], n_ctx=1024) as engine:
        tree = Tree(engine, [token % (engine.model.n_vocab - 10) + 5 for token in prompt_of(100, "kinds")])
        first, second = await tree.root.extend(n=2, max_tokens=30, ignore_eos=True)
        assert computed([first, second]) == 100
        assert computed(await second.extend(n=2, max_tokens=4)) == 1
        # Where a state is kept, it is kept with what the model says after it, and only at the ends of nodes.
        is_state = kind in ("recurrent", "hybrid")
        short = await tree.root.extend(n=2, max_tokens=4)
        assert computed(short) == (0 if is_state else 1)
        edited = first.edit(20, "x")
        # The last token that is drawn is not computed; and two texts may begin with the same draws.
        n_drawn = 3 if any(node.tokens[:3] == edited.tokens[:3] for node in short) else 0
        n_new = len(edited.path) - 100 - (n_drawn if is_state else 20)
        assert computed(await edited.extend(n=2, max_tokens=4)) == n_new


@pytest.mark.parametrize("at", [0, 7, 16, 24])
async def test_an_edit_is_computed_from_there_on(tree: Tree, at: int) -> None:
    [child] = await tree.root.extend(**LONG)
    edited = child.edit(at, " a whale")
    assert (edited.parent, edited.tokens[:at], edited.logprobs[:at]) == (tree.root, child.tokens[:at], child.logprobs[:at])
    assert edited.text == tree.engine.detokenize(child.tokens[:at]) + " a whale"
    assert edited.logprobs[at:] == (None,) * (len(edited.tokens) - at)
    assert edited.logprob is None
    # What is edited in may begin with what was drawn there.
    alike = takewhile(lambda two: two[0] == two[1], zip(child.tokens[:23], edited.tokens, strict=False))
    n_known = 40 + len(list(alike))
    assert computed(await edited.extend(n=2, **LONG)) == len(edited.path) - n_known
    assert child in tree.nodes


async def test_an_edit_may_be_within_a_token(tree: Tree, engine: weft.Engine) -> None:
    text = " forest of the village"
    node = tree.root.append(text)
    for at in range(len(text) + 1):
        edited = node.edit(at, "é!", unit="byte")
        assert edited.text == text[:at] + "é!"
        assert engine.detokenize(edited.tokens) == edited.text
    assert node.edit(8, "", unit="byte").text == " forest "
    n_whole = len(engine.tokenize(" forest", add_special=False))
    assert node.edit(len(" forest"), " x", unit="byte").tokens[:n_whole] == node.tokens[:n_whole]


async def test_a_text_goes_on_without_the_blank_that_begins_texts(model_path: Path) -> None:
    blank = {"tokenizer.ggml.add_space_prefix": True}
    async with weft.Engine(model_path, n_slots=1, n_ctx=512, n_threads=1, kv_overrides=blank) as engine:
        assert engine.detokenize(engine.tokenize("fox", add_special=False)) == " fox"
        tree = Tree(engine, "Once upon a")
        for text in ("fox", " fox", "\n\nfox", "x", "ü", "1.5 ."):
            node = tree.root.append(text)
            assert b"".join(map(engine.model.token_bytes, node.tokens)) == text.encode()


async def test_the_spelling_of_a_control_token_is_text_unless_that_is_asked_for(tree: Tree, engine: weft.Engine) -> None:
    end = engine.model.eos_token
    assert tree.root.append("</s>").tokens != (end,)
    assert tree.root.append("</s>", parse_special=True).tokens == (end,)


async def test_an_end_token_is_in_no_node(tree: Tree, engine: weft.Engine) -> None:
    end = engine.model.eos_token
    assert end is not None
    [child] = await tree.root.extend(max_tokens=8, logit_bias={end: 100})
    assert (ended_by(child), child.tokens, child.text, child.logprob) == ("end", (), "", 0)
    assert child.usage is not None
    assert child.usage.n_predicted == 1
    [grown] = await child.extend(**LONG)
    assert grown.path == [*tree.root.tokens, *grown.tokens]


async def test_a_stop_string_is_in_no_node(engine: weft.Engine) -> None:
    tree = Tree(engine, "Once upon a time, there was a fox")
    for seed in range(20):
        [child] = await tree.root.extend(max_tokens=60, seed=seed, stop=["ha", "e w", "."])
        assert engine.detokenize(child.tokens) == child.text
        assert len(child.logprobs) == len(child.tokens)
        assert child.finish_reason != "stop" or child.stop_reason in ("ha", "e w", ".")
    assert "stop" in {child.finish_reason for child in tree.root.children}


async def test_events_are_told_while_a_node_is_extended(tree: Tree) -> None:
    texts = ["", ""]
    n_children = []
    async with tree.root.stream(n=2, max_tokens=6, ignore_eos=True) as extension:
        async for event in extension:
            if isinstance(event, Token | Finished):
                texts[event.index] += event.text
            if isinstance(event, Finished):
                n_children.append(len(tree.root.children))
    assert n_children == [1, 2]
    assert [child.text for child in extension.children] == texts
    assert sorted(extension.children, key=lambda node: node.id) == list(tree.root.children)
    assert await extension.finish() == list(extension.children)


async def test_what_is_cancelled_leaves_no_child(tree: Tree, engine: weft.Engine) -> None:
    task = asyncio.create_task(tree.root.extend(n=4, max_tokens=2_000, ignore_eos=True))
    await wait_until(lambda: any(slot.n_predicted > 20 for slot in engine.stats().slots))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await wait_until(lambda: is_idle(engine))
    assert tree.root.children == ()
    assert tree.n_bytes == tree.root.n_bytes
    [child] = await tree.root.extend(**LONG)
    assert child.id == 1


async def test_what_is_cancelled_is_kept_where_that_is_asked_for(engine: weft.Engine) -> None:
    tree = Tree(engine, "Once upon a time,")
    told = ["", ""]
    async with tree.root.stream(
        n=2, max_tokens=2_000, temperature=0, logit_bias={5: -100, 6: -100, 7: -100}, ignore_eos=True, keep_partial=True
    ) as extension:
        async for event in extension:
            if isinstance(event, Token):
                told[event.index] += event.text
                if min(map(len, told)) > 40:
                    break
    assert [child.text for child in extension.children] == told
    assert all(child.finish_reason == "cancelled" and child.usage is None for child in tree.root.children)
    assert [engine.detokenize(child.tokens) for child in extension.children] == told
    await wait_until(lambda: is_idle(engine))
    extension.close()
    assert len(tree) == 3
    assert [event async for event in extension] == []


async def test_an_extension_that_nobody_holds_is_cancelled(tree: Tree, engine: weft.Engine) -> None:
    extension = tree.root.stream(n=2, max_tokens=2_000, ignore_eos=True)
    await anext(extension)
    del extension
    gc.collect()
    await wait_until(lambda: is_idle(engine))
    assert tree.root.children == ()
    assert len(await tree.root.extend(n=2, max_tokens=1)) == 2


async def test_what_is_dropped_is_cancelled_with_all_below_it(tree: Tree, engine: weft.Engine) -> None:
    child, sibling = await tree.root.extend(n=2, max_tokens=4, ignore_eos=True)
    below = child.append(" and so")
    running = asyncio.create_task(below.extend(n=2, max_tokens=2_000, ignore_eos=True, keep_partial=True))
    await wait_until(lambda: any(slot.n_predicted > 5 for slot in engine.stats().slots))
    tree_before = tree.nodes
    child.drop()
    with pytest.raises(weft.NodeDroppedError, match=f"node {below.id} was dropped") as raised:
        await running
    assert raised.value.node_id == below.id
    await wait_until(lambda: is_idle(engine))
    assert tree.nodes == [tree.root, sibling]
    assert tree.n_bytes == tree.root.n_bytes + sibling.n_bytes
    assert {node for node in tree_before if node.is_dropped} == {child, below}
    assert below.path_text == tree.root.text + child.text + " and so"
    for refused in (lambda: child.append("x"), lambda: child.edit(0, "x"), child.drop, child.stream):
        with pytest.raises(weft.NodeDroppedError):
            refused()
    with pytest.raises(weft.NodeDroppedError):
        await child.pin()
    with pytest.raises(KeyError):
        tree[child.id]
    assert tree.root.append("x").id > below.id


async def test_a_pinned_node_stays_computed_and_is_not_dropped(tree: Tree, engine: weft.Engine) -> None:
    [child] = await tree.root.extend(**LONG)
    prefix = await child.pin()
    assert prefix.tokens == child.path
    assert [node.is_pinned for node in tree.nodes] == [False, True]
    assert await child.pin() is prefix
    assert [each.id for each in await engine.prefixes()] == [prefix.id]
    with pytest.raises(weft.InvalidRequestError, match=f"node {child.id} is pinned"):
        child.drop()
    assert [await child.unpin(), await child.unpin()] == [True, False]
    assert [node.is_pinned for node in tree.nodes] == [False, False]
    assert await engine.prefixes() == []
    child.drop()


async def test_what_is_pinned_twice_at_once_is_pinned_once(tree: Tree, engine: weft.Engine) -> None:
    first, second = await asyncio.gather(tree.root.pin(), tree.root.pin())
    assert first is second
    assert [prefix.id for prefix in await engine.prefixes()] == [first.id]
    assert await tree.root.unpin()


async def test_a_node_that_is_dropped_while_it_is_pinned_is_not(
    tree: Tree, engine: weft.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    child, pin = tree.root.append(" and then"), engine.pin

    async def pin_slowly(path: Sequence[int], **options: Sequence[tuple[int, float]] | None) -> weft.Prefix:
        prefix = await pin(path, **options)
        child.drop()
        return prefix

    monkeypatch.setattr(engine, "pin", pin_slowly)
    with pytest.raises(weft.NodeDroppedError):
        await child.pin()
    assert await engine.prefixes() == []


async def test_branches_beyond_the_slots_wait_for_one_and_compute_nothing(model_path: Path) -> None:
    async with weft.Engine(model_path, n_slots=2, n_ctx=2048, n_threads=1) as engine:
        tree = Tree(engine, prompt_of(40, "more branches than slots"))
        children = await tree.root.extend(n=7, **LONG)
        assert [child.finish_reason for child in children] == ["length"] * 7
        assert (computed(children), tree.n_cached) == (40, 6 * 40)
        grown = await asyncio.gather(*(child.extend(n=3, **LONG) for child in children))
        assert [len(each) for each in grown] == [3] * 7
        assert computed([node for each in grown for node in each]) == 7, "one token of each path"
        with pytest.raises(weft.InvalidRequestError, match="beam_width is 3"):
            await tree.root.extend(beam_width=3, max_tokens=4)
        assert len(tree) == 1 + 7 + 21


async def test_branches_that_differ_become_children_all_of_them(tree: Tree) -> None:
    children = await tree.root.extend(branches=[{"max_tokens": 1}, {"max_tokens": 2}, {"max_tokens": 3}], ignore_eos=True)
    assert [len(child.tokens) for child in children] == [1, 2, 3]


async def test_a_tree_holds_so_many_nodes_and_no_more(engine: weft.Engine) -> None:
    tree = Tree(engine, "Once upon a time", max_nodes=4)
    extension = tree.root.stream(n=2, max_tokens=2_000, ignore_eos=True)
    with pytest.raises(weft.TreeFullError) as raised:
        await tree.root.extend(n=2, max_tokens=1)
    assert (raised.value.limit, raised.value.unit) == (4, "nodes")
    tree.root.append("x")
    with pytest.raises(weft.TreeFullError, match="at most 4 nodes"):
        tree.root.append("y")
    extension.close()
    assert len(await tree.root.extend(n=2, max_tokens=1)) == 2
    with pytest.raises(weft.TreeFullError):
        tree.root.stream()


async def test_a_tree_takes_so_many_bytes_and_no_more(engine: weft.Engine) -> None:
    tree = Tree(engine, "Once upon a time", max_bytes=40_000)
    with pytest.raises(weft.TreeFullError) as raised:
        await tree.root.extend(n=2, max_tokens=500, ignore_eos=True, keep_partial=True)
    assert (raised.value.limit, raised.value.unit) == (40_000, "bytes")
    assert tree.root.children == ()
    assert tree.n_bytes < 5_000
    await wait_until(lambda: is_idle(engine))
    with pytest.raises(weft.TreeFullError):
        tree.root.append("x" * 10_000)
    with pytest.raises(weft.TreeFullError):
        Tree(engine, "Once upon a time", max_bytes=100)


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        (lambda tree: tree.root.append(""), "given"),
        (lambda tree: tree.root.append([]), "given"),
        (lambda tree: tree.root.append([99_999]), None),
        (lambda tree: tree.root.append("\ud800"), "text"),
        (lambda tree: tree.root.edit(0, "x"), "node"),
        (lambda tree: tree.root.drop(), "node"),
        (lambda tree: tree.root.append("x").edit(2, "x"), "at"),
        (lambda tree: tree.root.append("x").edit(-1, "x"), "at"),
        (lambda tree: tree.root.append("x").edit(-1, "x", unit="byte"), "at"),
        (lambda tree: tree.root.append("x").edit(99, "x", unit="byte"), "at"),
        (lambda tree: tree.root.append("x").edit(0, ""), "text"),
        (lambda tree: tree.root.append("x").edit(0, "x", unit="line"), "unit"),
        (lambda tree: tree.root.stream(n="2"), "n"),
        (lambda tree: tree.root.stream(n=0), "n"),
        (lambda tree: tree.root.stream(branches=7), "branches"),
        (lambda tree: tree.root.stream(suffix_prompt=" She"), "suffix_prompt"),
        (lambda tree: tree.root.stream(branches=[{}, {"suffix_prompt": " She"}]), "suffix_prompt"),
        (lambda tree: Tree(tree.engine, []), "prompt"),
        (lambda tree: Tree(tree.engine, "x", max_nodes=0), "max_nodes"),
        (lambda tree: Tree(tree.engine, "x", max_bytes=0), "max_bytes"),
    ],
)
async def test_what_is_wrong_is_refused_and_changes_nothing(
    tree: Tree, wrong: Callable[[Tree], object], param: str | None
) -> None:
    with pytest.raises(weft.InvalidRequestError) as raised:
        wrong(tree)
    assert param in (None, raised.value.param)
    assert not [node for node in tree.nodes if not node.tokens or node.depth > 1]


async def test_what_is_extended_dropped_and_cancelled_at_once_leaves_nothing_behind(engine: weft.Engine) -> None:
    draw = random.Random(2)
    tree = Tree(engine, prompt_of(20, "at once"), max_nodes=200)
    running: dict[asyncio.Task[list[Node]], Node] = {}
    ends: Counter[str] = Counter()

    def ended(task: asyncio.Task[list[Node]]) -> None:
        del running[task]
        ends["cancelled" if task.cancelled() else type(task.exception()).__name__] += 1

    for step in range(400):
        node = draw.choice(tree.nodes)
        kind = draw.choice(["extend", "extend", "append", "drop", "cancel", "forget", "wait"])
        if kind == "extend" and len(node.path) < 500:
            keep_partial, n = draw.choice([True, False]), draw.randint(1, 3)
            task = asyncio.create_task(node.extend(keep_partial=keep_partial, n=n, max_tokens=draw.randint(1, 60), seed=step))
            running[task] = node
            task.add_done_callback(ended)
        elif kind == "append" and len(tree) < 150:
            node.append(" and")
        elif kind == "drop":
            # Rather one that is being extended.
            node = draw.choice([each for each in running.values() if not each.is_dropped] or [node])
            if node.parent is not None:
                node.drop()
        elif kind == "cancel" and running:
            draw.choice(sorted(running, key=id)).cancel()
        elif kind == "forget" and len(tree) < 150:
            await anext(node.stream(n=2, max_tokens=60))
        elif kind == "wait":
            await asyncio.sleep(draw.random() * 0.02)
        assert tree.n_bytes == sum(each.n_bytes for each in tree.nodes)
    await asyncio.gather(*running, return_exceptions=True)
    assert ends.keys() <= {"NoneType", "cancelled", "NodeDroppedError", "TreeFullError"}
    assert min(ends["NoneType"], ends["cancelled"], ends["NodeDroppedError"]) > 5
    gc.collect()
    nodes = tree._nodes
    assert (nodes.n_reserved_nodes, nodes.n_reserved_bytes) == (0, 0)
    assert tree.n_bytes == sum(each.n_bytes for each in tree.nodes)
    assert all(each in each.parent.children for each in tree.nodes if each.parent)
    await wait_until(lambda: is_idle(engine))


async def test_a_path_longer_than_the_context_is_refused(engine: weft.Engine) -> None:
    tree = Tree(engine, prompt_of(9_000, "long"))
    with pytest.raises(weft.ContextOverflowError):
        await tree.root.extend(max_tokens=1)
    assert len(tree) == 1


def an_engine(**settings: object) -> weft.Engine:
    return weft.Engine(**{"n_slots": 2, "n_ctx": 2048, "n_threads": 1} | settings)  # type: ignore[arg-type]


async def grown(engine: weft.Engine) -> Tree:
    """Of every kind of node."""
    tree = Tree(engine, "Once upon a time, there was a fox who lived in the forest near the old village")
    first, second = await tree.root.extend(n=2, logprobs=3, **LONG)
    await first.append(' "Écoute"\n').extend(max_tokens=40, stop=["."], logprobs=0)
    second.edit(10, " then")
    second.drop()
    return tree


def contents(tree: Tree) -> list[Any]:
    return [
        (node.id, node.parent and node.parent.id, node.text, node.tokens, node.logprobs, node.finish_reason, node.stop_reason)
        for node in tree.nodes
    ]


async def test_a_tree_is_loaded_as_it_was_saved(engine: weft.Engine, tmp_path: Path) -> None:
    tree = await grown(engine)
    await tree.save(tmp_path / "tree.json")
    assert names_in(tmp_path) == ["tree.json"]
    loaded = await Tree.load(engine, tmp_path / "tree.json")
    assert contents(loaded) == contents(tree)
    assert loaded.n_bytes == tree.n_bytes
    ours, theirs = tree.root.append("x").id, loaded.root.append("x").id
    assert theirs <= ours
    assert theirs > max(node.id for node in loaded.nodes if node.text != "x")
    await loaded.save(tmp_path / "again.json")
    loaded.root.children[-1].drop()
    await loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "tree.json").read_bytes()


async def test_what_was_saved_with_the_tree_is_not_computed_again(tmp_path: Path) -> None:
    async with an_engine() as engine:
        tree = await grown(engine)
        await tree.save(tmp_path / "tree.json", with_cache=True)
        leaves = [node.id for node in tree.leaves]
    assert names_in(tmp_path) == sorted(["tree.json", *(f"tree.json.{leaf}.kv" for leaf in leaves)])
    async with an_engine() as engine:
        loaded = await Tree.load(engine, tmp_path / "tree.json")
        for leaf in leaves:
            assert computed(await loaded[leaf].extend(n=2, max_tokens=4)) == 1
        assert engine.stats().n_computed == len(leaves)
    async with an_engine() as engine:
        loaded = await Tree.load(engine, tmp_path / "tree.json", with_cache=False)
        assert computed(await loaded[leaves[0]].extend(max_tokens=4)) == len(loaded[leaves[0]].path)


async def test_the_paths_that_are_saved_computed_may_be_named(tmp_path: Path) -> None:
    async with an_engine() as engine:
        tree = await grown(engine)
        first = tree.root.children[0]
        await tree.save(tmp_path / "tree.json", with_cache=[first])
        assert names_in(tmp_path) == ["tree.json", f"tree.json.{first.id}.kv"]
        other = Tree(engine, "Another one").root.append("x")
        for strange in (other, *[Tree(engine, "x").root]):
            with pytest.raises(weft.InvalidRequestError, match=f"node {strange.id} is not in the tree"):
                await tree.save(tmp_path / "tree.json", with_cache=[strange])
        for _ in range(MAX_CACHE_FILES):
            tree.root.append("x")
        with pytest.raises(weft.InvalidRequestError, match="at most 64"):
            await tree.save(tmp_path / "tree.json", with_cache=True)
        (tmp_path / f"tree.json.{first.id}.kv").write_bytes(b"something else")
        with pytest.raises(weft.PrefixFileError):
            await Tree.load(engine, tmp_path / "tree.json")


async def test_a_tree_of_another_model_is_refused_by_name_or_read_as_text(
    engine: weft.Engine, tiny_models: dict[Kind, Path], tmp_path: Path
) -> None:
    tree = await grown(engine)
    await tree.save(tmp_path / "tree.json", with_cache=True)
    async with an_engine(model=tiny_models["attention"], n_ctx=256) as other:
        with pytest.raises(weft.TreeFileError, match="saved with the model 'Demo storyteller', not the model") as raised:
            await Tree.load(other, tmp_path / "tree.json")
        assert raised.value.path == str(tmp_path / "tree.json")
        loaded = await Tree.load(other, tmp_path / "tree.json", as_text=True)
        assert [(node.id, node.text) for node in loaded.nodes] == [(node.id, node.text) for node in tree.nodes]
        assert all(node.logprobs == (None,) * len(node.tokens) for node in loaded.nodes)
        assert all(0 <= token < other.model.n_vocab for token in loaded.nodes[-1].path)
    again = await Tree.load(engine, tmp_path / "tree.json", as_text=True)
    assert again.root.tokens == tree.root.tokens


async def test_a_probability_of_nothing_is_saved(engine: weft.Engine, tmp_path: Path) -> None:
    tree = Tree(engine, "Once")
    [child] = await tree.root.extend(max_tokens=2, logprobs=2)
    await tree.save(tmp_path / "tree.json")
    saved = msgspec.json.decode((tmp_path / "tree.json").read_bytes())
    saved["nodes"][1]["logprobs"][0][1][0][1] = None
    (tmp_path / "tree.json").write_bytes(msgspec.json.encode(saved))
    loaded = await Tree.load(engine, tmp_path / "tree.json")
    first = loaded.root.children[0].logprobs[0]
    assert first is not None
    assert first.top[0].logprob == -math.inf
    await loaded.save(tmp_path / "tree.json")
    assert msgspec.json.decode((tmp_path / "tree.json").read_bytes()) == saved
    assert child.logprobs[1] == loaded.root.children[0].logprobs[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda saved: saved.update(version=2), "its version is 2; only version 1 is supported"),
        (lambda saved: saved.update(format="something"), "it is not a tree file"),
        (lambda saved: saved.pop("model"), "it is not a tree file: Object missing required field `model`"),
        (lambda saved: saved.update(nodes=[]), "its first node is not a root"),
        (lambda saved: saved["nodes"].pop(0), "its first node is not a root"),
        (lambda saved: saved["nodes"].append(saved["nodes"][-1]), "ids must increase"),
        (lambda saved: saved["nodes"][-1].update(parent=99), "has the parent 99"),
        (lambda saved: saved["nodes"][-1].update(parent=None), "has the parent None"),
        (lambda saved: saved["nodes"][1].update(tokens=[5]), "has 1 tokens and 24 log-probabilities"),
        (lambda saved: saved["nodes"][-1].update(tokens=[2048], logprobs=[]), "has the token 2048; the vocabulary has 2048"),
        (lambda saved: saved["nodes"][1]["logprobs"][0][1][0].__setitem__(0, -1), "has the token -1"),
        (lambda saved: saved["nodes"][0].update(tokens=[]), "its root has no tokens"),
        (lambda saved: saved.update(cached=[77]), "node 77 is listed as cached"),
        (lambda saved: saved["nodes"][0].update(text=5), r"Expected `str`, got `int` - at `\$.nodes\[0\].text`"),
    ],
)
async def test_a_file_that_is_wrong_is_refused(
    engine: weft.Engine, tmp_path: Path, change: Callable[[Json], object], message: str
) -> None:
    tree = await grown(engine)
    path = tmp_path / "tree.json"
    await tree.save(path)
    saved = msgspec.json.decode(path.read_bytes())
    change(saved)
    path.write_bytes(msgspec.json.encode(saved))
    with pytest.raises(weft.TreeFileError, match=message):
        await Tree.load(engine, path)


async def test_a_file_that_is_too_large_or_no_json_is_refused(engine: weft.Engine, tmp_path: Path) -> None:
    tree = await grown(engine)
    path = tmp_path / "tree.json"
    await tree.save(path)
    with pytest.raises(weft.TreeFullError):
        await Tree.load(engine, path, max_nodes=3)
    with pytest.raises(weft.TreeFileError, match=r"it exceeds max_bytes \(100 bytes\)"):
        await Tree.load(engine, path, max_bytes=100)
    assert path.stat().st_size < tree.n_bytes
    assert contents(await Tree.load(engine, path, max_bytes=tree.n_bytes)) == contents(tree)
    with pytest.raises(weft.TreeFullError):
        await Tree.load(engine, path, max_bytes=tree.n_bytes - 1)
    deep = b'{"format": "weft tree", "version": 1, "x": ' + b"[" * 100_000
    for content in (deep, b"", b"[]", b'{"format": "weft tree"', b"\xff\xfe", b"[" * 100_000):
        path.write_bytes(content)
        with pytest.raises(weft.TreeFileError, match="it is not a tree file"):
            await Tree.load(engine, path)
    with pytest.raises(FileNotFoundError):
        await Tree.load(engine, tmp_path / "none.json")
    with pytest.raises(FileNotFoundError):
        await tree.save(tmp_path / "none" / "tree.json")


async def test_a_tree_is_drawn(engine: weft.Engine) -> None:
    tree = await grown(engine)
    end = engine.model.eos_token
    assert end is not None
    [ended] = await tree.root.extend(max_tokens=8, logit_bias={end: 100})
    assert ended.stop_reason == end
    await tree.root.pin()
    root = ElementTree.fromstring(tree.picture())
    boxes = list(root.iter(f"{SVG}g"))
    drawn = sorted(tree.nodes, key=lambda node: (node.depth, node.id))
    assert [box[0].text or "" for box in boxes] == [readable(node.text) for node in drawn]
    notes = [(box[-1].text or "").split(":")[0] for box in boxes]
    assert notes == [str(node.id) for node in drawn]
    assert [box[1].attrib["class"] for box in boxes] == [
        "box gold" if node.finish_reason is None else "box blue busy" if node.stop_reason == end else "box blue" for node in drawn
    ]
    assert ["mark" in box[2].get("class", "") for box in boxes] == [node is tree.root for node in drawn]
    assert not re.search("… and [0-9]+ more", tree.picture())
    assert f"… and {len(tree) - 2} more" in tree.picture(limit=2)
    assert tree.picture("dot").count(" -> ") == len(tree) - 1
    for wrong, param in (({"format": "png"}, "format"), ({"limit": 0}, "limit"), ({"limit": 1_001}, "limit")):
        with pytest.raises(weft.InvalidRequestError) as raised:
            tree.picture(**wrong)
        assert raised.value.param == param
    await tree.root.unpin()


async def test_random_changes_leave_a_tree_that_counts_right(engine: weft.Engine, tmp_path: Path) -> None:
    draw = random.Random(1)
    tree = Tree(engine, prompt_of(20, "random changes"))
    for step in range(300):
        node = draw.choice(tree.nodes)
        kind = draw.choice(["extend", "append", "edit", "drop", "cut"] if node.parent else ["extend", "append"])
        if kind == "extend" and len(node.path) < 400:
            await node.extend(n=draw.randint(1, 3), max_tokens=draw.randint(1, 6), seed=step)
        elif kind == "append":
            node.append(draw.choice([" and", "…", " x é\n"]))
        elif kind in ("edit", "cut") and node.tokens:
            node.edit(draw.randint(0 if kind == "edit" else 1, len(node.tokens)), " or" * (kind == "edit"))
        elif kind == "drop":
            node.drop()
        assert tree.n_bytes == sum(each.n_bytes for each in tree.nodes)
        assert len({each.id for each in tree.nodes}) == len(tree)
        assert all(each in each.parent.children and each.parent.id < each.id for each in tree.nodes if each.parent)
        assert sum(len(each.children) for each in tree.nodes) == len(tree) - 1
    await tree.save(tmp_path / "tree.json")
    assert contents(await Tree.load(engine, tmp_path / "tree.json")) == contents(tree)
