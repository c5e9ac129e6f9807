"""Gemma 4 and FunctionGemma, which write arguments in a way of their own."""

from weft.chat.answer.bare import BareArguments
from weft.chat.answer.family import Family
from weft.chat.answer.grammar import End, OneCall, Seq, ToolName

__all__ = ["ALL"]

ALL = (
    Family(
        name="Gemma 4",
        is_of=lambda template: "<|tool_call>call:" in template,
        calls=Seq("<|tool_call>call:", OneCall(Seq(ToolName(), BareArguments('<|"|>'))), End("<tool_call|>")),
        triggers=("<|tool_call>call:",),
        between="",
        # It may end a thought again that it has ended before, and goes on with what the tool returns.
        fillers=("<channel|>", "<|tool_response>"),
        ends=("<|tool_response>",),
    ),
    Family(
        name="FunctionGemma",
        is_of=lambda template: "<start_function_call>call:" in template,
        calls=Seq("<start_function_call>call:", OneCall(Seq(ToolName(), BareArguments("<escape>"))), End("<end_function_call>")),
        triggers=("<start_function_call>call:",),
        between="",
        # It goes on with what the tool returns, and llama.cpp's vocabulary does not know that as an end.
        fillers=("<start_function_response>",),
        ends=("<start_function_response>",),
    ),
)
