"""A chat completion with OpenAI's library. Start the server: python -m weft."""

import os

import openai

client = openai.OpenAI(base_url=os.environ.get("API_URL", "http://127.0.0.1:8080") + "/v1", api_key="sk-no-key-required")
completion = client.chat.completions.create(
    model="any",
    messages=[
        {"role": "system", "content": "You tell stories for children."},
        {"role": "user", "content": "Tell me about an owl who could not sleep."},
    ],
    max_tokens=96,
)
print(completion.choices[0].message.content)
