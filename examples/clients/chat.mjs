// A chat in the terminal; an empty line ends it. Requires Node.js 18: node chat.mjs. Start the server: python -m weft

import { createInterface } from "node:readline";

const url = process.env.API_URL ?? "http://127.0.0.1:8080";

// Prints the answer as it is generated, and returns it.
async function generate(prompt) {
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

// Each prompt repeats the whole chat: the server has its beginning in the cache, and computes only the rest.
let chat = "A chat between a human and a friendly assistant, who tells stories.";
process.stdout.write("> ");
for await (const line of createInterface({ input: process.stdin })) {
  if (!line.trim()) break;
  chat += `\nHuman: ${line}\nAssistant:`;
  chat += ` ${await generate(chat)}`;
  process.stdout.write("> ");
}
process.stdout.write("\n");
