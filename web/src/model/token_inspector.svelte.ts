import { untrack } from "svelte";
import { SvelteMap } from "svelte/reactivity";
import type { NodeRecord, TokenAlternative } from "../api/types";
import { texts } from "../texts";
import { characterOfOffset } from "./characters";
import { forkAfter, forkBefore, tokenAt } from "./token_text";
import { type NodeTokens, tokenStore } from "./tokens.svelte";
import { isWhole } from "./visible_text";
import type { Workspace } from "./workspace.svelte";

/** A view that shows texts of nodes, in which tokens are inspected. */
export interface TokenHost {
  /** Returns the rectangle of a part of a node's text on the screen; null if it is not visible. Offsets are in the node. */
  rectangle(node: number, from: number, to: number): DOMRect | null;
  /** Scrolls to a part of a node's text. */
  reveal(node: number, from: number, to: number): void;
  /** Returns the node whose text is shown before or after that of a node; null at the ends. */
  neighbor(node: number, step: 1 | -1): number | null;
  focus(): void;
}

export interface InspectedToken {
  node: number;
  /** Index in the tokens of the node; null if the node has none there. */
  index: number | null;
}

interface Cursor {
  host: TokenHost;
  node: number;
  offset: number;
}

/** Where the popover came from: a pointer that only passes, or a key or press, after which it has the focus. */
export type PopoverMode = "hover" | "pinned";

const inspectors = new WeakMap<Workspace, TokenInspector>();

/** Returns the inspector of a workspace, which exists once. */
export function tokenInspector(workspace: Workspace): TokenInspector {
  let inspector = inspectors.get(workspace);
  if (inspector === undefined) inspectors.set(workspace, (inspector = new TokenInspector(workspace)));
  return inspector;
}

/** The token that is inspected, and what can be done with it. */
export class TokenInspector {
  token = $state.raw<InspectedToken | null>(null);
  popover = $state.raw<PopoverMode | null>(null);
  host = $state.raw<TokenHost | null>(null);

  /** The text column, while it is on the page. */
  textHost: TokenHost | null = null;

  /** Bytes with which branches of this tab begin, if they end inside a character. */
  private readonly begun = new SvelteMap<number, readonly number[]>();
  private nShown = 0;
  private nWatchers = 0;
  private cursor: Cursor | null = null;

  constructor(private readonly workspace: Workspace) {}

  /** Tokens of the inspected node; null if they are not there yet. */
  get tokens(): NodeTokens | null {
    return this.token === null ? null : (tokenStore(this.workspace)?.get(this.token.node) ?? null);
  }

  /** Range of the inspected token in the text of its node. */
  get range(): { node: number; from: number; to: number } | null {
    if (this.token === null || this.token.index === null) return null;
    const token = this.tokens?.tokens[this.token.index];
    return token === undefined ? null : { node: this.token.node, from: token.from, to: token.to };
  }

  /** Inspects the token at an offset of a node's text. Returns whether there is one. */
  async show(host: TokenHost, node: number, offset: number, mode: PopoverMode | null): Promise<boolean> {
    const nth = ++this.nShown;
    const store = tokenStore(this.workspace);
    const record = this.workspace.document?.node(node);
    if (store === null || record === undefined) return false;
    let tokens = store.get(node);
    let index = tokens === null ? null : tokenAt(tokens.tokens, offset);
    if (record.model !== null && (index === null || !tokens!.alternatives(index))) {
      try {
        tokens = await store.withAlternatives(node, index ?? 0);
      } catch (error) {
        if (mode === "pinned") this.workspace.notices.showError(error, texts.tokens.failed);
        return false;
      }
      index = tokens === null ? null : tokenAt(tokens.tokens, offset);
    }
    // Another token was chosen while this one was loaded.
    if (nth !== this.nShown || (index === null && mode === "hover")) return false;
    this.host = host;
    this.token = { node, index };
    this.popover = mode;
    const { range } = this;
    if (mode === "pinned" && range !== null) host.reveal(range.node, range.from, range.to);
    return index !== null;
  }

  /** Inspects the next or previous token, also in the neighbouring nodes of the text. */
  async move(step: 1 | -1): Promise<void> {
    const { token, host } = this;
    const store = tokenStore(this.workspace);
    if (token === null || host === null || store === null) return;
    const nth = ++this.nShown;
    let { node } = token;
    let index = token.index === null ? null : token.index + step;
    const isWithin = index !== null && index >= 0 && index < (this.tokens?.length ?? 0);
    if (!isWithin) {
      const next = host.neighbor(node, step);
      if (next === null) return;
      node = next;
      const tokens = await store.withAlternatives(node, 0).catch(() => null);
      index = tokens === null || tokens.length === 0 ? null : step > 0 ? 0 : tokens.length - 1;
    }
    if (index !== null) await store.withAlternatives(node, index).catch(() => null);
    if (nth !== this.nShown) return;
    this.token = { node, index };
    const { range } = this;
    if (range !== null) host.reveal(range.node, range.from, range.to);
  }

  /** Closes the popover. The focus returns to the text if the popover had it. */
  close(): void {
    const hadFocus = this.popover === "pinned";
    this.dismiss();
    if (hadFocus) this.host?.focus();
  }

  /** Closes the popover and leaves the focus where it is. */
  dismiss(): void {
    this.nShown += 1;
    this.popover = null;
  }

  /** Inspects the tokens at the cursor from now on. Returns a function that ends this. */
  watchCursor(): () => void {
    this.nWatchers += 1;
    if (this.cursor !== null) untrack(() => this.followCursor(this.cursor!));
    return () => void (this.nWatchers -= 1);
  }

  /** Must be called when the cursor of the text has moved. */
  moveCursor(host: TokenHost, node: number, offset: number): void {
    this.cursor = { host, node, offset };
    if (this.nWatchers > 0 && this.popover === null) this.followCursor(this.cursor);
  }

  private followCursor({ host, node, offset }: Cursor): void {
    const tokens = tokenStore(this.workspace)?.get(node);
    // At the end of a text, the last token is the one of interest.
    const isEnd = tokens ? tokenAt(tokens.tokens, offset) === null : false;
    void this.show(host, node, isEnd ? Math.max(0, offset - 1) : offset, null);
  }

  /** Returns what an alternative appends to the text before it; null if it cannot be continued. */
  appended(alternative: TokenAlternative): { offset: number; append: (string | number)[] } | null {
    const { token, tokens } = this;
    if (tokens === null || token?.index == null) return null;
    const fork = forkBefore(tokens.tokens, token.index);
    if (fork === null) return null;
    const { offset, before } = fork;
    if (tokens.isCurrent) return { offset, append: [...before, alternative.id] };
    // Ids of another model mean other texts, and a text has whole characters only.
    const isText = before.length === 0 && alternative.bytes.length > 0 && isWhole(alternative.bytes);
    return isText ? { offset, append: [alternative.text] } : null;
  }

  /** Starts branches with another token in place of the inspected one. Returns their ids. */
  async choose(alternative: TokenAlternative): Promise<number[]> {
    const { token, tokens } = this;
    const chosen = this.appended(alternative);
    if (token?.index == null || tokens === null || chosen === null) return [];
    const nBefore = chosen.append.length - 1;
    const bytes = [...tokens.bytes(token.index - nBefore, token.index), ...alternative.bytes];
    const branches = await this.continueAt(token.node, chosen.offset, chosen.append);
    if (!isWhole(bytes)) for (const branch of branches) this.begun.set(branch, bytes);
    return branches;
  }

  /** Returns the bytes with which a branch begins, while they are no whole character and its text is therefore empty. */
  beginning(node: NodeRecord): readonly number[] | null {
    return node.text === "" ? (this.begun.get(node.id) ?? null) : null;
  }

  /** True if branches can begin after the inspected token. */
  get canFork(): boolean {
    const { token, tokens } = this;
    return tokens !== null && token?.index != null && forkAfter(tokens.tokens, token.index) !== null;
  }

  /** Starts branches after the inspected token. Returns their ids. */
  async fork(): Promise<number[]> {
    const { token, tokens } = this;
    if (tokens === null || token?.index == null) return [];
    const fork = forkAfter(tokens.tokens, token.index);
    return fork === null ? [] : this.continueAt(token.node, fork.offset, fork.before);
  }

  private async continueAt(node: number, at: number, append: readonly (string | number)[]): Promise<number[]> {
    const { document } = this.workspace;
    const record = document?.node(node);
    if (record === undefined) return [];
    this.dismiss();
    // A text that is still written may have grown when the request arrives, so that its end must be named too.
    const fields = record.state === "running" ? { at: { character: characterOfOffset(record.text, at) } } : {};
    return this.workspace.commands.continueFrom(node, { at, fields, ...(append.length > 0 && { append }) });
  }
}
