"""Grammars that several families share."""

from weft.chat.answer.arguments import Arguments, Keywords, with_closing_mark
from weft.chat.answer.families.json_call import json_call
from weft.chat.answer.grammar import Calls, End, Grammar, OneCall, Seq, Space, ToolName

__all__ = ["block", "function_element", "json_list", "listed", "name_first", "python_list", "tagged"]


def tagged(opening: str, closing: str) -> Grammar:
    """Returns the grammar of a JSON call between tags."""
    return Seq(opening, Space("\n"), OneCall(json_call()), End("\n" + closing))


def json_list(call: Grammar) -> Grammar:
    """Returns the grammar of a JSON list of calls."""
    return Seq("[", Space(None), Calls(OneCall(call), Seq(Space(None), ",", Space(None))), Space(None), End("]"))


def listed(opening: str, closing: str, call: Grammar) -> Grammar:
    """Returns the grammar of a JSON list of calls between marks, of which the closing one may be empty."""
    row = Seq(opening, Space(), json_list(call))
    return Seq(row, End(closing)) if closing else row


def name_first(*between: Grammar | str, closing: str = "") -> Grammar:
    """Returns the grammar of a tool's name, a separator, and its arguments as JSON."""
    call = Seq(ToolName(), *between, Space(), Arguments())
    return OneCall(Seq(call, End(closing)) if closing else call)


def block(opening: Grammar | str, call: Grammar, between: str, closing: Grammar | str) -> Grammar:
    """Returns the grammar of a sequence of calls between marks."""
    return Seq(opening, Space(), Calls(call, Space(between)), End(closing) if isinstance(closing, str) else closing)


def function_element(parameters: Grammar) -> Grammar:
    """Returns the grammar of a call as an element that contains an element for each argument."""
    return OneCall(Seq("<function=", ToolName(), ">", Space("\n"), with_closing_mark(parameters, "</function>")))


def python_list() -> Grammar:
    """Returns the grammar of a Python list of calls."""
    call = OneCall(Seq(ToolName(), "(", with_closing_mark(Keywords(), ")")))
    return Seq("[", Space(None), Calls(call, Seq(Space(), ",", Space(" "))), End("]"))
