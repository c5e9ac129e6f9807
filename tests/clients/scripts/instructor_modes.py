"""`instructor`: a class is answered in each of the modes that it has for servers of OpenAI's kind."""

import instructor
import openai
from pydantic import BaseModel
from report import MODEL, feature, run, url

client = openai.OpenAI(base_url=f"{url()}/v1", api_key="none", max_retries=0, timeout=60)

ASKED = [{"role": "user", "content": 'The tool for a pet: a "dog" that is 3 years old'}]


class Pet(BaseModel):
    """A pet."""

    kind: str
    age: int


def check(mode: instructor.Mode | None) -> None:
    """Whether the class comes back, whole and in a stream of what is there of it."""
    ours = instructor.from_openai(client) if mode is None else instructor.from_openai(client, mode=mode)
    asked = {"model": MODEL, "messages": ASKED, "response_model": Pet, "max_retries": 0}
    pet = ours.create(**asked)
    assert (pet.kind, pet.age) == ("dog", 3)
    assert list(ours.create_partial(**asked))[-1].age == 3


@feature("default mode")
def default() -> None:
    check(None)


for mode in ("TOOLS", "TOOLS_STRICT", "JSON", "JSON_SCHEMA", "MD_JSON"):
    feature(f"mode {mode}")(lambda mode=mode: check(instructor.Mode[mode]))

run()
