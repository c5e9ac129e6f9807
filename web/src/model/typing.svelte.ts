import { ApiError, type Client, ConnectionError } from "../api/client";
import type { NodeRecord } from "../api/types";
import { texts } from "../texts";
import type { OpenDocument } from "./document.svelte";
import type { Draft, Drafts, NewNodeDraft, NodeDraft, TailDraft } from "./drafts";
import type { History } from "./history.svelte";
import type { Notices } from "./notices.svelte";
import { apply, type EditPlan, type PathSegment, planEdit, type TextChange } from "./path_text";
import { type HistoryEntry, inverse, type NodeRef, type Step, type TextStep } from "./steps";

/** Typed text is stored this long after the last key, in milliseconds. */
const IDLE_MS = 300;

/** Typed text is stored at the latest this long after the first key, in milliseconds. */
const LATEST_MS = 500;

/** Typed text is kept in the browser this long after the first key, in milliseconds. */
const KEEP_MS = 150;

/** Pauses between attempts to store text after failures, in milliseconds. */
const RETRY_MS = [1_000, 2_000, 5_000, 10_000, 20_000];

/** Topic of messages about text that could not be stored. */
const SAVING = "saving";

/** Whether all typed text is on the server: `offline` and `refused` text is kept in the browser and sent again. */
export type SaveState = "saved" | "unsaved" | "saving" | "offline" | "refused";

/** A segment of the text column. Text that has no node yet has a key. */
export interface ShownSegment extends PathSegment {
  readonly key: NodeRef;
}

/**
 * What the user types into a document: shown at once, stored within a second, kept in the browser until then.
 *
 * Edits of stored nodes are changes; other edits create nodes, which stand at the end of the shown path until the server has them.
 */
export class Typing {
  /** How far the typed text is stored. */
  state = $state<SaveState>("saved");

  /** Why text could not be stored, as the server or the browser reports it. */
  failure = $state<string | null>(null);

  private changed = $state.raw<readonly NodeDraft[]>([]);
  private tails = $state.raw<readonly TailDraft[]>([]);
  private timer = 0;
  private keepTimer: number | undefined;
  private firstEditAt: number | null = null;
  private nFailures = 0;
  private nEdits = 0;
  private isRestored = false;
  private isComposing = false;
  private saving: Promise<boolean> | null = null;
  /** Paths that requests for branches continue, until they are answered. */
  private readonly continued = new Set<readonly number[]>();

  /** The text column: the nodes of the current path with what was typed into them, and typed text without nodes. */
  readonly segments: readonly ShownSegment[] = $derived.by(() => {
    const path = this.document.currentPath.map((id) => {
      const text = this.changed.find(({ node }) => node === id)?.text ?? this.document.node(id)!.text;
      return { node: id, key: id, text };
    });
    return [...path, ...(this.tail?.nodes.map(({ key, text }) => ({ node: null, key, text })) ?? [])];
  });

  constructor(
    private readonly document: OpenDocument,
    private readonly client: Client,
    private readonly history: History,
    private readonly notices: Notices,
    private readonly drafts: Drafts,
  ) {}

  /** Whether the last attempt to store text has failed. */
  get isFailing(): boolean {
    return this.state === "offline" || this.state === "refused";
  }

  /** Last segment of the shown text; null if there is none. */
  get leaf(): NodeRef | null {
    return this.segments.at(-1)?.key ?? null;
  }

  /**
   * Makes an edit of the text column.
   *
   * @param changes Replacements in order, with offsets in the text of `segments`.
   * @param cursor Offset of the cursor before the edit, which undo restores.
   */
  edit(changes: readonly TextChange[], cursor: number): void {
    const plan = planEdit(this.segments, changes, {
      canChange: (node) => this.document.isHandWritten(node) && !this.isContinued(node),
      canExtend: (node) => this.document.node(node)?.state !== "running",
    });
    if (plan.kind === "change") this.changeSegments(plan.changes);
    else this.create(plan, cursor);
    this.edited();
  }

  /** Replaces a part of a node's text for undo or redo. Returns false if other text is there now. */
  replace(step: TextStep): boolean {
    const text = this.textOf(step.node);
    if (text === undefined || text.slice(step.at, step.at + step.removed.length) !== step.removed) return false;
    this.setText(step.node, text.slice(0, step.at) + step.inserted + text.slice(step.at + step.removed.length));
    this.edited();
    return true;
  }

  /** Puts off storing while an input method composes text, and stores the text afterwards. */
  setComposing(isComposing: boolean): void {
    this.isComposing = isComposing;
    if (!isComposing && !this.isClean && !this.isFailing) this.schedule();
  }

  /** Returns the text of a node as it is shown. */
  textOf(key: NodeRef): string | undefined {
    if (typeof key === "string") return this.newNodes().find((each) => each.key === key)?.text;
    return this.changed.find(({ node }) => node === key)?.text ?? this.document.node(key)?.text;
  }

  /**
   * Runs a request for branches that continue a node. What is typed meanwhile leaves the texts above the branches as they are, and
   * becomes nodes beside the branches.
   */
  async whileContinuing<Result>(node: number, work: () => Promise<Result>): Promise<Result> {
    const path = this.document.path(node);
    this.continued.add(path);
    try {
      return await work();
    } finally {
      this.continued.delete(path);
    }
  }

  /** Stores all typed text now. Returns whether all of it is stored. */
  async flush(): Promise<boolean> {
    do {
      if (!(await this.save())) return false;
    } while (!this.isClean);
    return true;
  }

  /** Tries again to store text that could not be stored, as after the connection was made again. */
  retry(): void {
    if (this.isFailing) void this.save();
  }

  /** Takes over text that an earlier page has kept, if there is any, and stores it. Has an effect once. */
  restore(draft: Draft | null): void {
    if (this.isRestored) return;
    this.isRestored = true;
    if (draft === null) return;
    this.changed = draft.changed;
    this.tails = draft.tails;
    const anchor = this.tails.at(-1)?.anchor;
    if (anchor !== undefined) this.document.go(anchor);
    this.edited();
  }

  /** Keeps the text that is not stored in the browser. */
  keep(): void {
    clearTimeout(this.keepTimer);
    this.keepTimer = undefined;
    const isKept = this.drafts.keep(this.document.id, { changed: [...this.changed], tails: [...this.tails] });
    if (!isKept) this.notices.showOnce("drafts", texts.saving.browserFull);
  }

  private isContinued(node: number): boolean {
    return [...this.continued].some((path) => path.includes(node));
  }

  private get isClean(): boolean {
    return this.changed.length === 0 && this.tails.length === 0;
  }

  /** New nodes that follow the current node. */
  private get tail(): TailDraft | undefined {
    return this.tails.findLast(({ anchor }) => anchor === this.document.currentId);
  }

  private newNodes(): NewNodeDraft[] {
    return this.tails.flatMap(({ nodes }) => nodes);
  }

  // Edits

  private changeSegments(edited: ReadonlyMap<number, readonly TextChange[]>): void {
    const leaf = this.leaf!;
    const steps = [...edited].map(([index, changes]): TextStep => {
      const { key, text } = this.segments[index]!;
      const [from, to] = [changes[0]!.from, changes.at(-1)!.to];
      const after = apply(text, changes);
      this.setText(key, after);
      const inserted = after.slice(from, after.length - (text.length - to));
      return { kind: "text", node: key, leaf, at: from, removed: text.slice(from, to), inserted };
    });
    const title = texts.editor.typing;
    if (steps.length === 1) this.history.pushText(title, this.document.id, steps[0]!);
    else this.history.push({ title, document: this.document.id, undo: steps.map(inverse), redo: steps });
  }

  private create(plan: Extract<EditPlan, { kind: "create" }>, cursor: number): void {
    const before = this.segments;
    const leafBefore = this.leaf;
    const shown = this.tail;
    const nodes = [plan.text, plan.rest].filter((text) => text !== "").map(newNode);
    const kept = before.slice(0, plan.n_kept);
    const keptNew = shown?.nodes.slice(0, kept.filter(({ node }) => node === null).length) ?? [];
    if (shown !== undefined && keptNew.length > 0) {
      this.replaceTail(shown, { ...shown, nodes: [...keptNew, ...nodes] });
    } else {
      // What the text column showed below the kept nodes is a part of the new ones.
      if (shown !== undefined) this.replaceTail(shown, null);
      const anchor = kept.at(-1)?.node ?? null;
      const after = plan.replaces === null ? null : before[plan.replaces]!.node;
      if (nodes.length > 0) this.tails = [...this.tails, { anchor, after, nodes }];
      this.document.go(anchor);
    }
    const [first] = nodes;
    const leaf = this.leaf;
    const trash = (is_trashed: boolean): Step[] =>
      first === undefined ? [] : [{ kind: "trash", nodes: [first.key], is_trashed }];
    const entry: HistoryEntry = {
      title: texts.editor.typing,
      document: this.document.id,
      undo: [...trash(true), { kind: "go", node: leafBefore, cursor }],
      redo: [...trash(false), { kind: "go", node: leaf, cursor: null }],
    };
    if (first === undefined) this.history.push(entry);
    else this.history.pushCreated(entry, first.key);
  }

  private setText(key: NodeRef, text: string): void {
    if (typeof key === "string") {
      const set = (node: NewNodeDraft) => (node.key === key ? { ...node, text } : node);
      this.tails = this.tails.map((tail) => ({ ...tail, nodes: tail.nodes.map(set) }));
      return;
    }
    const known = this.changed.find(({ node }) => node === key);
    const draft = known ?? { node: key, version: this.document.node(key)!.version, text, sent: null };
    this.changed = [...this.changed.filter((each) => each !== known), { ...draft, text }];
  }

  private edited(): void {
    this.nEdits++;
    this.firstEditAt ??= performance.now();
    this.keepSoon();
    if (!this.isFailing) this.schedule();
  }

  /** Stores the text after the next pause, and at the latest some time after the first key. */
  private schedule(): void {
    if (this.saving !== null) return;
    this.state = "unsaved";
    // An input method replaces its text until it is done.
    if (this.isComposing) return;
    const latest = (this.firstEditAt ?? performance.now()) + LATEST_MS;
    const wait = Math.max(0, Math.min(IDLE_MS, latest - performance.now()));
    clearTimeout(this.timer);
    this.timer = window.setTimeout(() => void this.save(), wait);
  }

  /** Keeps the text in the browser, a moment later so that long texts do not delay each key. */
  private keepSoon(): void {
    this.keepTimer ??= window.setTimeout(() => this.keep(), KEEP_MS);
  }

  // Storing

  /** Stores the text as it is now. Returns false if that failed; text that is typed meanwhile is stored later. */
  private save(): Promise<boolean> {
    clearTimeout(this.timer);
    this.saving ??= this.saveAll().finally(() => {
      this.saving = null;
      if (!this.isClean && this.state === "saving") this.schedule();
    });
    return this.saving;
  }

  private async saveAll(): Promise<boolean> {
    const { nEdits } = this;
    this.firstEditAt = null;
    while (!this.isClean && this.nEdits === nEdits) {
      this.state = "saving";
      try {
        const [changed] = this.changed;
        if (changed !== undefined) await this.saveChanged(changed);
        else await this.saveNew(this.tails[0]!);
      } catch (error) {
        this.fail(error);
        return false;
      } finally {
        this.keep();
      }
    }
    this.failure = null;
    this.nFailures = 0;
    this.notices.dismissTopic(SAVING);
    if (this.isClean) this.state = "saved";
    return true;
  }

  private fail(error: unknown): void {
    const isOffline = error instanceof ConnectionError;
    this.state = isOffline ? "offline" : "refused";
    this.failure = error instanceof Error ? error.message : String(error);
    if (!isOffline && this.nFailures === 0) this.notices.showOnce(SAVING, texts.saving.refused(this.failure));
    const wait = RETRY_MS[Math.min(this.nFailures++, RETRY_MS.length - 1)]!;
    clearTimeout(this.timer);
    this.timer = window.setTimeout(() => void this.save(), wait);
  }

  private async saveChanged(draft: NodeDraft): Promise<void> {
    const current = this.document.node(draft.node);
    const sent = draft.text;
    if (current?.text === sent) return this.storedChange(draft, current, sent);
    if (draft.sent !== null && current?.version === draft.version + 1 && current.text === draft.sent) {
      // The answer to an earlier attempt was lost.
      return this.storedChange(draft, current, draft.sent);
    }
    this.replaceChanged(draft.node, (each) => ({ ...each, sent }));
    this.keep();
    try {
      const answer = await this.client.changeNode(this.document.id, draft.node, { version: draft.version, text: sent });
      this.document.answered([answer.node]);
      if (answer.is_sibling) this.becameSibling(draft.node, answer.node, sent);
      else this.storedChange(draft, answer.node, sent);
    } catch (error) {
      if (!(error instanceof ApiError && error.status === 404)) throw error;
      await this.saveElsewhere(draft);
    }
  }

  private storedChange(draft: NodeDraft, stored: NodeRecord, text: string): void {
    this.replaceChanged(draft.node, (each) => (each.text === text ? null : { ...each, version: stored.version, sent: null }));
  }

  /** Shows the sibling that an edit has become because the node was changed elsewhere, with the text that followed the node. */
  private becameSibling(node: number, sibling: NodeRecord, sent: string): void {
    const segments = this.segments;
    const index = segments.findIndex((segment) => segment.node === node);
    const rest = segments
      .slice(index + 1)
      .map(({ text }) => text)
      .join("");
    const typed = this.changed.find((each) => each.node === node)!.text;
    this.replaceChanged(node, () => null);
    if (typed !== sent)
      this.changed = [...this.changed, { node: sibling.id, version: sibling.version, text: typed, sent: null }];
    this.history.rename(this.document.id, node, sibling.id);
    if (index >= 0) {
      const shown = this.tail;
      if (shown !== undefined) this.replaceTail(shown, { ...shown, nodes: [] });
      if (rest !== "") this.tails = [...this.tails, { anchor: sibling.id, after: null, nodes: [newNode(rest)] }];
      this.document.go(sibling.id);
    }
    this.notices.show(texts.saving.becameSibling);
  }

  /** Makes a new node of text whose node was deleted elsewhere. */
  private async saveElsewhere(draft: NodeDraft): Promise<void> {
    await this.client.document(this.document.id);
    this.replaceChanged(draft.node, () => null);
    this.tails = [...this.tails, { anchor: this.document.currentId, after: null, nodes: [newNode(draft.text)] }];
    this.notices.show(texts.saving.nodeGone);
  }

  private async saveNew(tail: TailDraft): Promise<void> {
    const first = tail.nodes[0]!;
    const node = this.earlierAttempt(tail, first) ?? (await this.createNode(tail, first));
    if (node === null) return;
    this.document.answered([node]);
    this.history.rename(this.document.id, first.key, node.id);
    // Meanwhile the text may have changed, or another edit may have taken it over.
    const stored = this.tails.find(({ nodes }) => nodes[0]?.key === first.key);
    if (stored === undefined) return;
    const isShown = stored === this.tail;
    const { text } = stored.nodes[0]!;
    if (text !== node.text) this.changed = [...this.changed, { node: node.id, version: node.version, text, sent: null }];
    this.replaceTail(stored, { anchor: node.id, after: null, nodes: stored.nodes.slice(1) });
    if (isShown) this.document.go(node.id);
  }

  /** Returns the node that an earlier attempt has created, if its answer was lost. */
  private earlierAttempt(tail: TailDraft, { sent, sentAfter }: NewNodeDraft): NodeRecord | null {
    if (sent === null) return null;
    const children = this.document.allChildren(tail.anchor).map((id) => this.document.node(id)!);
    return children.find((node) => node.id > sentAfter && node.model === null && node.text === sent) ?? null;
  }

  /** Creates the first node of a tail; returns null if the tail now stands elsewhere because its anchor is gone. */
  private async createNode(tail: TailDraft, draft: NewNodeDraft): Promise<NodeRecord | null> {
    const attempt = { ...draft, sent: draft.text, sentAfter: this.document.tree.highestId };
    const sending = { ...tail, nodes: [attempt, ...tail.nodes.slice(1)] };
    this.replaceTail(tail, sending);
    this.keep();
    const position = tail.after === null ? -1 : this.document.allChildren(tail.anchor).indexOf(tail.after);
    const index = position < 0 ? null : position + 1;
    try {
      return await this.client.createNode(this.document.id, { parent: tail.anchor, text: attempt.text, index });
    } catch (error) {
      if (!(error instanceof ApiError && error.status === 404 && tail.anchor !== null)) throw error;
      await this.client.document(this.document.id);
      const { currentId } = this.document;
      const moved = this.tails.find(({ nodes }) => nodes[0]?.key === draft.key);
      if (moved !== undefined)
        this.replaceTail(moved, { ...moved, anchor: currentId === tail.anchor ? null : currentId, after: null });
      this.notices.show(texts.saving.nodeGone);
      return null;
    }
  }

  private replaceChanged(node: number, replace: (draft: NodeDraft) => NodeDraft | null): void {
    this.changed = this.changed.map((each) => (each.node === node ? replace(each) : each)).filter((each) => each !== null);
  }

  private replaceTail(before: TailDraft, after: TailDraft | null): void {
    const replaced = this.tails.map((tail) => (tail === before ? after : tail));
    this.tails = replaced.filter((tail) => tail !== null && tail.nodes.length > 0) as TailDraft[];
  }
}

/** Returns typed text that is to become a node. */
function newNode(text: string): NewNodeDraft {
  return { key: `new-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`, text, sent: null, sentAfter: 0 };
}
