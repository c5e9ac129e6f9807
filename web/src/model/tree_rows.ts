/** Rows of the tree: which nodes are shown, where they stand, and where a move takes them. No I/O here. */

import { fold } from "./fold";

/** The fields of a node that the tree shows. */
export interface TreeNode {
  readonly id: number;
  readonly parent: number | null;
  readonly text: string;
  readonly label: string;
  readonly note: string;
  readonly state: "done" | "running" | "interrupted";
  readonly is_bookmarked: boolean;
}

/** A tree of nodes. Nodes in the trash and their descendants are not part of it. */
export interface TreeSource {
  node(id: number): TreeNode | undefined;
  /** Children in their order; those of null are at the top. */
  children(id: number | null): readonly number[];
}

export interface TreeRow {
  readonly id: number;
  /** Depth in the tree that is shown, from 1. */
  readonly level: number;
  /** Columns of indentation. An only child stands below its parent, so that a long text without branches takes no width. */
  readonly indent: number;
  /** True if the row continues the row above: it is the only child of that node. */
  readonly isContinuation: boolean;
  /** Position among its siblings that are shown, from 1. */
  readonly position: number;
  readonly nSiblings: number;
  /** Null for a node without children. */
  readonly isExpanded: boolean | null;
  /** Descendants that a collapsed row hides. */
  readonly nHidden: number;
}

export interface RowOptions {
  /** Root of the tree that is shown; null for all of the document. */
  readonly top: number | null;
  readonly isExpanded: (id: number) => boolean;
  readonly nDescendants: (id: number) => number;
  /** Nodes to show, with all their ancestors; null for all. Rows are then expanded. */
  readonly shown: ReadonlySet<number> | null;
}

/** Returns the rows from top to bottom. O(rows), without recursion, since a chain may have 100,000 nodes. */
export function treeRows(source: TreeSource, options: RowOptions): TreeRow[] {
  const { top, isExpanded, nDescendants, shown } = options;
  const visible = (ids: readonly number[]) => (shown ? ids.filter((id) => shown.has(id)) : ids);
  const rows: TreeRow[] = [];
  const stack: { ids: readonly number[]; next: number; level: number; indent: number; isFork: boolean }[] = [];
  const roots = visible(top === null ? source.children(null) : [top]);
  stack.push({ ids: roots, next: 0, level: 1, indent: 0, isFork: true });
  for (;;) {
    const siblings = stack.at(-1);
    if (!siblings) return rows;
    const id = siblings.ids[siblings.next];
    if (id === undefined) {
      stack.pop();
      continue;
    }
    siblings.next += 1;
    const children = visible(source.children(id));
    const expanded = children.length === 0 ? null : shown !== null || isExpanded(id);
    rows.push({
      id,
      level: siblings.level,
      indent: siblings.indent,
      isContinuation: !siblings.isFork,
      position: siblings.next,
      nSiblings: siblings.ids.length,
      isExpanded: expanded,
      nHidden: expanded === false ? nDescendants(id) : 0,
    });
    if (expanded !== true) continue;
    const isFork = children.length > 1;
    stack.push({ ids: children, next: 0, level: siblings.level + 1, indent: siblings.indent + (isFork ? 1 : 0), isFork });
  }
}

/** Returns the nodes below a node and the node itself, or those of the whole document, each before its children. */
export function documentOrder(source: TreeSource, top: number | null = null): number[] {
  const order: number[] = [];
  const stack = top === null ? [...source.children(null)].reverse() : [top];
  for (let id = stack.pop(); id !== undefined; id = stack.pop()) {
    order.push(id);
    const children = source.children(id);
    for (let nth = children.length - 1; nth >= 0; nth -= 1) stack.push(children[nth] as number);
  }
  return order;
}

/** Returns the number of descendants of each node that has any. */
export function descendantCounts(source: TreeSource): Map<number, number> {
  const counts = new Map<number, number>();
  const order = documentOrder(source);
  for (let nth = order.length - 1; nth >= 0; nth -= 1) {
    const id = order[nth] as number;
    const parent = source.node(id)?.parent ?? null;
    if (parent !== null) counts.set(parent, (counts.get(parent) ?? 0) + (counts.get(id) ?? 0) + 1);
  }
  return counts;
}

/** Returns the path to a node, from the top to the node itself. */
export function pathTo(source: TreeSource, id: number | null): number[] {
  const path: number[] = [];
  for (let each = id; each !== null; each = source.node(each)?.parent ?? null) path.push(each);
  return path.reverse();
}

/** Columns of indentation to leave out, so that the rows of a window stay near the left edge. */
export function indentBase(rows: readonly TreeRow[], first: number, end: number): number {
  let least = Number.POSITIVE_INFINITY;
  for (const row of rows.slice(first, end)) least = Math.min(least, row.indent);
  // In steps, so that rows do not shift with each row that is scrolled.
  return Number.isFinite(least) ? Math.max(0, Math.floor(least / INDENT_STEP) * INDENT_STEP) : 0;
}

const INDENT_STEP = 4;

const TITLE_LENGTH = 120;

/** Returns the label, or the beginning of the text on one line. */
export function rowTitle(node: TreeNode): string {
  if (node.label) return node.label;
  // White space may be long, but what precedes the first letters is rarely more.
  return node.text
    .slice(0, 4 * TITLE_LENGTH)
    .replace(/\s+/g, " ")
    .trim()
    .slice(0, TITLE_LENGTH);
}

/** Characters of a title that fit a row of usual width, about. */
const ROW_LENGTH = 24;
/** Siblings to which a row is compared, and characters of their texts. */
const MAX_COMPARED = 16;
const MAX_COMPARED_CHARACTERS = 2000;

/**
 * Returns a title that shows where a node differs: if a sibling begins alike, it starts at the word of the first difference.
 *
 * @param siblings The node and its siblings.
 */
export function distinctTitle(source: TreeSource, node: TreeNode, siblings: readonly number[]): string {
  const title = rowTitle(node);
  if (node.label || siblings.length < 2 || title.length < ROW_LENGTH) return title;
  const text = oneLine(node);
  const index = siblings.indexOf(node.id);
  const first = Math.max(0, index - MAX_COMPARED / 2);
  let common = 0;
  for (const id of siblings.slice(first, first + MAX_COMPARED)) {
    const other = id === node.id ? undefined : source.node(id);
    if (other && !other.label) common = Math.max(common, commonLength(text, oneLine(other)));
  }
  // What differs within the visible part needs no help, and nothing is left of equal texts.
  if (common < ROW_LENGTH || common >= text.length) return title;
  const start = text.lastIndexOf(" ", common) + 1;
  return start > 0 ? `… ${text.slice(start, start + TITLE_LENGTH)}` : title;
}

function oneLine(node: TreeNode): string {
  return node.text.slice(0, MAX_COMPARED_CHARACTERS).replace(/\s+/g, " ").trim();
}

function commonLength(one: string, other: string): number {
  let length = 0;
  while (length < one.length && one[length] === other[length]) length += 1;
  return length;
}

/** Classes of nodes that a filter can leave. */
export interface Filter {
  readonly query: string;
  readonly kind: "all" | "bookmarked" | "labelled" | "noted" | "running" | "interrupted";
}

export const NO_FILTER: Filter = { query: "", kind: "all" };

export function isActive(filter: Filter): boolean {
  return filter.query.trim() !== "" || filter.kind !== "all";
}

export function matchesFilter(node: TreeNode, filter: Filter): boolean {
  return isOfKind(node, filter.kind) && matchesQuery(node, fold(filter.query.trim()));
}

function isOfKind(node: TreeNode, kind: Filter["kind"]): boolean {
  switch (kind) {
    case "all":
      return true;
    case "bookmarked":
      return node.is_bookmarked;
    case "labelled":
      return node.label !== "";
    case "noted":
      return node.note !== "";
    default:
      return node.state === kind;
  }
}

function matchesQuery(node: TreeNode, folded: string): boolean {
  return folded === "" || [node.label, node.note, node.text].some((each) => each !== "" && fold(each).includes(folded));
}

export interface Filtered {
  /** Nodes that match. */
  readonly matches: ReadonlySet<number>;
  /** Nodes that match, with all their ancestors. */
  readonly shown: ReadonlySet<number>;
}

/** Returns the nodes of a tree that a filter leaves. */
export function filterNodes(source: TreeSource, top: number | null, filter: Filter): Filtered {
  const matches = new Set<number>();
  const shown = new Set<number>();
  for (const id of documentOrder(source, top)) {
    const node = source.node(id);
    if (!node || !matchesFilter(node, filter)) continue;
    matches.add(id);
    for (let each: number | null = id; each !== null && !shown.has(each); each = source.node(each)?.parent ?? null) {
      shown.add(each);
      if (each === top) break;
    }
  }
  return { matches, shown };
}

/** A labelled or bookmarked node in a list to jump to. */
export interface Landmark {
  readonly id: number;
  readonly title: string;
  readonly isBookmarked: boolean;
}

/** Returns labelled nodes in the order of the document. */
export function chapters(source: TreeSource): Landmark[] {
  return landmarks(source, (node) => node.label !== "");
}

/** Returns bookmarked nodes in the order of the document. */
export function bookmarks(source: TreeSource): Landmark[] {
  return landmarks(source, (node) => node.is_bookmarked);
}

function landmarks(source: TreeSource, isOne: (node: TreeNode) => boolean): Landmark[] {
  return documentOrder(source).flatMap((id) => {
    const node = source.node(id);
    return node && isOne(node) ? [{ id, title: rowTitle(node), isBookmarked: node.is_bookmarked }] : [];
  });
}

// Keys

/** Returns the index of the row of a parent, or -1. */
export function parentIndex(rows: readonly TreeRow[], index: number): number {
  const level = rows[index]?.level ?? 0;
  for (let nth = index - 1; nth >= 0; nth -= 1) if ((rows[nth] as TreeRow).level < level) return nth;
  return -1;
}

/**
 * Returns the next row whose title begins with the typed characters, or -1.
 * The search begins at the current row, or after it for a single character, so that a repeated key goes on.
 */
export function typeAhead(rows: readonly TreeRow[], title: (id: number) => string, current: number, typed: string): number {
  const wanted = fold(typed);
  const first = [...typed].length === 1 ? 1 : 0;
  for (let nth = first; nth < rows.length + first; nth += 1) {
    const index = (Math.max(current, 0) + nth) % rows.length;
    if (fold(title((rows[index] as TreeRow).id)).startsWith(wanted)) return index;
  }
  return -1;
}

// Moves

/** Where a node moves: `index` counts its new siblings that are not in the trash, without the node itself. */
export interface Destination {
  readonly parent: number | null;
  readonly index: number;
}

export type Direction = "up" | "down" | "out" | "in";

/**
 * Returns where a move by one step takes a node, or null if there is no such place.
 * Out: after its parent. In: the last child of the sibling before it.
 */
export function stepDestination(source: TreeSource, id: number, direction: Direction): Destination | null {
  const node = source.node(id);
  if (!node) return null;
  const siblings = source.children(node.parent);
  const index = siblings.indexOf(id);
  switch (direction) {
    case "up":
      return index > 0 ? { parent: node.parent, index: index - 1 } : null;
    case "down":
      return index < siblings.length - 1 ? { parent: node.parent, index: index + 1 } : null;
    case "out": {
      if (node.parent === null) return null;
      const above = source.node(node.parent)?.parent ?? null;
      return { parent: above, index: source.children(above).indexOf(node.parent) + 1 };
    }
    case "in": {
      const before = siblings[index - 1];
      return before === undefined ? null : { parent: before, index: source.children(before).length };
    }
  }
}

/** Returns whether a node is another node or one of its descendants. */
export function isWithin(source: TreeSource, id: number | null, ancestor: number): boolean {
  for (let each = id; each !== null; each = source.node(each)?.parent ?? null) if (each === ancestor) return true;
  return false;
}

/** Side of a row on which a node is dropped. */
export type Zone = "before" | "into" | "after";

/** Returns the zone at a height of a row: the outer quarters are between rows. */
export function dropZone(offset: number, height: number): Zone {
  if (offset < height / 4) return "before";
  return offset > (3 * height) / 4 ? "after" : "into";
}

export type Drop =
  | { readonly kind: "move"; readonly destination: Destination }
  /** The node would be below itself. */
  | { readonly kind: "refused" }
  /** The node is there already. */
  | { readonly kind: "same" };

/** Returns what a drop of a node on a row does. After an expanded row means: before its first child. */
export function dropDestination(source: TreeSource, dragged: number, row: TreeRow, zone: Zone): Drop {
  const target = source.node(row.id);
  const node = source.node(dragged);
  if (!target || !node) return { kind: "same" };
  const isBeforeChildren = zone === "after" && row.isExpanded === true;
  const parent = zone === "into" || isBeforeChildren ? row.id : target.parent;
  if (isWithin(source, parent, dragged)) return row.id === dragged ? { kind: "same" } : { kind: "refused" };
  const siblings = source.children(parent);
  const others = siblings.filter((each) => each !== dragged);
  let index = 0;
  if (zone === "into") index = others.length;
  else if (!isBeforeChildren) {
    if (row.id === dragged) return { kind: "same" };
    index = others.indexOf(row.id) + (zone === "after" ? 1 : 0);
  }
  if (node.parent === parent && siblings.indexOf(dragged) === index) return { kind: "same" };
  return { kind: "move", destination: { parent, index } };
}

/** Returns the index among all siblings, with those in the trash, of an index among those that are shown. */
export function indexAmongAll(all: readonly number[], shown: readonly number[], moved: number, index: number): number {
  const others = all.filter((each) => each !== moved);
  const next = shown.filter((each) => each !== moved)[index];
  return next === undefined ? others.length : others.indexOf(next);
}
