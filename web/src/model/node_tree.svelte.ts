import type { NodeRecord } from "../api/types";
import { KeyedSignal } from "./keyed_signal.svelte";

const NONE: readonly number[] = [];

/**
 * The nodes of one document in memory: by id, and by parent in their order.
 *
 * Records are immutable; a change replaces them. Effects depend on the nodes and lists of children that they read, and rerun alone.
 */
export class NodeTree {
  private readonly records = new Map<number, NodeRecord>();
  /** Ids of all children by parent, in order; `null` is the top. */
  private readonly below = new Map<number | null, number[]>();
  private readonly running = new Set<number>();
  private readonly nodeSignals = new KeyedSignal<number>();
  private readonly childSignals = new KeyedSignal<number | null>();

  /** Changes with the shape of the tree, and with labels, notes, bookmarks, states and the trash; not with text. */
  structureVersion = $state(0);

  get size(): number {
    void this.structureVersion;
    return this.records.size;
  }

  /** Highest id of a node so far; the server counts ids up. */
  highestId = 0;

  /** Returns a node, in the trash or not. */
  node(id: number): NodeRecord | undefined {
    this.nodeSignals.track(id);
    return this.records.get(id);
  }

  /** Returns all nodes, without making effects depend on their texts. */
  all(): IterableIterator<NodeRecord> {
    void this.structureVersion;
    return this.records.values();
  }

  /** Returns the ids of all children in order, including those in the trash; `null` is the top. */
  allChildren(parent: number | null): readonly number[] {
    this.childSignals.track(parent);
    return this.below.get(parent) ?? NONE;
  }

  /** Returns the ids of the children that are not in the trash, in order. */
  children(parent: number | null): readonly number[] {
    return this.allChildren(parent).filter((id) => !this.records.get(id)!.is_trashed);
  }

  /** Returns the ids from the top to a node; empty if the node is not there. */
  path(id: number | null): number[] {
    const found: number[] = [];
    for (let at = id; at !== null;) {
      const record = this.records.get(at);
      if (record === undefined) return [];
      found.push(at);
      at = record.parent;
    }
    return found.reverse();
  }

  /** Returns the ids of all nodes below a node, in the trash or not, parents first. */
  descendants(id: number): number[] {
    const found: number[] = [];
    const waiting = [...this.allChildren(id)];
    for (let next = waiting.pop(); next !== undefined; next = waiting.pop()) {
      found.push(next);
      waiting.push(...(this.below.get(next) ?? NONE));
    }
    return found;
  }

  /** Returns whether a node or one of its ancestors is in the trash. */
  isHidden(id: number): boolean {
    void this.structureVersion;
    for (let at: number | null = id; at !== null;) {
      const record: NodeRecord | undefined = this.records.get(at);
      if (record === undefined || record.is_trashed) return true;
      at = record.parent;
    }
    return false;
  }

  /** Ids of nodes that are being written, in the trash or not. */
  get runningIds(): ReadonlySet<number> {
    void this.structureVersion;
    return this.running;
  }

  /** Adds nodes, or replaces them by newer records. */
  put(nodes: readonly NodeRecord[]): void {
    let isStructural = false;
    const parents = new Set<number | null>();
    for (const node of nodes) {
      const before = this.records.get(node.id);
      this.records.set(node.id, node);
      this.highestId = Math.max(this.highestId, node.id);
      if (node.state === "running") this.running.add(node.id);
      else this.running.delete(node.id);
      if (before?.parent !== node.parent) {
        if (before !== undefined) parents.add(before.parent);
        const siblings = this.below.get(node.parent);
        if (siblings === undefined) this.below.set(node.parent, [node.id]);
        else siblings.push(node.id);
        parents.add(node.parent);
      } else if (before.position !== node.position || before.is_trashed !== node.is_trashed) {
        parents.add(node.parent);
      }
      isStructural ||= before === undefined || isStructuralChange(before, node);
      this.nodeSignals.notify(node.id);
    }
    for (const parent of parents) this.order(parent);
    if (isStructural) this.structureVersion++;
  }

  /** Replaces the text of a node that is being written. */
  setText(id: number, text: string): void {
    this.records.set(id, { ...this.records.get(id)!, text });
    this.nodeSignals.notify(id);
  }

  /** Removes nodes that were deleted for good. */
  remove(ids: readonly number[]): void {
    const parents = new Set<number | null>();
    for (const id of ids) {
      const record = this.records.get(id);
      if (record === undefined) continue;
      this.records.delete(id);
      this.running.delete(id);
      parents.add(record.parent);
      this.nodeSignals.notify(id);
    }
    for (const parent of parents) this.order(parent);
    this.structureVersion++;
  }

  /** Replaces all nodes. */
  reset(nodes: readonly NodeRecord[]): void {
    this.records.clear();
    this.below.clear();
    this.running.clear();
    this.put(nodes);
    this.nodeSignals.notifyAll();
    this.childSignals.notifyAll();
    this.structureVersion++;
  }

  /** Makes the list of a parent's children again, after nodes came, went or moved. */
  private order(parent: number | null): void {
    const children = [...new Set(this.below.get(parent))].filter((id) => this.records.get(id)?.parent === parent);
    children.sort((left, right) => this.records.get(left)!.position - this.records.get(right)!.position || left - right);
    if (children.length > 0) this.below.set(parent, children);
    else this.below.delete(parent);
    this.childSignals.notify(parent);
  }
}

function isStructuralChange(before: NodeRecord, after: NodeRecord): boolean {
  return (
    before.parent !== after.parent ||
    before.position !== after.position ||
    before.is_trashed !== after.is_trashed ||
    before.state !== after.state ||
    before.label !== after.label ||
    before.note !== after.note ||
    before.is_bookmarked !== after.is_bookmarked
  );
}
