// A talk at a terminal, by Node.js 18 or later: node chat.mjs. An empty line ends it. The server: python -m weft

import { createInterface } from "node:readline";

const url = process.env.API_URL ?? "http://127.0.0.1:8080";

// Writes the answer while it comes, and returns it.
async function continued(prompt) {
  const body = { prompt, stop: ["\nHuman:"], n_predict: 128, temperature: 0.5, stream: true };
  const answer = await fetch(`${url}/completion`, { method: "POST", body: JSON.stringify(body) });
  if (!answer.ok) throw new Error((await answer.json()).error.message);
  let text = "", left = "";
  for await (const piece of answer.body.pipeThrough(new TextDecoderStream())) {
    const lines = (left + piece).split("\n");
    left = lines.pop();
    for (const line of lines.filter(line => line.startsWith("data: "))) {
      const { content = "", error } = JSON.parse(line.slice(6));
      if (error) throw new Error(error.message);
      process.stdout.write(text ? content : content.trimStart());
      text += content;
    }
  }
  process.stdout.write("\n");
  return text.trim();
}

// All that was said stands before the next question: the server has computed it already, and finds it in its cache.
let talk = "A talk between a human and a friendly assistant, who tells stories.";
process.stdout.write("> ");
for await (const line of createInterface({ input: process.stdin })) {
  if (!line.trim()) break;
  talk += `\nHuman: ${line}\nAssistant:`;
  talk += ` ${await continued(talk)}`;
  process.stdout.write("> ");
}
process.stdout.write("\n");
