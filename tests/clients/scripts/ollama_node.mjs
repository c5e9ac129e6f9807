// The `ollama` package for Node.js: chats, streams, tools and vectors.

import assert from "node:assert/strict";
import { MODEL, TOOL, feature, installed, run, url } from "./report.mjs";

const { Ollama } = await installed("ollama");
const client = new Ollama({ host: url });

const asked = (content, more = {}) => ({ model: MODEL, messages: [{ role: "user", content }], ...more });
const tools = [{ type: "function", function: TOOL }];

feature("models", async () => {
  assert.equal((await client.list()).models.length, 1);
});

feature("chat", async () => {
  assert.equal((await client.chat(asked("Hello!"))).message.content, "You said: Hello!");
});

feature("stream", async () => {
  let text = "";
  for await (const part of await client.chat(asked("Hello!", { stream: true }))) text += part.message.content;
  assert.equal(text, "You said: Hello!");
});

feature("tools", async () => {
  const { message } = await client.chat(asked("What is the weather in Paris for 3 days?", { tools }));
  const called = message.tool_calls[0].function;
  assert.deepEqual([called.name, called.arguments], ["get_weather", { city: "Paris", days: 3 }]);
});

feature("embeddings", async () => {
  assert.equal((await client.embed({ model: MODEL, input: ["a fox", "a whale"] })).embeddings.length, 2);
});

await run();
