"""What a page of one file holds, and what its script computes."""

import json
import re

import quickjs

from tests.server.matchers import Json

__all__ = ["only", "run_script"]


def only(page: str, element: str) -> str:
    """What stands in the one element of this kind."""
    [content] = re.findall(f"<{element}>(.*?)</{element}>", page, re.DOTALL)
    return str(content)


def run_script(page: str, use: str) -> Json:
    """What a piece of JavaScript, with the page's functions in reach, hands to `give`."""
    functions = only(page, "script").removesuffix("\nmain();\n")
    assert functions != only(page, "script"), "the page begins with its last line"
    context = quickjs.Context()
    context.set_time_limit(20)
    context.eval(
        f"{functions}\nlet given;\nconst give = value => {{ given = JSON.stringify(value); }};\n(async () => {{ {use} }})();"
    )
    while context.execute_pending_job():
        pass
    return json.loads(context.eval("given"))
