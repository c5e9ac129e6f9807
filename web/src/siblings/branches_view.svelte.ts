import type { OpenDocument } from "../model/document.svelte";
import { oncePer } from "../model/once_per.svelte";
import type { Workspace } from "../model/workspace.svelte";

/** Two nodes whose texts are compared. */
export interface Comparison {
  first: number;
  second: number;
}

const viewOf = oncePer((document: OpenDocument) => new BranchesView(document));

/** Returns the view of the open document's branches, which exists once; null if no document is open. */
export function branchesViewOf(workspace: Workspace): BranchesView | null {
  const { document } = workspace;
  return document && viewOf(document);
}

/** Which branches are listed beside each other: those beside the current node, or those that continue it. */
export class BranchesView {
  /** True if the list shows the children of the current node. */
  showsChildren = $state(false);
  /** Node whose card has the focus, or had it last. */
  focusedId = $state<number | null>(null);
  /** Node that another one is to be compared with. */
  markedId = $state<number | null>(null);
  comparison = $state.raw<Comparison | null>(null);

  /** Node whose children are listed; null is the top. */
  readonly parent: number | null = $derived.by(() => {
    const { current } = this.document;
    if (current === undefined) return null;
    return this.showsChildren ? current.id : current.parent;
  });

  /** Ids of the listed branches. */
  readonly ids: readonly number[] = $derived.by(() => this.document.children(this.parent));

  /** Index of the branch that keys act on: the one with the focus, or else the current one. */
  readonly focusedIndex: number = $derived.by(() => {
    const focused = this.focusedId === null ? -1 : this.ids.indexOf(this.focusedId);
    if (focused >= 0) return focused;
    return Math.max(
      0,
      this.ids.findIndex((id) => this.document.currentPath.includes(id)),
    );
  });

  constructor(private readonly document: OpenDocument) {}

  get nSiblings(): number {
    const { currentId } = this.document;
    return currentId === null ? this.document.children(null).length : this.document.siblings(currentId).length;
  }

  get nChildren(): number {
    const { currentId } = this.document;
    return currentId === null ? 0 : this.document.children(currentId).length;
  }

  /** Number of listed branches; a node without siblings has none. */
  get nShown(): number {
    const n = this.ids.length;
    return n === 1 && !this.showsChildren ? 0 : n;
  }

  /** Ids of listed branches that are being written. */
  get running(): number[] {
    return this.ids.filter((id) => this.document.node(id)?.state === "running");
  }

  /** Shows the list that is of interest after the user has gone to another node. */
  follow(): void {
    const { currentId } = this.document;
    this.focusedId = null;
    if (currentId === null) {
      this.showsChildren = false;
      return;
    }
    const children = this.document.children(currentId);
    const isGrowing = children.some((id) => this.document.node(id)?.state === "running");
    this.showsChildren = isGrowing || (children.length > 0 && this.document.siblings(currentId).length <= 1);
  }

  focusIndex(index: number): void {
    const id = this.ids[Math.max(0, Math.min(index, this.ids.length - 1))];
    if (id !== undefined) this.focusedId = id;
  }
}
