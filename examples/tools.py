"""Let the model call a function. A grammar makes even the demo model write a valid call.

Prints the function and its arguments.
"""

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
    """Requests a call, and prints it."""
    async with weft.Engine() as engine:
        messages = [{"role": "user", "content": "Roll two dice."}]
        completion = await engine.chat(messages, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
        for call in completion.message.tool_calls:
            print(call.name, json.loads(call.arguments))


asyncio.run(main())
