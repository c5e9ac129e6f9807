import { untrack } from "svelte";
import { ApiError, ConnectionError } from "../api/client";
import type { NodeRecord, ServerProps } from "../api/types";
import { texts } from "../texts";
import { compose, type ComposedPrompt, type ComposerSource, type NodeTokens, type PathNode } from "./composer";
import { cachedTokens, tokensFrom, type PartKind } from "./context";
import { defaultRequest } from "./continue_request";
import { LoreSearch } from "./lore_search";
import loreWorkerUrl from "./lore_worker?worker&url";
import { checkValues, type Problem } from "./presets";
import { readWithDefaults } from "./sampling_defaults";
import type { ContextSettings } from "./settings";
import { Tokenizer } from "./tokenizer";
import { startWorker } from "./worker_url";
import type { Workspace } from "./workspace.svelte";

/** Pause after a change before the prompt is composed again; also the interval while text is generated. */
const COMPOSE_MS = 500;
/** Pauses before settings that could not be stored are sent again; each is twice the one before. */
const MIN_RETRY_MS = 1500;
const MAX_RETRY_MS = 60_000;
/** Sent prompts that are compared with the next one. */
const MAX_SENT = 16;
/** Nodes whose tokens are kept. */
const MAX_NODES = 4000;
/** Status of a server whose model takes no chats. */
const NOT_SUPPORTED = 501;
/** Marker of ChatML, the template that the server uses for models without one. */
const CHATML_MARKER = "<|im_start|>";

/** Position at which a request continues a document. */
export interface Continuation {
  document: NonNullable<Workspace["document"]>;
  /** Last node of the text; null is the top. */
  node: number | null;
  /** Offset in the node's text; null is its end. */
  offset: number | null;
  nPredict: number;
  nAppended: number;
}

/** Why a prompt could not be composed. */
export type ComposeProblem = { kind: "no_template" } | { kind: "unavailable"; message: string };

const contexts = new WeakMap<Workspace, StoryContext>();

/** Returns the context of a workspace, which exists once. */
export function storyContext(workspace: Workspace): StoryContext {
  const known = contexts.get(workspace);
  if (known !== undefined) return known;
  // Its derived values belong to no component, so that they live as long as the workspace.
  $effect.root(() => {
    contexts.set(workspace, new StoryContext(workspace));
  });
  return contexts.get(workspace)!;
}

/** The prompt of the current node with its parts, and the state of the fields that determine it. */
export class StoryContext {
  /** The last composed prompt of the current node; null if there is none. */
  composed = $state.raw<ComposedPrompt | null>(null);
  problem = $state.raw<ComposeProblem | null>(null);
  props = $state.raw<ServerProps | null>(null);
  /** False if the model has no chat template, so that the server's default would be used; null while unknown. */
  hasTemplate = $state<boolean | null>(null);
  /** Fields whose text is no valid value, and which are therefore not stored. */
  invalid = $state.raw<ReadonlyMap<string, Problem>>(new Map());

  readonly tokenizer: Tokenizer;
  /** Changed settings that the server does not have yet, by document. */
  private unsaved = $state.raw<Readonly<Record<string, Partial<ContextSettings>>>>({});
  readonly settings: ContextSettings = $derived.by(() => {
    const { document } = this.workspace;
    return readWithDefaults({ ...document?.record?.settings, ...this.unsaved[document?.id ?? ""] });
  });
  /** What the server would refuse, or what is not stored. */
  readonly problems: readonly Problem[] = $derived.by(() => [
    ...this.invalid.values(),
    ...checkValues(this.settings.sampling, 1, this.props?.total_slots ?? null),
  ]);

  private readonly search = new LoreSearch(() => startWorker(loreWorkerUrl));
  private readonly nodes = new Map<string, Promise<NodeTokens>>();
  private readonly templates = new Map<string, Promise<string>>();
  /** Token ids of the last prompts that were sent, by document. */
  private readonly sent = new Map<string, number[][]>();
  private sentVersion = $state(0);
  private reading: Promise<ServerProps> | null = null;
  private timer: ReturnType<typeof setTimeout> | null = null;
  private isComposing = false;
  private retry: ReturnType<typeof setTimeout> | undefined;
  private retryMs = MIN_RETRY_MS;
  private changing: Promise<unknown> = Promise.resolve();
  private readonly pending = new Set<() => void>();
  private nWatchers = 0;

  constructor(private readonly workspace: Workspace) {
    this.tokenizer = new Tokenizer((request) => workspace.client.tokenPieces(request));
    $effect(() => {
      // The server may come back with another model.
      const { state } = workspace.connection;
      void workspace.document;
      if (state === "lost") untrack(() => this.reset());
      if (state === "open") untrack(() => this.change({}));
    });
  }

  /** Counts a component that shows the prompt. Returns a function that ends this. */
  watch(): () => void {
    this.nWatchers += 1;
    return () => {
      this.nWatchers -= 1;
    };
  }

  /** Schedules a composition after a change; reads what it depends on, so that the calling effect tracks that. */
  track(): void {
    void this.settings;
    void this.workspace.connection.state;
    void this.workspace.server.isReady;
    const continuation = this.current();
    if (continuation === null) {
      this.composed = null;
      return;
    }
    for (const id of continuation.document.path(continuation.node)) continuation.document.node(id);
    this.timer ??= setTimeout(() => void this.composeCurrent(), untrack(() => this.composed) === null ? 0 : COMPOSE_MS);
  }

  /**
   * Composes the prompt of a continuation.
   *
   * @throws {ApiError | ConnectionError} The server could not tokenize it.
   */
  async compose(continuation: Continuation): Promise<ComposedPrompt> {
    const { document, node, offset, nPredict, nAppended } = continuation;
    const props = await this.serverProps();
    const ids = document.path(node);
    const path = ids.flatMap((id): PathNode[] => {
      const record = document.node(id);
      if (record === undefined) return [];
      const text = id === node ? record.text.slice(0, offset ?? undefined) : record.text;
      return [{ id, text, hasTokens: record.model !== null }];
    });
    const nContext = props.default_generation_settings.n_ctx;
    return compose(this.source(document), { settings: this.settings, path, nContext, nPredict, nAppended });
  }

  /** Composes the prompt of the current node, with all edits of fields. */
  async composeNow(): Promise<ComposedPrompt> {
    await this.flush();
    const continuation = this.current();
    if (continuation === null) throw new Error(texts.context.noNode);
    return this.compose(continuation);
  }

  /** Remembers a prompt that was sent, so that later ones can be compared with it. */
  addSent(document: string, prompt: ComposedPrompt): void {
    const sent = this.sent.get(document) ?? [];
    this.sent.set(document, [...sent.slice(1 - MAX_SENT), prompt.tokens.ids]);
    this.sentVersion += 1;
  }

  /** True while a component shows the prompt. */
  get isWatched(): boolean {
    return this.nWatchers > 0;
  }

  /** Tokens of the composed prompt that the next continuation computes, as far as this tab knows; null without a prompt. */
  get nComputed(): number | null {
    void this.sentVersion;
    const { composed } = this;
    const document = this.workspace.document;
    if (composed === null || !document) return null;
    return composed.tokens.ids.length - cachedTokens(composed.tokens, this.sent.get(document.id) ?? []);
  }

  /** Tokens of the first part of a kind, or of a lore entry; null if it is not in the prompt. */
  tokensOf(kind: PartKind, index?: number): number | null {
    const part = this.composed?.parts.find((each) => each.kind === kind && (index === undefined || each.index === index));
    return part?.nTokens ?? null;
  }

  /** Tokens that a change of a part computes again; null if it is not in the prompt. */
  changeCost(kind: PartKind, index?: number): number | null {
    if (this.composed === null) return null;
    const { parts } = this.composed;
    const nth = parts.findIndex((each) => each.kind === kind && (index === undefined || each.index === index));
    return nth < 0
      ? null
      : tokensFrom(
          parts.map((part) => part.nTokens),
          nth,
        );
  }

  /** Marks a field as invalid, or as valid with null. */
  setInvalid(field: string, problem: Problem | null): void {
    if (problem === null && !this.invalid.has(field)) return;
    const invalid = new Map(this.invalid);
    if (problem === null) invalid.delete(field);
    else invalid.set(field, problem);
    this.invalid = invalid;
  }

  /**
   * Changes keys of the open document's settings, as one step of undo. They apply immediately; what cannot be stored is kept, and
   * stored when the server can be reached again.
   */
  change(changes: Partial<ContextSettings>): void {
    const id = this.workspace.document?.id;
    if (id === undefined) return;
    this.unsaved = { ...this.unsaved, [id]: { ...this.unsaved[id], ...changes } };
    this.changing = this.changing.then(() => this.store(id));
  }

  /** Adds a field whose text is stored after a pause. Returns a function that removes it. */
  addPending(store: () => void): () => void {
    this.pending.add(store);
    return () => this.pending.delete(store);
  }

  /** Stores all edited fields, and waits until they apply. */
  async flush(): Promise<void> {
    for (const store of this.pending) store();
    await this.changing;
  }

  /** Forgets the model's tokens, as after a lost connection: the server may have another model. */
  reset(): void {
    this.tokenizer.clear();
    this.nodes.clear();
    this.templates.clear();
    this.sent.clear();
    this.sentVersion += 1;
    this.reading = null;
    this.hasTemplate = null;
  }

  /** Reads the properties of the server and its model, once for each connection. */
  async serverProps(): Promise<ServerProps> {
    this.reading ??= this.workspace.client.props();
    const { reading } = this;
    try {
      const props = await reading;
      if (this.reading === reading) {
        this.props = props;
        this.hasTemplate = await this.knowsTemplate(props.chat_template ?? "");
      }
      return props;
    } catch (error) {
      if (this.reading === reading) this.reading = null;
      throw error;
    }
  }

  /** Returns whether the markers of a template are tokens of the model. */
  private async knowsTemplate(template: string): Promise<boolean> {
    if (!template.includes(CHATML_MARKER)) return template !== "";
    return (await this.tokenizer.tokens(CHATML_MARKER, { isFirst: false, parsesSpecial: true })).length === 1;
  }

  /** Stores changed settings of a document; the changes of several calls are one step of undo if they come quickly. */
  private async store(id: string): Promise<void> {
    const values = this.unsaved[id] ?? {};
    if (this.workspace.document?.id !== id || Object.keys(values).length === 0) return;
    clearTimeout(this.retry);
    if (!(await this.workspace.commands.changeSettings(values))) {
      this.retryMs = Math.min(this.retryMs * 2, MAX_RETRY_MS);
      this.retry = setTimeout(() => this.change({}), this.retryMs);
      return;
    }
    this.retryMs = MIN_RETRY_MS;
    // Values that were changed meanwhile are stored by a later call.
    const left = Object.entries(this.unsaved[id] ?? {}).filter(([key, value]) => values[key as keyof typeof values] !== value);
    this.unsaved = { ...this.unsaved, [id]: Object.fromEntries(left) };
  }

  private current(): Continuation | null {
    const { document } = this.workspace;
    const node = document?.current;
    if (!document || !node) return null;
    const nPredict = Number(defaultRequest(this.workspace.preferences).n_predict);
    return { document, node: node.id, offset: null, nPredict, nAppended: 0 };
  }

  private async composeCurrent(): Promise<void> {
    // Changes during the composition are composed after it.
    if (this.isComposing) {
      this.timer = setTimeout(() => void this.composeCurrent(), COMPOSE_MS);
      return;
    }
    this.timer = null;
    const continuation = this.current();
    if (continuation === null) return;
    this.isComposing = true;
    try {
      const composed = await this.compose(continuation);
      if (this.workspace.document !== continuation.document) return;
      this.composed = composed;
      this.problem = null;
    } catch (error) {
      this.composed = null;
      this.problem = problemOf(error);
    } finally {
      this.isComposing = false;
    }
  }

  private source(document: Continuation["document"]): ComposerSource {
    return {
      tokenizer: this.tokenizer,
      nodeTokens: (node) => this.nodeTokens(document, node),
      renderTemplate: (messages) => {
        const key = JSON.stringify(messages);
        return kept(this.templates, key, MAX_SENT, () => this.workspace.client.applyTemplate(messages));
      },
      searchLore: (entries, text) => this.search.search(entries, text),
    };
  }

  private nodeTokens(document: Continuation["document"], { id }: PathNode): Promise<NodeTokens> {
    const record = document.node(id) as NodeRecord;
    const key = `${document.id}/${id}/${record.version}/${record.text.length}/${record.state}`;
    return kept(this.nodes, key, MAX_NODES, async () => {
      const { is_current, tokens } = await this.workspace.client.tokens(document.id, id);
      if (!is_current) return { text: record.text, tokens: null };
      const text = new TextDecoder().decode(Uint8Array.from(tokens.flatMap((token) => token.bytes)));
      return { text, tokens: tokens.map((token) => ({ id: token.id, nBytes: token.bytes.length, end: token.end })) };
    });
  }
}

/** Returns a kept promise, or makes it; failed ones are not kept. */
function kept<Value>(
  values: Map<string, Promise<Value>>,
  key: string,
  nMax: number,
  make: () => Promise<Value>,
): Promise<Value> {
  const known = values.get(key);
  if (known !== undefined) return known;
  const made = make();
  values.set(key, made);
  made.catch(() => values.delete(key));
  const oldest = values.keys().next().value;
  if (values.size > nMax && oldest !== undefined) values.delete(oldest);
  return made;
}

function problemOf(error: unknown): ComposeProblem {
  if (error instanceof ApiError && error.status === NOT_SUPPORTED) return { kind: "no_template" };
  if (error instanceof ApiError || error instanceof ConnectionError) return { kind: "unavailable", message: error.message };
  throw error;
}
