import { untrack } from "svelte";
import type { NodeRecord, TokenAlternative, TokenRecord, TokensReport, WrittenText, WrittenToken } from "../api/types";
import type { Client } from "../api/client";
import { countCharacters } from "./characters";
import type { OpenDocument } from "./document.svelte";
import { KeyedSignal } from "./keyed_signal.svelte";
import { type PlacedToken, TokenPlacer } from "./token_text";
import type { Workspace } from "./workspace.svelte";

/** Tokens with alternatives that are kept; nodes that were not used for the longest time are dropped beyond that. */
const MAX_TOKENS = 50_000;
/** Requests at a time. */
const MAX_LOADING = 2;
/** Interval at which tokens of a running node are read again, if their beginning is unknown. */
const RELOAD_MS = 1000;
/** Interval at which tokens that could not be read are requested again. */
const RETRY_MS = 5000;

/** Tokens of the text of a node, or of the beginning of it. */
export class NodeTokens {
  private readonly placed: PlacedToken[] = [];
  private readonly placer = new TokenPlacer();
  private nTokens = 0;

  private constructor(
    /** Text whose tokens these are. */
    public text: string,
    private readonly unplaced: { id: number | null; n_bytes: number; logprob: number | null }[],
    private readonly top: (readonly TokenAlternative[])[],
    /** False for tokens of another model than the loaded one. */
    readonly isCurrent: boolean,
    readonly model: string | null,
  ) {
    this.nTokens = unplaced.length;
  }

  /** Tokens that were read from the server. */
  static of(report: TokensReport): NodeTokens {
    const bytes = report.tokens.flatMap((token) => token.bytes);
    const text = new TextDecoder().decode(Uint8Array.from(bytes));
    const tokens = report.tokens.map(({ id, bytes, logprob }) => ({ id, n_bytes: bytes.length, logprob }));
    const top = report.tokens.map(({ alternatives }) => alternatives);
    return new NodeTokens(text, tokens, top, report.is_current, report.model);
  }

  /** Tokens of a branch that begins to write. */
  static live(model: string | null): NodeTokens {
    return new NodeTokens("", [], [], true, model);
  }

  get length(): number {
    return this.nTokens;
  }

  get tokens(): readonly PlacedToken[] {
    for (const { id, n_bytes, logprob } of this.unplaced.splice(0))
      this.placed.push(this.placer.add(this.text, n_bytes, id, logprob));
    return this.placed;
  }

  /** Returns the most likely tokens at the position of one; null if they are not loaded. */
  alternatives(index: number): readonly TokenAlternative[] | null {
    return this.top[index] ?? null;
  }

  /** Returns the bytes of tokens from one index to another. */
  bytes(from: number, end: number): number[] {
    const first = this.tokens[from];
    const last = this.tokens[end - 1];
    if (first === undefined || last === undefined) return [];
    const encoded = new TextEncoder().encode(this.text.slice(first.from, last.to));
    const nBytes = this.tokens.slice(from, end).reduce((sum, token) => sum + token.nBytes, 0);
    return [...encoded.subarray(first.nSkipped, first.nSkipped + nBytes)];
  }

  append(text: string, tokens: readonly WrittenToken[]): void {
    this.text += text;
    this.unplaced.push(...tokens);
    this.nTokens += tokens.length;
  }

  /** Takes alternatives from tokens that were read later, as far as the tokens are the same. */
  addAlternatives(report: TokensReport): void {
    const { tokens } = this;
    for (const [index, token] of report.tokens.entries()) {
      if (tokens[index]?.id !== token.id) return;
      this.top[index] = token.alternatives;
    }
  }
}

/** Number of generated tokens of a node, and the sum of their log-probabilities. */
export interface TokenStatistics {
  n: number;
  logprobSum: number;
  /** False if some tokens of the node were not counted. */
  isComplete: boolean;
}

interface Loaded {
  /** Identifies the text; null while a branch writes it. */
  key: string | null;
  tokens: NodeTokens;
  loadedMs: number;
}

interface Live {
  /** Null if the beginning was missed. */
  tokens: NodeTokens | null;
  /** Length of the text so far, in code points. */
  nCharacters: number;
  statistics: TokenStatistics;
}

const stores = new WeakMap<OpenDocument, TokenStore>();

/** Returns the tokens of the open document, which exist once; null if none is open. */
export function tokenStore(workspace: Workspace): TokenStore | null {
  const { document } = workspace;
  if (document === null) return null;
  let store = stores.get(document);
  if (store === undefined) stores.set(document, (store = new TokenStore(document, workspace.client)));
  return store;
}

/** Tokens of the nodes of a document, read when they are needed. Those of running nodes are also collected from events. */
export class TokenStore {
  private readonly loaded = new Map<number, Loaded>();
  private readonly live = new Map<number, Live>();
  private readonly loading = new Map<number, Promise<NodeTokens | null>>();
  private readonly waiting: (() => void)[] = [];
  private readonly statistics = new Map<number, { key: string; statistics: TokenStatistics }>();
  private readonly signal = new KeyedSignal<number>();
  private readonly listeners = new Set<(node: number) => void>();
  private readonly failedMs = new Map<number, number>();
  private nLoading = 0;

  constructor(
    private readonly document: Pick<OpenDocument, "id" | "node" | "onTokens" | "structureVersion">,
    private readonly client: Pick<Client, "tokens">,
  ) {
    document.onTokens((written) => this.receive(written));
    $effect.root(() => {
      $effect(() => {
        void this.document.structureVersion;
        untrack(() => this.settle());
      });
    });
  }

  /** Calls a function when tokens of a node have come. Returns a function that ends this. */
  onChange(listener: (node: number) => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /**
   * Returns the tokens of a node that are there; null if there are none. They may be those of an earlier text, or of its
   * beginning: compare `text`.
   */
  get(node: number): NodeTokens | null {
    this.signal.track(node);
    const live = this.live.get(node);
    if (live?.tokens) return live.tokens;
    const loaded = this.loaded.get(node);
    if (loaded === undefined) return null;
    // The order of the map is that of the last use.
    this.loaded.delete(node);
    this.loaded.set(node, loaded);
    return loaded.tokens;
  }

  /** Reads the tokens of a node in the background, unless they are there. */
  request(node: number): void {
    const record = this.document.node(node);
    if (record === undefined || record.model === null || this.loading.has(node)) return;
    const loaded = this.loaded.get(node);
    if (record.state === "running") {
      if (this.live.get(node)?.tokens || (loaded && Date.now() - loaded.loadedMs < RELOAD_MS)) return;
    } else if (loaded?.key === keyOf(record)) return;
    if (Date.now() - (this.failedMs.get(node) ?? 0) < RETRY_MS) return;
    // Until then probabilities are missing; the page shows elsewhere that the connection is lost.
    this.load(node).catch(() => this.failedMs.set(node, Date.now()));
  }

  /** Reads the tokens of a node with their alternatives. Returns null if the node is gone. */
  load(node: number): Promise<NodeTokens | null> {
    let running = this.loading.get(node);
    if (running === undefined) {
      running = this.read(node).finally(() => this.loading.delete(node));
      this.loading.set(node, running);
    }
    return running;
  }

  /** Returns the tokens of a node with the alternatives of one token, reading them if they are not there. */
  async withAlternatives(node: number, index: number): Promise<NodeTokens | null> {
    const record = this.document.node(node);
    if (record === undefined) return null;
    const tokens = this.get(node);
    const isLoaded = record.state === "running" ? tokens !== null : this.loaded.get(node)?.key === keyOf(record);
    if (isLoaded && tokens?.alternatives(index)) return tokens;
    return this.load(node);
  }

  /** Returns the statistics of a node; null if they are unknown. */
  stats(node: number): TokenStatistics | null {
    this.signal.track(node);
    const live = this.live.get(node);
    if (live !== undefined) return live.statistics;
    const record = this.document.node(node);
    const known = this.statistics.get(node);
    return record !== undefined && known?.key === keyOf(record) ? known.statistics : null;
  }

  private receive(written: readonly WrittenText[]): void {
    for (const { node, start, text, tokens } of written) {
      let live = this.live.get(node);
      if (live === undefined || live.nCharacters !== start) {
        // Text was missed, unless this is the beginning.
        const isComplete = start === 0;
        const model = this.document.node(node)?.model ?? null;
        const beginning = isComplete ? NodeTokens.live(model) : null;
        live = { tokens: beginning, nCharacters: start, statistics: { n: 0, logprobSum: 0, isComplete } };
        this.live.set(node, live);
      }
      live.nCharacters += countCharacters(text);
      live.tokens?.append(text, tokens);
      const { n, logprobSum, isComplete } = live.statistics;
      const known = tokens.filter(({ logprob }) => logprob !== null);
      const sum = known.reduce((total, { logprob }) => total + logprob!, logprobSum);
      live.statistics = { n: n + known.length, logprobSum: sum, isComplete };
      this.changed(node);
    }
  }

  /** Ends the collection of tokens of nodes that run no longer. */
  private settle(): void {
    for (const [node, live] of this.live) {
      const record = this.document.node(node);
      if (record?.state === "running") continue;
      this.live.delete(node);
      if (record === undefined) continue;
      if (live.statistics.isComplete) this.statistics.set(node, { key: keyOf(record), statistics: live.statistics });
      // Shown until the tokens are read with their alternatives.
      if (live.tokens) this.loaded.set(node, { key: null, tokens: live.tokens, loadedMs: 0 });
      this.changed(node);
    }
  }

  private async read(node: number): Promise<NodeTokens | null> {
    while (this.nLoading >= MAX_LOADING) await new Promise<void>((resolve) => this.waiting.push(resolve));
    this.nLoading += 1;
    try {
      const before = this.document.node(node);
      if (before === undefined) return null;
      const report = await this.client.tokens(this.document.id, node);
      const record = this.document.node(node);
      if (record === undefined) return null;
      const live = this.live.get(node)?.tokens;
      if (live) {
        live.addAlternatives(report);
        this.changed(node);
        return live;
      }
      const tokens = NodeTokens.of(report);
      // If the node has changed meanwhile, the tokens may be those of an earlier text.
      this.keep(node, keyOf(before) === keyOf(record) ? record : null, tokens, statisticsOf(report.tokens));
      return tokens;
    } finally {
      this.nLoading -= 1;
      this.waiting.shift()?.();
    }
  }

  private keep(node: number, record: NodeRecord | null, tokens: NodeTokens, statistics?: TokenStatistics): void {
    const key = record === null || record.state === "running" ? null : keyOf(record);
    this.loaded.delete(node);
    this.loaded.set(node, { key, tokens, loadedMs: Date.now() });
    if (key !== null && statistics) this.statistics.set(node, { key, statistics });
    let n = 0;
    for (const [other, { tokens }] of [...this.loaded].reverse()) {
      n += tokens.length;
      if (n > MAX_TOKENS && other !== node) this.loaded.delete(other);
    }
    this.changed(node);
  }

  private changed(node: number): void {
    this.signal.notify(node);
    for (const listener of this.listeners) listener(node);
  }
}

function statisticsOf(tokens: readonly TokenRecord[]): TokenStatistics {
  const known = tokens.flatMap(({ id, logprob }) => (id === null || logprob === null ? [] : [logprob]));
  return { n: known.length, logprobSum: known.reduce((total, logprob) => total + logprob, 0), isComplete: true };
}

/** Identifies the text of a node. Written text changes no version, but the length. */
function keyOf(record: NodeRecord): string {
  return `${record.version}:${record.state}:${record.text.length}`;
}
