"use strict";

const GROUPS = [
  ["OpenAI", "Completions, chats, embeddings and models, as in OpenAI's API."],
  ["OpenAI Responses", "Responses and conversations, which the server stores, as in OpenAI's API."],
  ["Anthropic", "Messages, as in Anthropic's API."],
  ["llama.cpp", "The routes of llama-server."],
  ["Ollama", "The routes of Ollama for a single model."],
  ["Weft", "Pinned prefixes, the cache, scores, and running requests with their branches."],
  ["Documents", "Trees of texts that the server stores and writes, with one stream of all their changes."],
  ["Other servers", "A plain text stream."],
];

// POST routes that change nothing for later requests. Every other POST and every DELETE asks for confirmation.
const STATELESS = new Set([
  "/completion", "/completions", "/infill", "/tokenize", "/detokenize", "/apply-template", "/embedding", "/embeddings", "/rerank",
  "/reranking", "/v1/rerank", "/v1/reranking", "/score", "/stream", "/v1/completions", "/v1/chat/completions", "/chat/completions",
  "/v1/embeddings", "/v1/chat/completions/input_tokens", "/chat/completions/input_tokens", "/v1/messages",
  "/v1/messages/count_tokens", "/api/generate", "/api/chat", "/api/embed", "/api/embeddings", "/api/show",
  "/responses/input_tokens", "/v1/responses/input_tokens", "/v1/streams/lookup",
]);

const MESSAGES = [{ role: "user", content: "Tell me a story about a dragon." }];
const DRAGON = "Once upon a time, there was a dragon";

// Request bodies that the forms begin with, by the first path of an operation.
const EXAMPLES = {
  "/completion": { prompt: DRAGON, n_predict: 48, n: 2, seed: 1 },
  "/infill": { input_prefix: "Once upon a time, ", input_suffix: " They lived happily ever after.", n_predict: 32 },
  "/tokenize": { content: DRAGON, with_pieces: true },
  "/detokenize": { tokens: [1, 2, 3] },
  "/apply-template": { messages: MESSAGES },
  "/embedding": { content: DRAGON },
  "/rerank": { query: "a dragon", documents: ["The dragon slept.", "The cat ran."] },
  "/lora-adapters": [{ id: 0, scale: 1 }],
  "/v1/streams/lookup": { conversation_ids: ["conversation"] },
  "/v1/completions": { prompt: DRAGON, max_tokens: 48, seed: 1 },
  "/v1/chat/completions": { messages: MESSAGES, max_tokens: 48, seed: 1 },
  "/v1/chat/completions/input_tokens": { messages: MESSAGES },
  "/v1/embeddings": { input: DRAGON },
  "/v1/responses": { input: MESSAGES[0].content, max_output_tokens: 48, store: false },
  "/v1/responses/input_tokens": { input: MESSAGES[0].content },
  "/v1/responses/compact": { input: MESSAGES[0].content },
  "/v1/conversations/{conversation_id}/items": { items: MESSAGES },
  "/v1/conversations/{conversation_id}": { metadata: { topic: "dragons" } },
  "/v1/messages": { messages: MESSAGES, max_tokens: 48 },
  "/v1/messages/count_tokens": { messages: MESSAGES },
  "/api/generate": { prompt: DRAGON, raw: true, stream: false, options: { num_predict: 48, seed: 1 } },
  "/api/chat": { messages: MESSAGES, stream: false, options: { num_predict: 48, seed: 1 } },
  "/api/embed": { input: DRAGON },
  "/api/embeddings": { prompt: DRAGON },
  "/stream": { prompt: DRAGON },
  "/prefixes": { prompt: DRAGON },
  "/score": { prompt: DRAGON, continuations: [" who slept.", " who ran."] },
  "/requests/{request_id}/branches/{index}/fork": { n: 2 },
};

// Longest response that is shown, in characters.
const MOST_SHOWN = 1_000_000;

const at = id => document.getElementById(id);

// Kept in memory only.
let key = "";

// Creates an element. Children that are strings become text, never HTML: they hold what the server and its model wrote.
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (typeof value === "boolean") element.toggleAttribute(name, value);
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// Returns nodes for a text in which `…` is code.
function prose(text) {
  return text.split(/`([^`]+)`/).map((part, index) => index % 2 ? make("code", {}, part) : part);
}

// Returns nodes for a path that may be broken before its slashes.
function breakable(path) {
  return path.slice(1).split("/").flatMap(step => [make("wbr"), `/${step}`]);
}

// The API description

function groupOf(path, tag) {
  if (tag === "OpenAI" && /^(\/v1)?\/(responses|conversations)\b/.test(path)) return "OpenAI Responses";
  return tag === "other servers" ? "Other servers" : tag;
}

// Returns the operations of a document. Paths with the same handler are one operation with aliases.
function operationsOf(spec) {
  const found = new Map();
  for (const [path, methods] of Object.entries(spec.paths)) {
    for (const [method, about] of Object.entries(methods)) {
      const group = groupOf(path, about.tags[0]);
      const name = [method, group, about.summary, about.description].join("\n");
      if (!found.has(name)) found.set(name, { method: method.toUpperCase(), group, about, paths: [] });
      found.get(name).paths.push(path);
    }
  }
  const operations = [...found.values()];
  for (const operation of operations) {
    // OpenAI's clients use the paths below /v1.
    if (operation.group.startsWith("OpenAI")) operation.paths.sort((a, b) => b.startsWith("/v1/") - a.startsWith("/v1/"));
    operation.path = operation.paths[0];
    operation.about = spec.paths[operation.path][operation.method.toLowerCase()];
    operation.id = `${operation.method}${operation.path}`.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/-$/, "");
    operation.schema = bodySchema(operation.about, spec);
    // Fields of the body, or of the objects in a list.
    operation.object = operation.schema?.type === "array" ? resolved(operation.schema.items, spec) : operation.schema;
  }
  return operations;
}

// Returns the schema of a JSON body without references and null at its top, or null if the operation has no body.
function bodySchema(about, spec) {
  const schema = about.requestBody?.content?.["application/json"]?.schema;
  return schema ? resolved(schema, spec) : null;
}

function resolved(schema, spec) {
  const alternatives = schema.oneOf?.filter(one => one.type !== "null");
  if (alternatives?.length === 1) return resolved(alternatives[0], spec);
  return schema.$ref ? spec.components.schemas[objectName(schema)] : schema;
}

const objectName = schema => schema.$ref.split("/").pop();

// Returns nodes that describe a type, with links to the objects in it.
function typeNodes(schema, withNull = true) {
  if (schema.$ref) return [make("a", { href: `#object-${objectName(schema)}` }, objectName(schema))];
  if (schema.oneOf || schema.anyOf) {
    const parts = (schema.oneOf ?? schema.anyOf).filter(one => withNull || one.type !== "null");
    return parts.flatMap((one, index) => index ? [" or ", ...typeNodes(one)] : typeNodes(one));
  }
  const values = schema.enum ?? ("const" in schema ? [schema.const] : null);
  if (values) return values.flatMap((value, index) => [index ? ", " : "", make("code", {}, JSON.stringify(value))]);
  if (schema.type === "array") {
    const { items } = schema;
    return typeof items?.type === "string" ? [`list of ${items.type === "array" ? "lists" : `${items.type}s`}`] : ["list of ", ...typeNodes(items ?? {})];
  }
  return [Array.isArray(schema.type) ? schema.type.join(" or ") : schema.type ?? "any"];
}

function table(columns, rows) {
  return make("table", {},
    make("thead", {}, make("tr", {}, ...columns.map(name => make("th", { scope: "col" }, name)))),
    make("tbody", {}, ...rows.map(cells => make("tr", {}, ...cells.map(nodes => make("td", {}, ...nodes))))));
}

// Describes the fields of an object, those in `first` before the others.
function fieldTable(schema, isRequest, first = []) {
  const fields = Object.entries(schema.properties ?? {});
  fields.sort(([a], [b]) => first.includes(b) - first.includes(a));
  const hasMeanings = fields.some(([, about]) => about.description);
  return table(["Field", "Type", ...(hasMeanings ? ["Meaning"] : [])], fields.map(([name, about]) => {
    const isRequired = isRequest && (schema.required ?? []).includes(name);
    const cell = [make("code", {}, name), ...(isRequired ? [make("span", { class: "required" }, "required")] : [])];
    return [cell, typeNodes(about, !isRequest), ...(hasMeanings ? [prose(about.description ?? "")] : [])];
  }));
}

// Operations

function makeOperation(operation) {
  const { method, path, about, id } = operation;
  const description = (about.description ?? about.summary).split("\n\n");
  const found = make("p", { class: "found", hidden: true });
  const element = make("details", { class: "operation", id },
    make("summary", {},
      make("h3", {}, make("span", { class: `method ${method.toLowerCase()}` }, method), make("code", {}, ...breakable(path))),
      make("p", {}, ...prose(description[0])), found));
  whenOpened(element, () => {
    history.replaceState(null, "", `#${id}`);
  }, () => operationBody(operation, description));
  operation.element = element;
  operation.found = found;
  operation.fields = [...(about.parameters ?? []).map(one => one.name), ...Object.keys(operation.object?.properties ?? {})];
  operation.words = [method, operation.group, about.summary, about.description, ...operation.paths].join(" ").toLowerCase();
  return element;
}

// Fills a <details> when it is first opened.
function whenOpened(element, opened, content) {
  element.addEventListener("toggle", () => {
    if (!element.open) return;
    opened();
    if (element.children.length === 1) element.append(content());
  });
}

function operationBody(operation, description) {
  const { about, paths, schema, object } = operation;
  const body = make("div", { class: "body" });
  for (const paragraph of description.slice(1)) body.append(make("p", {}, ...prose(paragraph)));
  if (paths.length > 1) body.append(make("p", {}, "Also at ", ...paths.slice(1).flatMap((one, i) => [i ? ", " : "", make("code", {}, one)]), "."));
  body.append(tryForm(operation));
  if (about.parameters?.length) {
    const rows = about.parameters.map(one => [
      [make("code", {}, one.name), ...(one.required ? [make("span", { class: "required" }, "required")] : [])],
      [...typeNodes(one.schema, false), ` in the ${one.in}`],
    ]);
    body.append(make("h4", {}, "Parameters"), table(["Name", "Type"], rows));
  }
  if (schema) {
    body.append(make("h4", {}, "Request body"));
    if (schema.type === "array") body.append(make("p", {}, ...typeNodes(schema)));
    if (object.properties) body.append(fieldTable(object, true, [...Object.keys(EXAMPLES[operation.path] ?? {}), "stream"]));
  }
  const responses = Object.entries(about.responses).map(([status, response]) => {
    const types = Object.values(response.content ?? {}).flatMap(content => typeNodes(content.schema));
    return [[make("code", {}, status)], types, status < 300 ? [] : prose(response.description ?? "")];
  });
  body.append(make("h4", {}, "Responses"), table(["Status", "Body", "Meaning"], responses));
  return body;
}

function makeObject(name, schema) {
  const element = make("details", { class: "object", id: `object-${name}` }, make("summary", {}, make("code", {}, name)));
  whenOpened(element, () => {}, () => make("div", { class: "body" }, fieldTable(schema, false)));
  return element;
}

// Requests

function changesState(method, path, body) {
  if (method === "GET") return false;
  if (method === "POST" && /^(\/v1)?\/responses$/.test(path)) return body?.store !== false || Boolean(body.conversation);
  if (method === "POST" && STATELESS.has(path)) return body?.system_prompt !== undefined && body.system_prompt !== null;
  return true;
}

const quoted = text => `'${text.replaceAll("'", "'\\''")}'`;

// Returns the curl command of a request. The key is a shell variable, so that copies of the command do not contain it.
function curlOf({ method, path, headers, body, streams }, hasKey = key !== "") {
  const lines = [`curl ${streams ? "-N " : ""}${quoted(new URL(path, document.baseURI).href)}`];
  if (method !== (body ? "POST" : "GET")) lines.push(`-X ${method}`);
  if (hasKey) lines.push('-H "Authorization: Bearer $LLAMA_API_KEY"');
  for (const [name, value] of Object.entries(headers)) lines.push(`-H ${quoted(`${name}: ${value}`)}`);
  if (body) lines.push(`-d ${quoted(body)}`);
  return lines.join(" \\\n  ");
}

// Returns the generated texts in a response or an event of a stream, as pairs of a branch index and text.
function piecesOf(event) {
  if (Array.isArray(event)) return event.flatMap(piecesOf);
  if (Array.isArray(event?.choices)) {
    return event.choices.map(one => [one.index ?? 0, one.text ?? one.delta?.content ?? one.message?.content ?? ""]);
  }
  const blocks = event?.output?.flatMap?.(item => item.content ?? []) ?? event?.content;
  const text = Array.isArray(blocks) ? blocks.map(block => block.text ?? "").join("")
    : event?.type === "response.output_text.delta" ? event.delta
    : event?.type === "content_block_delta" ? event.delta.text
    : event?.message?.content ?? event?.response ?? event?.content;
  return typeof text === "string" ? [[event.index ?? 0, text]] : [];
}

// Collects the generated texts of a stream from its lines: server-sent events or one JSON object a line.
class StreamTexts {
  constructor(write) { this.write = write; this.rest = ""; this.n_events = 0; }
  feed(chunk) {
    const lines = (this.rest + chunk).split("\n");
    this.rest = lines.pop();
    for (const line of lines) {
      const data = line.replace(/^data: ?/, "");
      if (!data.startsWith("{")) continue;
      this.n_events += 1;
      const event = parsed(data);
      // The last event of a response repeats its whole text.
      if (event?.type?.startsWith?.("response.") && event.type !== "response.output_text.delta") continue;
      for (const [index, text] of piecesOf(event)) this.write(index, text);
    }
  }
}

// Returns the value of a JSON text, or undefined.
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

// Opens a dialog. Resolves to true when its form is submitted, to false when it is cancelled.
function ask(dialog) {
  return new Promise(resolve => {
    const form = dialog.querySelector("form");
    const submit = event => {
      event.preventDefault();
      dialog.close("submit");
    };
    const cancel = () => dialog.close("cancel");
    form.addEventListener("submit", submit);
    form.querySelector(".cancel").addEventListener("click", cancel);
    dialog.addEventListener("close", () => {
      form.removeEventListener("submit", submit);
      form.querySelector(".cancel").removeEventListener("click", cancel);
      resolve(dialog.returnValue === "submit");
    }, { once: true });
    dialog.returnValue = "";
    dialog.showModal();
  });
}

// Asks for the key. Resolves to whether one was given.
async function askForKey(reason) {
  at("key-reason").textContent = reason;
  at("key").value = key;
  const isGiven = await ask(at("key-dialog"));
  if (isGiven) key = at("key").value.trim();
  at("key").value = "";
  at("key-button").textContent = key ? "API key ✓" : "API key";
  document.dispatchEvent(new Event("keychange"));
  return isGiven && key !== "";
}

function tryForm(operation) {
  const { method, about, paths, schema } = operation;
  const parameters = (about.parameters ?? []).map(one => {
    const input = make("input", { required: one.in === "path", autocomplete: "off", spellcheck: "false" });
    return { ...one, input, label: make("label", {}, `${one.name} (${one.in})`, input) };
  });
  const route = make("select", {}, ...paths.map(path => make("option", {}, path)));
  const body = make("textarea", { spellcheck: "false", rows: "8" });
  const stream = make("input", { type: "checkbox" });
  const hasStream = Boolean(schema?.properties?.stream);
  if (schema) body.value = JSON.stringify(EXAMPLES[operation.path] ?? {}, null, 2);

  const send = make("button", { class: "go" }, "Send");
  const stop = make("button", { type: "button", disabled: true }, "Stop");
  const progress = make("p", { class: "progress", role: "status" });
  const error = make("p", { class: "error", role: "alert" });
  const curl = make("pre", { tabindex: "0", "aria-label": "Equivalent curl command" });
  const copy = make("button", { type: "button" }, "Copy");
  const text = make("div", { class: "text", "aria-label": "Generated text", role: "log" });
  const raw = make("pre", { class: "response", tabindex: "0", "aria-label": "Response" });
  const result = make("div", { hidden: true }, make("h5", {}, "Response"), text, raw);

  function requestOf() {
    let path = route.value;
    const query = new URLSearchParams();
    const headers = {};
    for (const { name, in: location, input } of parameters) {
      if (location === "path") path = path.replace(`{${name}}`, input.value ? encodeURIComponent(input.value) : `{${name}}`);
      else if (input.value && location === "query") query.append(name, input.value);
      else if (input.value) headers[name] = input.value;
    }
    if (body.value.trim() && schema) headers["Content-Type"] = "application/json";
    const isStream = hasStream ? parsed(body.value)?.stream : route.value === "/stream";
    // Relative to this page, so that it holds below any prefix of the routes.
    const address = path.slice(1) + (query.size ? `?${query}` : "");
    return { method, route: route.value, path: address, headers, body: schema ? body.value.trim() : "", streams: Boolean(isStream) };
  }

  function update() {
    stream.checked = parsed(body.value)?.stream === true;
    curl.textContent = curlOf(requestOf());
  }

  stream.addEventListener("input", () => {
    const value = parsed(body.value);
    if (value !== undefined) body.value = JSON.stringify({ ...value, stream: stream.checked }, null, 2);
  });

  let running = null;

  async function run(request) {
    running = new AbortController();
    send.disabled = true;
    stop.disabled = false;
    result.hidden = false;
    text.replaceChildren();
    raw.textContent = "";
    const started = performance.now();
    const elapsed = () => `${Math.round(performance.now() - started).toLocaleString("en")} ms`;
    const branches = new Map();
    const write = (index, more) => {
      if (!more) return;
      if (!branches.has(index)) branches.set(index, text.appendChild(make("p", {}, "")));
      branches.get(index).append(more);
    };
    let head = "";
    try {
      const { signal } = running;
      const headers = { ...request.headers, ...(key && { Authorization: `Bearer ${key}` }) };
      const response = await fetch(request.path, { method, headers, signal, body: request.body || undefined, cache: "no-store" });
      head = `${response.status} ${response.statusText}`.trim();
      const type = response.headers.get("Content-Type") ?? "";
      const streamed = /event-stream|ndjson/.test(type) ? new StreamTexts(write) : null;
      let whole = "", shown = raw.appendChild(document.createTextNode(""));
      const chunks = response.body?.pipeThrough(new TextDecoderStream()).getReader();
      while (chunks) {
        const { done, value } = await chunks.read();
        if (done) break;
        streamed?.feed(value);
        whole += value;
        if (shown.length < MOST_SHOWN) shown.appendData(value);
        progress.textContent = `${head}: receiving${streamed ? `, ${streamed.n_events} events` : ""}…`;
      }
      streamed?.feed("\n");
      const value = streamed ? undefined : parsed(whole);
      if (value !== undefined) {
        shown.data = JSON.stringify(value, null, 2).slice(0, MOST_SHOWN);
        for (const [index, one] of Array.isArray(value) ? value.entries() : [[0, value]]) {
          for (const [branch, piece] of piecesOf(one)) write(Math.max(index, branch), piece);
        }
      }
      const size = whole.length > MOST_SHOWN ? `, the first ${MOST_SHOWN.toLocaleString("en")} characters are shown` : "";
      progress.textContent = `${head}, ${elapsed()}${streamed ? `, ${streamed.n_events} events` : ""}${size}`;
      return response.status;
    } catch (failure) {
      if (failure.name === "AbortError") progress.textContent = `${head ? `${head}: s` : "S"}topped after ${elapsed()}`;
      else {
        progress.textContent = "";
        error.textContent = head ? "The connection was lost." : "The server cannot be reached.";
      }
      return null;
    } finally {
      running = null;
      send.disabled = false;
      stop.disabled = true;
    }
  }

  const form = make("form", { class: "try", novalidate: true }, make("h4", {}, "Try"));
  if (paths.length > 1) form.append(make("label", {}, "Path", route));
  form.append(...parameters.map(one => one.label));
  if (schema) form.append(make("label", {}, "Body (JSON)", body));
  if (hasStream) form.append(make("label", {}, stream, " Stream"));
  form.append(make("p", { class: "buttons" }, send, stop), error, progress, result, make("h5", {}, "curl", copy), curl);

  form.addEventListener("input", update);
  document.addEventListener("keychange", update);
  stop.addEventListener("click", () => running?.abort());
  copy.addEventListener("click", async () => {
    const isCopied = await navigator.clipboard?.writeText(curl.textContent).then(() => true, () => false);
    if (isCopied) copy.textContent = "Copied";
    else getSelection().selectAllChildren(curl);
    setTimeout(() => { copy.textContent = "Copy"; }, 2000);
  });
  body.addEventListener("keydown", event => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  form.addEventListener("submit", async event => {
    event.preventDefault();
    if (running !== null) return;
    error.textContent = progress.textContent = "";
    const missing = parameters.find(one => one.input.required && !one.input.value);
    if (missing) {
      error.textContent = `${missing.name} is part of the path; enter a value.`;
      return missing.input.focus();
    }
    const request = requestOf();
    const value = parsed(request.body);
    if (request.body && value === undefined) {
      error.textContent = "The body is not valid JSON.";
      return body.focus();
    }
    if (changesState(method, request.route, value)) {
      at("confirm-request").textContent = `${method} /${request.path}${request.body && `\n${request.body}`}`;
      if (!await ask(at("confirm-dialog"))) {
        progress.textContent = "Not sent.";
        return;
      }
    }
    const status = await run(request);
    if (status === 401) {
      const reason = key ? "The server does not accept this key." : "This server requires an API key.";
      if (await askForKey(reason)) await run(request);
    }
  });
  update();
  return form;
}

// The page

function search(operations, objects) {
  const words = at("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  let n_shown = 0;
  for (const operation of operations) {
    const other = words.filter(word => !operation.words.includes(word));
    const named = operation.fields.filter(field => other.some(word => field.toLowerCase().includes(word)));
    const isShown = other.every(word => named.some(field => field.toLowerCase().includes(word)));
    operation.element.hidden = operation.link.hidden = !isShown;
    operation.found.hidden = !named.length;
    operation.found.textContent = `Fields: ${named.slice(0, 6).join(", ")}${named.length > 6 ? ", …" : ""}`;
    n_shown += isShown;
  }
  for (const object of objects) object.element.hidden = !words.every(word => object.words.includes(word));
  for (const section of document.querySelectorAll("main section")) {
    section.hidden = !section.querySelector("details:not([hidden])");
    const links = document.querySelector(`#links [data-group="${section.id}"]`);
    if (links) links.hidden = section.hidden;
  }
  at("status").textContent = words.length ? `${n_shown} of ${operations.length} routes match.` : "";
}

// Opens the operation or object that the address names.
function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  if (target.hidden) {
    at("search").value = "";
    at("search").dispatchEvent(new Event("input"));
  }
  if (target instanceof HTMLDetailsElement) target.open = true;
  target.scrollIntoView();
}

function render(spec) {
  document.title = `${spec.info.title}: HTTP API`;
  at("version").textContent = `Version ${spec.info.version}`;
  at("status").textContent = "";
  const operations = operationsOf(spec);
  const links = document.createDocumentFragment();
  for (const [name, about] of GROUPS) {
    const members = operations.filter(operation => operation.group === name);
    const id = `group-${name.toLowerCase().replace(/[^a-z0-9]+/g, "-")}`;
    if (!members.length) continue;
    const section = make("section", { id, "aria-label": name }, make("h2", {}, name), make("p", {}, about));
    const list = make("ul");
    for (const operation of members) {
      section.append(makeOperation(operation));
      const method = make("span", { class: `code ${operation.method.toLowerCase()}` }, operation.method);
      operation.link = make("li", {}, make("a", { href: `#${operation.id}` }, method, make("span", {}, ...breakable(operation.path))));
      list.append(operation.link);
    }
    links.append(make("div", { "data-group": id }, make("h2", {}, make("a", { href: `#${id}` }, name)), list));
    at("routes").append(section);
  }
  const objects = Object.entries(spec.components.schemas).map(([name, schema]) => ({
    element: makeObject(name, schema),
    words: [name, ...Object.keys(schema.properties ?? {})].join(" ").toLowerCase(),
  }));
  at("routes").append(make("section", { id: "objects", "aria-label": "Objects" },
    make("h2", {}, "Objects"), make("p", {}, "Types of fields and of responses."), ...objects.map(one => one.element)));
  links.append(make("div", { "data-group": "objects" }, make("h2", {}, make("a", { href: "#objects" }, "Objects"))));
  at("links").append(links);
  at("search").addEventListener("input", () => search(operations, objects));
  if (at("search").value) search(operations, objects);
  addEventListener("hashchange", openTarget);
  openTarget();
}

// Loads the API description. While the model is being loaded, the server has none yet.
async function load() {
  const response = await fetch("openapi.json").catch(() => null);
  if (response?.ok) return render(await response.json());
  const reason = (await response?.json().catch(() => null))?.error?.message;
  at("status").textContent = response ? `The server answers ${response.status}: ${reason ?? response.statusText}. Retrying…`
    : "The server cannot be reached. Retrying…";
  setTimeout(load, 1000);
}

function main() {
  const isWide = matchMedia("(min-width: 60rem)");
  const fold = () => { at("contents").open = isWide.matches; };
  isWide.addEventListener("change", fold);
  fold();
  at("key-button").addEventListener("click", () => askForKey("The key is needed if the server was started with --api-key."));
  document.addEventListener("keydown", event => {
    const isTyping = event.target.closest?.("input, textarea, select, dialog");
    if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      at("search").focus();
    }
  });
  load();
}

main();
