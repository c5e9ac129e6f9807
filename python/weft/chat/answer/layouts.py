"""Layouts of calls that several formats share, as grammars."""

from weft.chat.answer.arguments import Arguments, BufferedArguments, Keywords, with_closing_mark
from weft.chat.answer.grammar import Calls, Either, End, Grammar, OneCall, Optional, Seq, Space, Text, TextValue, ToolName

_COMMA, _COLON = Seq(Space(None), ",", Space(None)), Seq(Space(None), ":", Space(None))


def tagged(opening: str, call: Grammar, closing: str) -> Grammar:
    """Returns the grammar of one call between tags, each on its own line."""
    return Seq(opening, Space("\n"), call, End(f"\n{closing}"))


def section(opening: Grammar | str, call: Grammar, closing: Grammar | str, *, space: str = "", between: str = "") -> Grammar:
    """Returns the grammar of a sequence of calls between marks; `space` follows the first mark, `between` separates calls."""
    end = End(closing) if isinstance(closing, str) else closing
    return Seq(opening, Space(space), Calls(call, Space(between)), end)


def json_list(call: Grammar) -> Grammar:
    """Returns the grammar of a JSON list of calls."""
    return Seq("[", Space(None), Calls(OneCall(call), _COMMA), Space(None), End("]"))


def listed(opening: str, call: Grammar, closing: str = "") -> Grammar:
    """Returns the grammar of a JSON list of calls between marks, of which the closing one may be empty."""
    return Seq(opening, Space(), json_list(call), *([End(closing)] if closing else []))


def python_list() -> Grammar:
    """Returns the grammar of a Python list of calls."""
    call = OneCall(Seq(ToolName(), "(", with_closing_mark(Keywords(), ")")))
    return Seq("[", Space(None), Calls(call, Seq(Space(), ",", Space(" "))), End("]"))


def name_first(*between: Grammar | str, closing: str = "") -> Grammar:
    """Returns the grammar of a tool's name, a separator, and its arguments as JSON."""
    call = Seq(ToolName(), *between, Space(), Arguments())
    return OneCall(Seq(call, End(closing)) if closing else call)


def element_call(opening: str, name_end: Grammar | str, arguments: Grammar, closing: str, *, space: str = "\n") -> Grammar:
    """Returns the grammar of a call as an element that has the tool's name in its opening tag, and contains the arguments."""
    return OneCall(Seq(opening, ToolName(), name_end, Space(space), with_closing_mark(arguments, closing)))


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
    other = Either(
        Seq(_key(id_name), TextValue(writes_id or writes_id_last or '""', "[A-Za-z0-9]{9}")),
        Seq(_key("type"), '"function"'),
    )
    first, middle = Optional(Seq(other, _COMMA)), Optional(Seq(_COMMA, other))
    last = Optional(Seq(_COMMA, other), is_written=writes_id_last is not None)
    if begins_with_name:
        # The GBNF must match what the format's patterns detect as the beginning of a call.
        kind = Optional(Seq('"type"', _COLON, '"function"', _COMMA), is_written=True)
        named = Seq(f'"{name}"', _COLON, '"', ToolName(), '"')
        return Seq("{", Space(None), kind, named, middle, _COMMA, keys, Arguments(), last, Space(None), End("}"))
    named = Seq(_key(name), '"', ToolName(), '"')
    begin = first if writes_id is None else Either(Seq(other, _COMMA), Seq())
    in_order = Seq("{", Space(None), begin, named, middle, _COMMA, keys, Arguments(), last, Space(None), End("}"))
    reversed_ = Seq("{", Space(), first, keys, Arguments(is_buffered=True), _COMMA, named, BufferedArguments(), last)
    no_arguments = Seq("{", Space(), first, named, BufferedArguments(), last)
    return Either(in_order, Seq(reversed_, Space(), "}"), Seq(no_arguments, Space(), "}"))


def _key(name: str) -> Grammar:
    return Seq(Text(f'"{name}"'), Space(), ":", Space(" "))
