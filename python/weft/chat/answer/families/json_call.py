"""A call as one object of JSON, with the tool's name and its arguments."""

from weft.chat.answer.arguments import Arguments, HeldArguments
from weft.chat.answer.grammar import Either, End, Grammar, Optional, Row, Space, Text, TextValue, ToolName

__all__ = ["json_call"]

_COMMA = Row(Space(None), ",", Space(None))


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
    named = Row(_key(name), '"', ToolName(), '"')
    other = Either(
        Row(_key(id_name), TextValue(writes_id or writes_id_last or '""', "[A-Za-z0-9]{9}")),
        Row(_key("type"), '"function"'),
    )
    first = Optional(Row(other, _COMMA)) if writes_id is None else Either(Row(other, _COMMA), Row())
    last = Optional(Row(_COMMA, other), is_written=writes_id_last is not None)
    keyed = Row(named, Optional(Row(_COMMA, other)), _COMMA, keys, Arguments())
    in_order = Row("{", Space(None), first, keyed, last, Space(None), End("}"))
    turned = Row("{", Space(), Optional(Row(other, _COMMA)), keys, Arguments(is_held=True), _COMMA, named, HeldArguments(), last)
    without = Row("{", Space(), Optional(Row(other, _COMMA)), named, HeldArguments(), last)
    if begins_with_name:
        # What is seen to begin a call must be what it may begin with.
        comma, colon = Row(Space(None), ",", Space(None)), Row(Space(None), ":", Space(None))
        kind = Optional(Row('"type"', colon, '"function"', comma), is_written=True)
        named = Row(f'"{name}"', colon, '"', ToolName(), '"')
        keyed = Row(named, Optional(Row(_COMMA, other)), _COMMA, keys, Arguments())
        return Row("{", Space(None), kind, keyed, last, Space(None), End("}"))
    return Either(in_order, Row(turned, Space(), "}"), Row(without, Space(), "}"))


def _key(name: str) -> Grammar:
    return Row(Text(f'"{name}"'), Space(), ":", Space(" "))
