// Vercel's AI SDK with `@ai-sdk/openai-compatible`: text, streams, tools, objects and vectors.

import assert from "node:assert/strict";
import { MODEL, TOOL, feature, installed, picture, run, url } from "./report.mjs";

const { createOpenAICompatible } = await installed("@ai-sdk/openai-compatible");
const { embedMany, generateText, jsonSchema, Output, stepCountIs, streamText, tool } = await installed("ai");

const weft = createOpenAICompatible({ name: "weft", baseURL: `${url}/v1`, apiKey: "none", includeUsage: true, supportsStructuredOutputs: true });
const model = weft(MODEL);
const asked = { model, maxRetries: 0 };
const tools = {
  get_weather: tool({
    description: TOOL.description,
    inputSchema: jsonSchema(TOOL.parameters),
    execute: async ({ city, days }) => `${city}: ${days} wet days`,
  }),
};

feature("chat", async () => {
  const answer = await generateText({ ...asked, system: "Be short.", prompt: "Hello!" });
  assert.equal(answer.text, "You said: Hello!");
  assert.ok(answer.usage.outputTokens > 0);
});

feature("stream", async () => {
  const answer = streamText({ ...asked, prompt: "Hello!" });
  let text = "";
  for await (const delta of answer.textStream) text += delta;
  assert.equal(text, "You said: Hello!");
  assert.ok((await answer.usage).outputTokens > 0);
});

feature("tools", async () => {
  const answer = await generateText({ ...asked, tools, stopWhen: stepCountIs(3), prompt: "What is the weather in Paris for 3 days?" });
  assert.equal(answer.text, "The tool said: Paris: 3 wet days");
});

feature("tools in a stream", async () => {
  const answer = streamText({ ...asked, tools, stopWhen: stepCountIs(3), prompt: "What is the weather in Paris for 3 days?" });
  assert.equal((await answer.steps).length, 2);
  assert.equal(await answer.text, "The tool said: Paris: 3 wet days");
});

feature("parallel tools", async () => {
  const prompt = 'Do get_weather({"city": "Rome", "days": 1}) and get_weather({"city": "Oslo", "days": 2}).';
  const answer = await generateText({ ...asked, tools, prompt });
  assert.deepEqual(answer.toolCalls.map((call) => call.input.city), ["Rome", "Oslo"]);
});

feature("JSON schema", async () => {
  const schema = jsonSchema({
    type: "object",
    properties: { kind: { enum: ["cat", "dog"] }, age: { type: "integer" } },
    required: ["kind", "age"],
    additionalProperties: false,
  });
  const answer = await generateText({ ...asked, output: Output.object({ schema }), prompt: "A dog that is 3 years old" });
  assert.deepEqual(answer.output, { kind: "dog", age: 3 });
});

feature("reasoning", async () => {
  const answer = streamText({ ...asked, prompt: "Please think before you answer" });
  assert.equal((await answer.reasoningText)?.trim(), "First I think it over.");
});

feature("vision", async () => {
  const content = [{ type: "text", text: "What is this?" }, { type: "image", image: picture(), mediaType: "image/png" }];
  assert.match((await generateText({ ...asked, messages: [{ role: "user", content }] })).text, /<__media__>/);
});

feature("embeddings", async () => {
  const { embeddings } = await embedMany({ model: weft.embeddingModel(MODEL), values: ["a fox", "a whale"], maxRetries: 0 });
  assert.equal(embeddings.length, 2);
});

await run();
