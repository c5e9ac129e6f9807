"""A call as one object of JSON, with the tool's name and its arguments."""

from weft.chat.answer.arguments import Arguments, BufferedArguments
from weft.chat.answer.grammar import Either, End, Grammar, Optional, Seq, Space, Text, TextValue, ToolName

__all__ = ["json_call"]

_COMMA = Seq(Space(None), ",", Space(None))


def json_call(
    name: str = "name",
    arguments: str = "arguments",
    *,
    id_name: str = "id",
    writes_id: str | None = None,
    writes_id_last: str | None = None,
    begins_with_name: bool = False,
) -> Grammar:
    """`{"name": "f", "arguments": {}}`.

    The two may come in either order, and an id or a type may stand beside them.

    Args:
        name: What the tool's name is called.
        arguments: What the arguments are called; `arguments` and `parameters` are read in place of it too.
        id_name: What an id is called.
        writes_id: GBNF of an id that is to be written first; None is none.
        writes_id_last: GBNF of an id that may be written last; None is none.
        begins_with_name: Whether nothing but a type may stand before the name: an object is a call by its beginning alone.
    """
    keys = Either(*(_key(key) for key in dict.fromkeys((arguments, "arguments", "parameters"))))
    named = Seq(_key(name), '"', ToolName(), '"')
    other = Either(
        Seq(_key(id_name), TextValue(writes_id or writes_id_last or '""', "[A-Za-z0-9]{9}")),
        Seq(_key("type"), '"function"'),
    )
    first = Optional(Seq(other, _COMMA)) if writes_id is None else Either(Seq(other, _COMMA), Seq())
    last = Optional(Seq(_COMMA, other), is_written=writes_id_last is not None)
    keyed = Seq(named, Optional(Seq(_COMMA, other)), _COMMA, keys, Arguments())
    in_order = Seq("{", Space(None), first, keyed, last, Space(None), End("}"))
    turned = Seq(
        "{", Space(), Optional(Seq(other, _COMMA)), keys, Arguments(is_buffered=True), _COMMA, named, BufferedArguments(), last
    )
    without = Seq("{", Space(), Optional(Seq(other, _COMMA)), named, BufferedArguments(), last)
    if begins_with_name:
        # What is seen to begin a call must be what it may begin with.
        comma, colon = Seq(Space(None), ",", Space(None)), Seq(Space(None), ":", Space(None))
        kind = Optional(Seq('"type"', colon, '"function"', comma), is_written=True)
        named = Seq(f'"{name}"', colon, '"', ToolName(), '"')
        keyed = Seq(named, Optional(Seq(_COMMA, other)), _COMMA, keys, Arguments())
        return Seq("{", Space(None), kind, keyed, last, Space(None), End("}"))
    return Either(in_order, Seq(turned, Space(), "}"), Seq(without, Space(), "}"))


def _key(name: str) -> Grammar:
    return Seq(Text(f'"{name}"'), Space(), ":", Space(" "))
