"""Call a server with the official OpenAI client. Start `python -m weft` first.

Prints four completions of one prompt.
"""

import os

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8080/v1"), api_key="none")
model = client.models.list().data[0].id
texts = [""] * 4
for chunk in client.completions.create(model=model, prompt="Once upon a time,", n=4, max_tokens=40, stream=True):
    for choice in chunk.choices:
        texts[choice.index] += choice.text
for index, text in enumerate(texts):
    print(f"{index}:{text}")
