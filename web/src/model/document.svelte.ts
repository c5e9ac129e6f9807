import type { Client } from "../api/client";
import { isAtOrBefore, type ReceivedEvent } from "../api/events";
import type { DocumentRecord, NodeRecord, WrittenText } from "../api/types";
import { countCharacters, offsetOfCharacter } from "./characters";
import type { Library } from "./library.svelte";
import { NodeTree } from "./node_tree.svelte";

/**
 * A document whose nodes are in memory, kept current by events. One node is current: the text column shows the path to its end.
 */
export class OpenDocument {
  readonly tree = new NodeTree();

  /** The last node of the shown path; null shows the empty text before all nodes. Change it with `go`. */
  currentId = $state<number | null>(null);

  /** Whether all nodes are in memory. */
  isLoaded = $state(false);

  /** Ids from the top to the current node. */
  readonly currentPath: readonly number[] = $derived.by(() => {
    void this.tree.structureVersion;
    return this.tree.path(this.currentId);
  });

  private lastRecord: DocumentRecord | undefined;
  /** Position in the stream of events up to which the nodes include all changes. */
  private cursor = "";
  /** Events that arrived while nodes were being loaded. */
  private early: ReceivedEvent[] | null = null;
  /** The last reading of all nodes. */
  private loading: Promise<void> = Promise.resolve();
  /** Lengths of the texts of running nodes, in characters. */
  private readonly nCharacters = new Map<number, number>();
  private readonly visited = new Map<number | null, number>();
  private readonly listeners = new Set<(written: readonly WrittenText[]) => void>();

  constructor(
    private readonly client: Client,
    private readonly library: Library,
    readonly id: string,
  ) {}

  // Reading

  /** The document without its nodes, also after it was deleted. */
  get record(): DocumentRecord {
    this.lastRecord = this.library.documents.get(this.id) ?? this.lastRecord;
    return this.lastRecord!;
  }

  /** Whether the document was deleted for good, or does not exist. */
  get isGone(): boolean {
    return !this.library.documents.has(this.id);
  }

  node(id: number): NodeRecord | undefined {
    return this.tree.node(id);
  }

  /** Returns the ids of the children that are not in the trash, in order; `null` is the top. */
  children(parent: number | null): readonly number[] {
    return this.tree.children(parent);
  }

  /** Returns the ids of all children, including those in the trash. */
  allChildren(parent: number | null): readonly number[] {
    return this.tree.allChildren(parent);
  }

  /** Returns the ids of the node's parent's children, with the node itself. */
  siblings(id: number): readonly number[] {
    const node = this.node(id);
    return node === undefined ? [] : this.children(node.parent);
  }

  path(id: number | null): readonly number[] {
    return this.tree.path(id);
  }

  /** Returns whether a node or one of its ancestors is in the trash. */
  isHidden(id: number): boolean {
    return this.tree.isHidden(id);
  }

  /** Returns the ids of nodes that were moved to the trash themselves. */
  trashRoots(): number[] {
    return [...this.tree.all()].filter((node) => node.is_trashed).map((node) => node.id);
  }

  /** See `NodeTree.structureVersion`. */
  get structureVersion(): number {
    return this.tree.structureVersion;
  }

  get current(): NodeRecord | undefined {
    return this.currentId === null ? undefined : this.node(this.currentId);
  }

  /** Ids of nodes that branches are writing. */
  get runningIds(): ReadonlySet<number> {
    return this.tree.runningIds;
  }

  /** Ids of interrupted nodes that are not in the trash. */
  get interruptedIds(): number[] {
    return [...this.tree.all()]
      .filter((node) => node.state === "interrupted" && !this.isHidden(node.id))
      .map((node) => node.id);
  }

  /** Returns the child through which the user last went, or the first one. */
  lastVisitedChild(parent: number | null): number | undefined {
    const children = this.children(parent);
    const visited = this.visited.get(parent);
    return visited !== undefined && children.includes(visited) ? visited : children[0];
  }

  /** Returns whether a node and all below it, without the trash, were written by hand. */
  isHandWritten(id: number): boolean {
    const waiting = [id];
    for (let next = waiting.pop(); next !== undefined; next = waiting.pop()) {
      const node = this.node(next);
      if (node === undefined || node.model !== null || node.state !== "done") return false;
      waiting.push(...this.children(next));
    }
    return true;
  }

  // Changing

  /** Makes a node current, or the nearest node above it that is not in the trash; null is the top. */
  go(id: number | null): void {
    if (id !== null && this.node(id) === undefined) return;
    this.currentId = id;
    let parent: number | null = null;
    for (const each of this.tree.path(id)) {
      this.visited.set(parent, each);
      parent = each;
    }
    this.leaveHidden();
  }

  /** Calls a listener with the text that running branches write, as it arrives. Returns a function that ends that. */
  onTokens(listener: (written: readonly WrittenText[]) => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Reads all nodes, one time after the other if it is called again meanwhile. */
  load(): Promise<void> {
    this.loading = this.loading.catch(() => {}).then(() => this.read());
    return this.loading;
  }

  /** Reads all nodes. Events that arrive meanwhile are applied afterwards. */
  private async read(): Promise<void> {
    this.early = [];
    try {
      if (this.isGone) this.library.answered(await this.client.document(this.id));
      const first = await this.client.listNodes(this.id);
      const nodes = first.nodes;
      for (let next = first.next; next !== null;) {
        const page = await this.client.listNodes(this.id, next);
        nodes.push(...page.nodes);
        next = page.next;
      }
      this.cursor = first.cursor;
      this.nCharacters.clear();
      this.tree.reset(nodes);
    } catch (error) {
      this.early = null;
      throw error;
    }
    const early = this.early;
    this.early = null;
    for (const received of early) this.apply(received);
    this.isLoaded = true;
    this.leaveHidden();
  }

  /** Adds nodes of an answer to a request, unless newer ones have arrived as events. */
  answered(nodes: readonly NodeRecord[], deleted: readonly number[] = []): void {
    this.put(nodes.filter((node) => (this.tree.node(node.id)?.version ?? 0) < node.version));
    if (deleted.length > 0) this.remove(deleted);
  }

  /** Applies an event of this document. */
  apply(received: ReceivedEvent): void {
    if (this.early !== null) {
      this.early.push(received);
      return;
    }
    if (isAtOrBefore(received.cursor, this.cursor)) return;
    const { event } = received;
    if (event.type === "nodes") this.put(event.nodes.filter((node) => (this.tree.node(node.id)?.version ?? 0) <= node.version));
    else if (event.type === "nodes_deleted") this.remove(event.nodes);
    else if (event.type === "tokens") this.write(event.branches);
  }

  private put(nodes: readonly NodeRecord[]): void {
    for (const node of nodes) this.nCharacters.delete(node.id);
    this.tree.put(nodes);
    this.leaveHidden();
  }

  private remove(ids: readonly number[]): void {
    const path = this.tree.path(this.currentId);
    this.tree.remove(ids);
    if (this.currentId !== null && this.tree.node(this.currentId) === undefined) {
      this.currentId = path.findLast((id) => this.tree.node(id) !== undefined) ?? null;
    }
    this.leaveHidden();
  }

  /** Goes up from a node in the trash to the nearest one that is not. */
  private leaveHidden(): void {
    const path = this.tree.path(this.currentId);
    const firstHidden = path.findIndex((id) => this.tree.node(id)!.is_trashed);
    if (firstHidden >= 0) this.go(path[firstHidden - 1] ?? null);
  }

  /** Appends text that branches have written. */
  private write(branches: readonly WrittenText[]): void {
    for (const { node: id, start, text } of branches) {
      const node = this.tree.node(id);
      if (node === undefined || text === "") continue;
      const known = this.nCharacters.get(id) ?? countCharacters(node.text);
      if (start > known) {
        void this.reread(id);
        continue;
      }
      // Text that was read with the node arrives once more as an event.
      const fresh = text.slice(offsetOfCharacter(text, known - start));
      this.nCharacters.set(id, known + countCharacters(fresh));
      if (fresh !== "") this.tree.setText(id, node.text + fresh);
    }
    for (const listener of this.listeners) listener(branches);
  }

  /** Reads a node again, of which an event was missed. */
  private async reread(id: number): Promise<void> {
    try {
      const node = await this.client.node(this.id, id);
      if ((this.tree.node(id)?.version ?? 0) <= node.version) this.put([node]);
    } catch {
      // The next event of the node, or the connection that is made again, reads it.
    }
  }
}

/** Returns the node that a document shows when it is opened: the one that was changed last. */
export function lastChanged(document: OpenDocument): number | null {
  let found: NodeRecord | null = null;
  for (const node of document.tree.all()) {
    if (!document.isHidden(node.id) && node.changed_ms >= (found?.changed_ms ?? 0)) found = node;
  }
  return found?.id ?? null;
}
