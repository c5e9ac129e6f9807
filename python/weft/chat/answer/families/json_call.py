"""A call as a JSON object with the tool's name and its arguments."""

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

    The name and the arguments may have either order, and an id or a type may be present.

    Args:
        name: Key of the tool's name.
        arguments: Key of the arguments. `arguments` and `parameters` are always accepted as well.
        id_name: Key of the id.
        writes_id: GBNF of a required id at the beginning; None for no id.
        writes_id_last: GBNF of an optional id at the end; None for no id.
        begins_with_name: True if only a type may precede the name, because the beginning of the object identifies a call.
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
    reversed_ = Seq(
        "{", Space(), Optional(Seq(other, _COMMA)), keys, Arguments(is_buffered=True), _COMMA, named, BufferedArguments(), last
    )
    no_arguments = Seq("{", Space(), Optional(Seq(other, _COMMA)), named, BufferedArguments(), last)
    if begins_with_name:
        # The GBNF must match what the family's patterns detect as the beginning of a call.
        comma, colon = Seq(Space(None), ",", Space(None)), Seq(Space(None), ":", Space(None))
        kind = Optional(Seq('"type"', colon, '"function"', comma), is_written=True)
        named = Seq(f'"{name}"', colon, '"', ToolName(), '"')
        keyed = Seq(named, Optional(Seq(_COMMA, other)), _COMMA, keys, Arguments())
        return Seq("{", Space(None), kind, keyed, last, Space(None), End("}"))
    return Either(in_order, Seq(reversed_, Space(), "}"), Seq(no_arguments, Space(), "}"))


def _key(name: str) -> Grammar:
    return Seq(Text(f'"{name}"'), Space(), ":", Space(" "))
