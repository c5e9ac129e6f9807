"""Gemma 4 and FunctionGemma, whose arguments have unquoted keys."""

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
        # The model may repeat the end of reasoning, and continues with the tool's result unless it is stopped.
        fillers=("<channel|>", "<|tool_response>"),
        stop_strings=("<|tool_response>",),
    ),
    Family(
        name="FunctionGemma",
        is_of=lambda template: "<start_function_call>call:" in template,
        calls=Seq("<start_function_call>call:", OneCall(Seq(ToolName(), BareArguments("<escape>"))), End("<end_function_call>")),
        triggers=("<start_function_call>call:",),
        between="",
        # The model continues with the tool's result unless it is stopped: llama.cpp does not treat this token as an end.
        fillers=("<start_function_response>",),
        stop_strings=("<start_function_response>",),
    ),
)
