"""Lets a model call a function. The demo model was not trained to, but the grammar of the call holds it to one."""

import asyncio
import json

import weft

TOOL = {
    "type": "function",
    "function": {
        "name": "roll",
        "description": "Rolls some dice.",
        "parameters": {"type": "object", "properties": {"dice": {"enum": [1, 2, 3]}}, "required": ["dice"]},
    },
}


async def main() -> None:
    """Asks, and prints the calls."""
    async with weft.Engine() as engine:
        said = [{"role": "user", "content": "Roll two dice."}]
        completion = await engine.chat(said, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
        for call in completion.message.tool_calls:
            print(call.name, json.loads(call.arguments))


asyncio.run(main())
