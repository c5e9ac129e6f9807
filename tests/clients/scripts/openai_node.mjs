// The `openai` package for Node.js: chats, streams, tools, schemas, vectors and responses.

import assert from "node:assert/strict";
import { MODEL, TOOL, feature, installed, picture, run, url } from "./report.mjs";

const { default: OpenAI } = await installed("openai");
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0, timeout: 60_000 });

const HELLO = [{ role: "user", content: "Hello!" }];
const ASKED = [{ role: "user", content: "What is the weather in Paris for 3 days?" }];
const TOOLS = [{ type: "function", function: TOOL }];

feature("models", async () => {
  const models = (await client.models.list()).data;
  assert.equal(models[0].object, "model");
});

feature("chat", async () => {
  const answer = await client.chat.completions.create({ model: MODEL, messages: HELLO });
  assert.equal(answer.choices[0].message.content, "You said: Hello!");
});

feature("stream", async () => {
  const stream = client.chat.completions.stream({ model: MODEL, messages: HELLO });
  let text = "";
  for await (const chunk of stream) text += chunk.choices[0]?.delta.content ?? "";
  assert.equal(text, "You said: Hello!");
  assert.equal((await stream.finalChatCompletion()).choices[0].finish_reason, "stop");
});

feature("tools", async () => {
  const runner = client.chat.completions.runTools({
    model: MODEL,
    messages: ASKED,
    tools: [{ type: "function", function: { ...TOOL, parse: JSON.parse, function: ({ city, days }) => `${city}: ${days} wet days` } }],
  });
  assert.equal(await runner.finalContent(), "The tool said: Paris: 3 wet days");
});

feature("tools in a stream", async () => {
  const stream = client.chat.completions.stream({ model: MODEL, messages: ASKED, tools: TOOLS });
  const [call] = (await stream.finalChatCompletion()).choices[0].message.tool_calls;
  assert.deepEqual(JSON.parse(call.function.arguments), { city: "Paris", days: 3 });
});

feature("parallel tools", async () => {
  const content = 'Do get_weather({"city": "Rome", "days": 1}) and get_weather({"city": "Oslo", "days": 2}).';
  const stream = client.chat.completions.stream({ model: MODEL, messages: [{ role: "user", content }], tools: TOOLS });
  const calls = (await stream.finalChatCompletion()).choices[0].message.tool_calls;
  assert.deepEqual(calls.map((call) => JSON.parse(call.function.arguments).city), ["Rome", "Oslo"]);
});

feature("JSON schema", async () => {
  const schema = {
    type: "object",
    properties: { kind: { enum: ["cat", "dog"] }, age: { type: "integer" } },
    required: ["kind", "age"],
    additionalProperties: false,
  };
  const answer = await client.chat.completions.parse({
    model: MODEL,
    messages: [{ role: "user", content: "A dog that is 3 years old" }],
    response_format: { type: "json_schema", json_schema: { name: "pet", strict: true, schema } },
  });
  assert.deepEqual(JSON.parse(answer.choices[0].message.content), { kind: "dog", age: 3 });
});

feature("reasoning", async () => {
  const messages = [{ role: "user", content: "Please think before you answer" }];
  const [{ message }] = (await client.chat.completions.create({ model: MODEL, messages })).choices;
  assert.equal(message.reasoning_content.trim(), "First I think it over.");
});

feature("vision", async () => {
  const content = [
    { type: "text", text: "What is this?" },
    { type: "image_url", image_url: { url: `data:image/png;base64,${picture()}` } },
  ];
  const answer = await client.chat.completions.create({ model: MODEL, messages: [{ role: "user", content }] });
  assert.match(answer.choices[0].message.content, /<__media__>/);
});

feature("text completion", async () => {
  const answer = await client.completions.create({ model: MODEL, prompt: "Once upon a time,", max_tokens: 8 });
  assert.ok(answer.choices[0].text);
});

feature("embeddings", async () => {
  const answer = await client.embeddings.create({ model: MODEL, input: ["a fox", "a whale"] });
  assert.equal(answer.data.length, 2);
  assert.ok(answer.data[0].embedding.length > 8);
});

feature("responses", async () => {
  const answer = await client.responses.create({ model: MODEL, input: "Hello!" });
  assert.equal(answer.output_text, "You said: Hello!");
  let text = "";
  for await (const event of await client.responses.create({ model: MODEL, input: "Hello!", stream: true })) {
    if (event.type === "response.output_text.delta") text += event.delta;
  }
  assert.equal(text, "You said: Hello!");
});

feature("errors", async () => {
  await assert.rejects(client.chat.completions.create({ model: MODEL, messages: [] }), OpenAI.BadRequestError);
});

await run();
