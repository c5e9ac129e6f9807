/** What the tree of one document shows: collapsed nodes, hoisting, filter, and the row with the focus. */

import { untrack } from "svelte";

import type { NodeRecord } from "../api/types";
import { oncePer } from "../model/once_per.svelte";
import {
  bookmarks,
  chapters,
  descendantCounts,
  documentOrder,
  filterNodes,
  isActive,
  NO_FILTER,
  parentIndex,
  pathTo,
  rowTitle,
  treeRows,
  typeAhead,
  type Filter,
  type Filtered,
  type Landmark,
  type TreeRow,
} from "../model/tree_rows";

/** The part of an open document that the tree reads. */
export interface TreeDocument {
  readonly id: string;
  node(id: number): NodeRecord | undefined;
  children(id: number | null): readonly number[];
  readonly structureVersion: number;
  readonly currentId: number | null;
  readonly currentPath: readonly number[];
}

/** Documents that have at most this many nodes when they are opened are expanded; in larger ones, only the path to the current node. */
const EXPANDED_NODES = 300;

/** Expanded and collapsed nodes that are kept for a reload. */
const MAX_KEPT = 5000;

/** Time in which typed characters count as one word, in milliseconds. */
const TYPING_MS = 700;

/** Menu of a node at a position of the window, in CSS pixels. */
export interface OpenMenu {
  readonly node: number;
  readonly x: number;
  readonly y: number;
}

/** What is kept for a reload of the page. */
interface KeptView {
  hoisted: number | null;
  expansions: [number, boolean][];
}

export type TreeSection = "tree" | "chapters" | "bookmarks" | "trash";

export class TreeView {
  section: TreeSection = $state("tree");
  /** Root of the rows that are shown; null shows the whole document. */
  private hoisted: number | null = $state(null);
  filter: Filter = $state.raw(NO_FILTER);
  /** Node of the row with the focus. */
  private focused: number | null = $state(null);
  /** Node whose label is being edited. */
  labelled: number | null = $state(null);
  /** Node whose note is being edited. */
  noted: number | null = $state(null);
  /** Node whose menu is open, and where. */
  menu: OpenMenu | null = $state.raw(null);
  /** Nodes that the user expanded or collapsed. */
  private expansions: ReadonlyMap<number, boolean> = $state.raw(new Map());
  private wasSmall: boolean | null = null;
  private typed = "";
  private typedAt = 0;

  constructor(
    private readonly document: TreeDocument,
    private readonly storage: Pick<Storage, "getItem" | "setItem"> | null = null,
  ) {
    this.load();
  }

  private readonly counts = $derived.by(() => this.ofStructure(() => descendantCounts(this.document)));
  private readonly isSmall = $derived.by(() => this.ofStructure(() => this.startsExpanded()));
  private readonly onPath = $derived.by(() => new Set(this.document.currentPath));

  readonly chapters: Landmark[] = $derived.by(() => this.ofStructure(() => chapters(this.document)));
  readonly bookmarks: Landmark[] = $derived.by(() => this.ofStructure(() => bookmarks(this.document)));

  /** Root of the rows that are shown, while it exists. */
  readonly top: number | null = $derived.by(() => {
    const { hoisted } = this;
    return hoisted !== null && this.ofStructure(() => this.isShown(hoisted)) ? hoisted : null;
  });

  /** Nodes that the filter leaves; null without a filter. */
  readonly filtered: Filtered | null = $derived.by(() => {
    const { filter, top } = this;
    return isActive(filter) ? this.ofStructure(() => filterNodes(this.document, top, filter)) : null;
  });

  readonly rows: TreeRow[] = $derived.by(() => {
    const { top, counts, expansions, isSmall } = this;
    const shown = this.filtered?.shown ?? null;
    const isExpanded = (id: number) => expansions.get(id) ?? isSmall;
    const nDescendants = (id: number) => counts.get(id) ?? 0;
    return this.ofStructure(() => treeRows(this.document, { top, isExpanded, nDescendants, shown }));
  });

  private readonly indices = $derived(new Map(this.rows.map((row, index) => [row.id, index])));

  /** Index of the row with the focus; -1 without rows. A hidden node gives the focus to its closest ancestor. */
  readonly focusedIndex: number = $derived.by(() => {
    const wanted = this.focused ?? this.document.currentId;
    return Math.max(this.closestIndex(wanted), this.rows.length > 0 ? 0 : -1);
  });

  get focusedId(): number | null {
    return this.rows[this.focusedIndex]?.id ?? null;
  }

  indexOf(id: number): number {
    return this.indices.get(id) ?? -1;
  }

  isOnPath(id: number): boolean {
    return this.onPath.has(id);
  }

  /** Gives the focus to a node, and shows its row. */
  focus(id: number): void {
    this.focused = id;
    this.reveal(id);
  }

  /** Gives the focus to a row that is shown. */
  focusIndex(index: number): void {
    const row = this.rows[Math.max(0, Math.min(index, this.rows.length - 1))];
    if (row) this.focused = row.id;
  }

  /** Shows the row of the current node, and those of its children, unless the user collapsed it. */
  revealCurrent(): void {
    const { currentId } = this.document;
    this.focused = null;
    if (currentId === null) return;
    this.reveal(currentId);
    if (!this.expansions.has(currentId)) this.setExpanded([currentId], true);
  }

  /** Expands all ancestors of a node, and shows all of the document if the node is not below the hoisted one. */
  reveal(id: number): void {
    const path = untrack(() => pathTo(this.document, id));
    if (this.hoisted !== null && !path.includes(this.hoisted)) this.hoisted = null;
    const collapsed = path.slice(0, -1).filter((each) => !this.isExpanded(each));
    if (collapsed.length > 0) this.setExpanded(collapsed, true);
  }

  setExpanded(ids: readonly number[], isExpanded: boolean): void {
    const expansions = new Map(this.expansions);
    for (const id of ids) expansions.set(id, isExpanded);
    this.expansions = expansions;
    this.save();
  }

  toggle(id: number): void {
    const row = this.rows[this.indexOf(id)];
    if (row && row.isExpanded !== null) this.setExpanded([id], !row.isExpanded);
  }

  /** Expands or collapses a node and all below. */
  setAllExpanded(id: number | null, isExpanded: boolean): void {
    const ids = untrack(() => documentOrder(this.document, id).filter((each) => this.document.children(each).length > 0));
    this.setExpanded(ids, isExpanded);
  }

  /** Expands the siblings of the focused node, as `*` does in trees. */
  expandSiblings(): void {
    const id = this.focusedId;
    const parent = id === null ? null : (untrack(() => this.document.node(id)?.parent) ?? null);
    this.setExpanded(
      untrack(() => this.document.children(parent)),
      true,
    );
  }

  hoist(id: number | null): void {
    this.hoisted = id;
    if (id !== null) this.setExpanded([id], true);
    else this.save();
  }

  /** Moves the focus to the next row whose title begins with what was typed. Returns whether there is one. */
  typeCharacter(character: string, now: number): boolean {
    this.typed = now - this.typedAt < TYPING_MS ? this.typed + character : character;
    this.typedAt = now;
    // A repeated character goes on to the next row.
    const wanted = [...this.typed].every((each) => each === character) ? character : this.typed;
    const index = untrack(() => typeAhead(this.rows, (id) => this.title(id), this.focusedIndex, wanted));
    if (index >= 0) this.focusIndex(index);
    return index >= 0;
  }

  /** Returns whether a space would continue a word that is being typed. */
  isTyping(now: number): boolean {
    return this.typed !== "" && now - this.typedAt < TYPING_MS;
  }

  focusParent(): void {
    const index = parentIndex(this.rows, this.focusedIndex);
    if (index >= 0) this.focusIndex(index);
  }

  private title(id: number): string {
    const node = this.document.node(id);
    return node ? rowTitle(node) : "";
  }

  private isExpanded(id: number): boolean {
    return this.expansions.get(id) ?? this.isSmall;
  }

  /** Decides once, with the first nodes, so that a document that grows does not collapse. */
  private startsExpanded(): boolean {
    const nNodes = documentOrder(this.document).length;
    if (nNodes > 0) this.wasSmall ??= nNodes <= EXPANDED_NODES;
    return this.wasSmall ?? true;
  }

  private get key(): string {
    return `weft.tree.${this.document.id}`;
  }

  private load(): void {
    try {
      const { hoisted, expansions } = JSON.parse(this.storage?.getItem(this.key) ?? "{}") as Partial<KeptView>;
      if (typeof hoisted === "number") this.hoisted = hoisted;
      if (Array.isArray(expansions)) this.expansions = new Map(expansions);
    } catch {
      // What another version kept is not needed.
    }
  }

  private save(): void {
    const expansions = [...this.expansions].slice(-MAX_KEPT);
    try {
      this.storage?.setItem(this.key, JSON.stringify({ hoisted: this.hoisted, expansions } satisfies KeptView));
    } catch {
      // A full store only costs the expanded rows after a reload.
    }
  }

  private isShown(id: number): boolean {
    return pathTo(this.document, id).every((each) => this.document.node(each)?.is_trashed === false);
  }

  private closestIndex(id: number | null): number {
    for (let each = id; each !== null; each = untrack(() => this.document.node(each as number)?.parent) ?? null) {
      const index = this.indices.get(each);
      if (index !== undefined) return index;
    }
    return -1;
  }

  /** Reads the document as a whole: what it returns depends on the structure, not on each of 100,000 nodes. */
  private ofStructure<Result>(read: () => Result): Result {
    void this.document.structureVersion;
    return untrack(read);
  }
}

/** Returns the view of an open document, which lasts as long as the document is open. */
export const treeViewOf: (document: TreeDocument) => TreeView = oncePer((document) => new TreeView(document, sessionStorage));
