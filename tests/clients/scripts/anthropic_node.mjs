// The `@anthropic-ai/sdk` package for Node.js: messages, streams and tools.

import assert from "node:assert/strict";
import { MODEL, TOOL, feature, installed, picture, run, url } from "./report.mjs";

const { default: Anthropic } = await installed("@anthropic-ai/sdk");
const client = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0, timeout: 60_000 });

const asked = (content, more = {}) => ({ model: MODEL, max_tokens: 1000, messages: [{ role: "user", content }], ...more });
const TOOLS = [{ name: TOOL.name, description: TOOL.description, input_schema: TOOL.parameters }];

feature("models", async () => {
  assert.equal((await client.models.list()).data[0].type, "model");
});

feature("chat", async () => {
  const answer = await client.messages.create(asked("Hello!"));
  assert.deepEqual([answer.stop_reason, answer.content[0].text], ["end_turn", "You said: Hello!"]);
});

feature("stream", async () => {
  const stream = client.messages.stream(asked("Hello!"));
  let text = "";
  stream.on("text", (delta) => (text += delta));
  assert.equal((await stream.finalMessage()).content[0].text, "You said: Hello!");
  assert.equal(text, "You said: Hello!");
});

feature("tools in a stream", async () => {
  const answer = await client.messages.stream(asked("What is the weather in Paris for 3 days?", { tools: TOOLS })).finalMessage();
  assert.equal(answer.stop_reason, "tool_use");
  assert.deepEqual(answer.content.at(-1).input, { city: "Paris", days: 3 });
});

feature("reasoning", async () => {
  const thinking = { type: "enabled", budget_tokens: 1024 };
  const answer = await client.messages.create(asked("Please think before you answer", { max_tokens: 3000, thinking }));
  assert.deepEqual(answer.content.map((block) => block.type), ["thinking", "text"]);
});

feature("vision", async () => {
  const source = { type: "base64", media_type: "image/png", data: picture() };
  const answer = await client.messages.create(asked([{ type: "image", source }, { type: "text", text: "What is this?" }]));
  assert.match(answer.content[0].text, /<__media__>/);
});

feature("token count", async () => {
  const { max_tokens: _, ...rest } = asked("Hello!");
  assert.ok((await client.messages.countTokens(rest)).input_tokens > 0);
});

feature("errors", async () => {
  await assert.rejects(client.messages.create(asked("Hello!", { messages: [] })), Anthropic.BadRequestError);
});

await run();
