"""What several families have in common in how they write calls."""

from weft.chat.answer.arguments import Arguments, Keywords, closed
from weft.chat.answer.families.json_call import json_call
from weft.chat.answer.grammar import Calls, End, Grammar, OneCall, Seq, Space, ToolName

__all__ = ["block", "function_element", "json_list", "listed", "name_first", "python_list", "tagged"]


def tagged(opening: str, closing: str) -> Grammar:
    """A call as JSON between tags."""
    return Seq(opening, Space("\n"), OneCall(json_call()), End("\n" + closing))


def json_list(call: Grammar) -> Grammar:
    """Calls in a list of JSON."""
    return Seq("[", Space(None), Calls(OneCall(call), Seq(Space(None), ",", Space(None))), Space(None), End("]"))


def listed(opening: str, closing: str, call: Grammar) -> Grammar:
    """Such a list behind a mark, and before another one where there is one."""
    row = Seq(opening, Space(), json_list(call))
    return Seq(row, End(closing)) if closing else row


def name_first(*between: Grammar | str, closing: str = "") -> Grammar:
    """A tool's name, something between, and the arguments as JSON."""
    call = Seq(ToolName(), *between, Space(), Arguments())
    return OneCall(Seq(call, End(closing)) if closing else call)


def block(opening: Grammar | str, call: Grammar, between: str, closing: Grammar | str) -> Grammar:
    """Calls one after the other between marks."""
    return Seq(opening, Space(), Calls(call, Space(between)), End(closing) if isinstance(closing, str) else closing)


def function_element(parameters: Grammar) -> Grammar:
    """A call as an element, with an element for each argument."""
    return OneCall(Seq("<function=", ToolName(), ">", Space("\n"), closed(parameters, "</function>")))


def python_list() -> Grammar:
    """Calls in a list of Python."""
    call = OneCall(Seq(ToolName(), "(", closed(Keywords(), ")")))
    return Seq("[", Space(None), Calls(call, Seq(Space(), ",", Space(" "))), End("]"))
