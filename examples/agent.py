"""Stream four answers of an agent, with parallel tool calls.

Prints pieces of reasoning, text and calls as they are generated, then the tokens computed and used.
"""

import asyncio
from typing import Any

import weft

DICE = {"type": "object", "properties": {"dice": {"enum": [1, 2]}}, "required": ["dice"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": DICE}} for name in ("roll", "throw")]


async def main() -> None:
    """Lets the model call tools, and then answer with the results of the first choice's calls."""
    async with weft.Engine(n_slots=4) as engine:
        chat: list[dict[str, Any]] = [{"role": "user", "content": "Roll a die and throw two."}]
        for mode in ("required", "none"):
            stream = await engine.stream_chat(chat, tools=TOOLS, tool_choice=mode, n=4, max_tokens=96, seed=2, ignore_eos=True)
            async for delta in stream:
                match delta:
                    case weft.ReasoningDelta(index, text) | weft.ContentDelta(index, text) | weft.ToolCallDelta(index, _, text):
                        print(f"{index}: {text!r}")
                    case weft.ToolCallStart(index, call, _, name):
                        print(f"{index}: call {call} of {name}")
            completion = await stream.collect()
            chat.append(completion.message.to_dict())
            chat += [{"role": "tool", "tool_call_id": call.id, "content": "6"} for call in completion.message.tool_calls]
            print(f"tokens computed: {completion.n_computed}, tokens used: {4 * completion.n_prompt}")


asyncio.run(main())
