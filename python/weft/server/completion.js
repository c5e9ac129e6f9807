// What a page or a program in JavaScript needs to have texts written by this server. A page that the server itself serves, as a
// file in the folder of `--path`, imports it without more:
//
//   import { llama } from "/completion.js";
//   for await (const chunk of llama("Once upon a time,", { n_predict: 64 })) document.write(chunk.data.content);
//
// `params` are the fields of a request to /completion, and what they leave unsaid are DEFAULTS, else the server's own. `config` may
// hold `api_url`, the address of another server than the one that this file came from; `api_key`; `endpoint`, another route than
// "/completion" whose answers hold their text in `content`, as "/completions" and "/infill" do; and `controller`, an AbortController
// by which the caller ends the request.
//
// Of several completions, by `n` or of several prompts, every way tells the whole text as a list, in the order of `index`, which
// each chunk has in its data.

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
  if (!answer.ok) throw failure(await answer.json().catch(() => null), answer.status);
  const texts = [];
  const told = data => {
    const { index = 0, content = "" } = data;
    texts[index] = (texts[index] ?? "") + content;
    return { data };
  };
  let isWhole = false;
  try {
    if (!/^text\/event-stream\b/.test(answer.headers.get("Content-Type"))) {
      const data = await answer.json();
      for (const one of Array.isArray(data) ? data : [data]) yield told(one);
    } else {
      for await (const data of eventsOf(answer.body.pipeThrough(new TextDecoderStream()))) {
        if (data.error) throw failure(data);
        yield told(data);
      }
    }
    isWhole = true;
  } finally {
    if (!isWhole) controller.abort();
  }
  return texts.length > 1 ? texts : texts[0] ?? "";
}

// Resolves to the whole text.
export async function llamaPromise(prompt, params = {}, config = {}) {
  return heard(llama(prompt, params, config), () => {});
}

// Calls `callback` with each chunk; the prompt is one of the fields of `params`.
export async function llamaComplete(params, controller, callback) {
  await heard(llama(params.prompt, params, { controller }), callback);
}

// An EventTarget that is told each event as "message", of the last one its "generation_settings" and "timings", and then "done" with
// the whole `content`, or "error" with what went wrong: all in `event.detail`.
export function llamaEventTarget(prompt, params = {}, config = {}) {
  const target = new EventTarget();
  const tell = (name, detail) => target.dispatchEvent(new CustomEvent(name, { detail }));
  (async () => {
    let content;
    try {
      content = await heard(llama(prompt, params, config), ({ data }) => {
        tell("message", data);
        if (data.generation_settings) tell("generation_settings", data.generation_settings);
        if (data.timings) tell("timings", data.timings);
      });
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
  if (!answer.ok) throw failure(await answer.json().catch(() => null), answer.status);
  return (await answer.json()).default_generation_settings;
}

// Where a route is: beside this file, which stands below the prefix of all routes, or at another server.
function address(route, config) {
  return config.api_url ? config.api_url.replace(/\/+$/, "") + route : new URL(`.${route}`, import.meta.url);
}

function shown(key) {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

// The error of an answer, or of an event, which need not tell why.
function failure(told, status = told?.error?.code) {
  const message = told?.error?.message ?? `the server answered ${status}`;
  return Object.assign(new Error(message), { status, type: told?.error?.type });
}

// Calls `hear` with each chunk, and returns the whole text.
async function heard(chunks, hear) {
  try {
    for (;;) {
      const { done, value } = await chunks.next();
      if (done) return value;
      hear(value);
    }
  } finally {
    await chunks.return();
  }
}

// events.js
