// What a page or a program in JavaScript needs to have texts written by this server. A page that the server itself serves, as a
// file in the folder of `--path`, imports it without more:
//
//   import { llama } from "/completion.js";
//   for await (const chunk of llama("Once upon a time,", { n_predict: 64 })) document.write(chunk.data.content);
//
// `params` are the fields of a request to /completion, and what they leave unsaid are DEFAULTS, else the server's own. `config` may
// hold `api_url`, the address of another server than the one that this file came from; `api_key`; `endpoint`, another route than
// "/completion"; and `controller`, an AbortController by which the caller ends the request.

const DEFAULTS = { stream: true, n_predict: 500, temperature: 0.2 };

// Yields one chunk for each event of the answer, with what the event says in `chunk.data`, and returns the whole text. Leaving the
// loop ends the request, and so does its controller.
//
// Throws an Error where the server refuses or fails; its `status` is the server's, its `type` the kind of error.
export async function* llama(prompt, params = {}, config = {}) {
  const { api_key = config.api_key, ...asked } = params;
  const controller = config.controller ?? new AbortController();
  const answer = await fetch(address(config.endpoint ?? "/completion", config), {
    method: "POST",
    headers: { "Content-Type": "application/json", Accept: "text/event-stream", ...shown(api_key) },
    body: JSON.stringify({ ...DEFAULTS, ...asked, prompt }),
    signal: controller.signal,
  });
  if (!answer.ok) throw failure(await answer.json().catch(() => ({})), answer.status);
  let content = "", isWhole = false;
  try {
    if (!/^text\/event-stream\b/.test(answer.headers.get("Content-Type"))) {
      const data = await answer.json();
      for (const one of Array.isArray(data) ? data : [data]) {
        content += one.content ?? "";
        yield { data: one };
      }
    } else {
      for await (const data of events(answer.body)) {
        if (data.error) throw failure(data);
        content += data.content ?? "";
        yield { data };
      }
    }
    isWhole = true;
  } finally {
    if (!isWhole) controller.abort();
  }
  return content;
}

// Resolves to the whole text.
export async function llamaPromise(prompt, params = {}, config = {}) {
  let content = "";
  for await (const chunk of llama(prompt, params, config)) content += chunk.data.content ?? "";
  return content;
}

// Calls `callback` with each chunk; the prompt is one of the fields of `params`.
export async function llamaComplete(params, controller, callback) {
  for await (const chunk of llama(params.prompt, params, { controller })) callback(chunk);
}

// An EventTarget that is told each event as "message", of the last one its "generation_settings" and "timings", and then "done" with
// the whole `content`, or "error" with what went wrong: all in `event.detail`.
export function llamaEventTarget(prompt, params = {}, config = {}) {
  const target = new EventTarget();
  const tell = (name, detail) => target.dispatchEvent(new CustomEvent(name, { detail }));
  (async () => {
    let content = "";
    try {
      for await (const { data } of llama(prompt, params, config)) {
        content += data.content ?? "";
        tell("message", data);
        if (data.generation_settings) tell("generation_settings", data.generation_settings);
        if (data.timings) tell("timings", data.timings);
      }
    } catch (error) {
      tell("error", error);
      return;
    }
    tell("done", { content });
  })();
  return target;
}

// What a request gets that says nothing.
export async function llamaModelInfo(config = {}) {
  const answer = await fetch(address("/props", config), { headers: shown(config.api_key) });
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) throw failure(told, answer.status);
  return told.default_generation_settings;
}

// Where a route is: beside this file, which stands below the prefix of all routes, or at another server.
function address(route, config) {
  return config.api_url === undefined ? new URL(`.${route}`, import.meta.url) : config.api_url.replace(/\/+$/, "") + route;
}

function shown(key) {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

function failure({ error = {} }, status = error.code) {
  const message = error.message ?? `the server answered ${status}`;
  return Object.assign(new Error(message), { status, type: error.type });
}

// What each server-sent event of a stream of bytes says, however it is cut; comments are left out.
async function* events(stream) {
  const reader = stream.getReader(), decoder = new TextDecoder();
  for (let text = ""; ;) {
    const { done, value } = await reader.read();
    if (done) return;
    const frames = (text + decoder.decode(value, { stream: true })).split("\n\n");
    text = frames.pop();
    for (const frame of frames) {
      const data = frame.split("\n").filter(line => line.startsWith("data:")).map(line => line.slice(5).trimStart());
      if (data.length && data[0] !== "[DONE]") yield JSON.parse(data.join("\n"));
    }
  }
}
