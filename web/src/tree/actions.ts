/** Actions of the tree. Those with the scope "tree" act on the row with the focus, the others on the current node. */

import type { Action } from "../actions";
import { showExport } from "../library/library_view.svelte";
import type { OpenDocument } from "../model/document.svelte";
import type { Direction } from "../model/tree_rows";
import type { Workspace } from "../model/workspace.svelte";
import { texts } from "../texts";
import { stepNode } from "./node_moves";
import { treeViewOf, type TreeView } from "./tree_view.svelte";

const titles = texts.tree.actions;

/** A node with its document and the view of its tree. */
interface Target {
  readonly workspace: Workspace;
  readonly doc: OpenDocument;
  readonly view: TreeView;
  readonly id: number;
}

/** Rows that Page Up and Page Down skip. */
const PAGE = 12;

function viewOf(workspace: Workspace): TreeView | null {
  return workspace.document && treeViewOf(workspace.document);
}

function target(workspace: Workspace): Target | null {
  const doc = workspace.document;
  if (!doc) return null;
  const view = treeViewOf(doc);
  const id = view.focusedId;
  return id === null ? null : { workspace, doc, view, id };
}

function inTree(id: string, title: string, keys: string[], run: (view: TreeView) => void): Action {
  return {
    id: `tree.${id}`,
    title,
    group: "tree",
    scope: "tree",
    keys,
    isEnabled: (workspace) => workspace.document !== null,
    run: (workspace) => {
      const view = viewOf(workspace);
      if (view) run(view);
    },
  };
}

function onNode(
  id: string,
  title: string,
  keys: string[],
  run: (target: Target) => unknown,
  isEnabled: (target: Target) => boolean = () => true,
): Action {
  return {
    id: `tree.${id}`,
    title,
    group: "tree",
    scope: "tree",
    keys,
    isEnabled: (workspace) => {
      const found = target(workspace);
      return found !== null && isEnabled(found);
    },
    run: async (workspace) => {
      const found = target(workspace);
      if (found) await run(found);
    },
  };
}

function step(direction: Direction, title: string, key: string): Action {
  return onNode(`move-${direction}`, title, [key], ({ workspace, doc, view }) => stepNode(workspace, doc, view, direction));
}

function expandOrEnter(view: TreeView): void {
  const row = view.rows[view.focusedIndex];
  if (row?.isExpanded === false) view.setExpanded([row.id], true);
  else if (row?.isExpanded === true) view.focusIndex(view.focusedIndex + 1);
}

function collapseOrLeave(view: TreeView): void {
  const row = view.rows[view.focusedIndex];
  if (row?.isExpanded === true && view.filtered === null) view.setExpanded([row.id], false);
  else view.focusParent();
}

function openMenu(id: number, view: TreeView): void {
  const row = document.getElementById(`tree-node-${id}`);
  if (!row) return;
  const { left, bottom } = row.getBoundingClientRect();
  view.menu = { node: id, x: left + 48, y: bottom };
}

function go({ workspace, doc, id }: Target): void {
  doc.go(id);
  // On a narrow screen the tree covers the text.
  workspace.panels.close();
}

async function addChild({ workspace, id }: Target): Promise<void> {
  if ((await workspace.commands.create(id, "")) === null) return;
  workspace.panels.close();
  workspace.editor?.focus();
}

async function copyText({ workspace, doc, id }: Target): Promise<void> {
  try {
    await navigator.clipboard.writeText(doc.node(id)?.text ?? "");
    workspace.notices.show(texts.tree.copied);
  } catch {
    workspace.notices.show(texts.tree.copyFailed);
  }
}

/** Moves a node to the trash. The focus and the current node go to the next sibling, the one before it, or the parent. */
async function trash({ workspace, doc, view, id }: Target): Promise<void> {
  const parent = doc.node(id)?.parent ?? null;
  const siblings = doc.children(parent);
  const index = siblings.indexOf(id);
  const next = siblings[index + 1] ?? siblings[index - 1] ?? parent;
  const wasOnPath = doc.currentPath.includes(id);
  if (!(await workspace.commands.trash(id))) return;
  if (wasOnPath) doc.go(next);
  if (next !== null) view.focus(next);
}

/** Offset of the cursor in a node, if it splits its text. */
function cursorIn({ workspace, doc, id }: Target): number | null {
  const cursor = workspace.editor?.cursor;
  if (!cursor || cursor.node !== id) return null;
  return cursor.offset > 0 && cursor.offset < (doc.node(id)?.text.length ?? 0) ? cursor.offset : null;
}

function canMerge({ doc, id }: Target): boolean {
  const [child, ...others] = doc.allChildren(id).map((each) => doc.node(each));
  const states = [doc.node(id)?.state, child?.state];
  return child !== undefined && others.length === 0 && !child.is_trashed && !states.includes("running");
}

async function split(found: Target): Promise<void> {
  const offset = cursorIn(found);
  if (offset !== null) await found.workspace.commands.split(found.id, offset);
}

/** Goes to the bookmark after or before the current node, in the order of the document. */
function goToBookmark(workspace: Workspace, direction: 1 | -1): void {
  const doc = workspace.document;
  if (!doc) return;
  const all = treeViewOf(doc).bookmarks;
  const index = all.findIndex((each) => each.id === doc.currentId);
  const next = index < 0 ? all.at(direction > 0 ? 0 : -1) : all[(index + direction + all.length) % all.length];
  if (next) doc.go(next.id);
}

function showSection(section: TreeView["section"]) {
  return (workspace: Workspace) => {
    const view = viewOf(workspace);
    if (!view) return;
    view.section = section;
    workspace.panels.show("tree");
  };
}

const hasDocument = (workspace: Workspace) => workspace.document !== null;

export const treeActions: readonly Action[] = [
  inTree("previous", titles.previous, ["ArrowUp"], (view) => view.focusIndex(view.focusedIndex - 1)),
  inTree("next", titles.next, ["ArrowDown"], (view) => view.focusIndex(view.focusedIndex + 1)),
  inTree("collapse", titles.collapse, ["ArrowLeft"], collapseOrLeave),
  inTree("expand", titles.expand, ["ArrowRight"], expandOrEnter),
  inTree("first", titles.first, ["Home"], (view) => view.focusIndex(0)),
  inTree("last", titles.last, ["End"], (view) => view.focusIndex(view.rows.length - 1)),
  inTree("page-up", titles.pageUp, ["PageUp"], (view) => view.focusIndex(view.focusedIndex - PAGE)),
  inTree("page-down", titles.pageDown, ["PageDown"], (view) => view.focusIndex(view.focusedIndex + PAGE)),
  inTree("expand-siblings", titles.expandSiblings, ["*"], (view) => view.expandSiblings()),
  inTree("expand-all", titles.expandAll, [], (view) => view.setAllExpanded(null, true)),
  inTree("collapse-all", titles.collapseAll, [], (view) => view.setAllExpanded(null, false)),
  onNode("go", titles.go, ["Enter"], go),
  onNode("menu", titles.menu, ["Shift+F10", "ContextMenu"], ({ view, id }) => openMenu(id, view)),
  onNode("continue", titles.continue, ["Shift+Enter"], ({ workspace, id }) => workspace.commands.continueFrom(id, {})),
  onNode("add-child", titles.addChild, ["Insert"], addChild),
  onNode("split", titles.split, [], split, (found) => cursorIn(found) !== null),
  onNode("merge", titles.merge, ["Mod+j"], ({ workspace, id }) => workspace.commands.merge(id), canMerge),
  onNode("label", titles.label, ["F2"], ({ view, id }) => void (view.labelled = id)),
  onNode("note", titles.note, ["Shift+F2"], ({ view, id }) => void (view.noted = id)),
  onNode("bookmark", titles.bookmark, ["Mod+b"], ({ workspace, doc, id }) =>
    workspace.commands.setBookmark(id, doc.node(id)?.is_bookmarked !== true),
  ),
  onNode("copy", titles.copy, ["Mod+c"], copyText),
  onNode("export-path", titles.exportPath, [], ({ workspace, doc, id }) => showExport(workspace, doc.id, id)),
  onNode("hoist", titles.hoist, ["Alt+Enter"], ({ view, id }) => view.hoist(id)),
  inTree("unhoist", titles.unhoist, ["Alt+Backspace"], (view) => view.hoist(null)),
  onNode("expand-below", titles.expandBelow, ["Shift+ArrowRight"], ({ view, id }) => view.setAllExpanded(id, true)),
  onNode("collapse-below", titles.collapseBelow, ["Shift+ArrowLeft"], ({ view, id }) => view.setAllExpanded(id, false)),
  step("up", titles.moveUp, "Alt+Shift+ArrowUp"),
  step("down", titles.moveDown, "Alt+Shift+ArrowDown"),
  step("out", titles.moveOut, "Alt+Shift+ArrowLeft"),
  step("in", titles.moveIn, "Alt+Shift+ArrowRight"),
  onNode(
    "resume",
    titles.resume,
    ["F9"],
    ({ workspace, id }) => workspace.commands.resume(id),
    ({ doc, id }) => doc.node(id)?.state === "interrupted",
  ),
  onNode(
    "stop",
    titles.stop,
    [],
    ({ workspace, id }) => workspace.commands.stop([id]),
    ({ doc, id }) => doc.node(id)?.state === "running",
  ),
  onNode("trash", titles.trash, ["Delete"], trash),
  {
    id: "tree.filter",
    title: titles.filter,
    group: "tree",
    keys: ["Mod+Shift+l"],
    isEnabled: hasDocument,
    run: (workspace) => {
      showSection("tree")(workspace);
      requestAnimationFrame(() => document.getElementById("tree-filter")?.focus());
    },
  },
  { id: "tree.chapters", title: titles.showChapters, group: "tree", isEnabled: hasDocument, run: showSection("chapters") },
  { id: "tree.bookmarks", title: titles.showBookmarks, group: "tree", isEnabled: hasDocument, run: showSection("bookmarks") },
  {
    id: "tree.reveal",
    title: titles.showCurrent,
    group: "tree",
    isEnabled: hasDocument,
    run: (workspace) => {
      showSection("tree")(workspace);
      viewOf(workspace)?.revealCurrent();
    },
  },
  {
    id: "tree.next-bookmark",
    title: titles.nextBookmark,
    group: "tree",
    keys: ["Alt+PageDown"],
    isEnabled: hasDocument,
    run: (workspace) => goToBookmark(workspace, 1),
  },
  {
    id: "tree.previous-bookmark",
    title: titles.previousBookmark,
    group: "tree",
    keys: ["Alt+PageUp"],
    isEnabled: hasDocument,
    run: (workspace) => goToBookmark(workspace, -1),
  },
];

/** Actions of the menu of a node. A new group of the menu begins where there is null. */
export const MENU_ACTIONS: readonly (string | null)[] = [
  "tree.go",
  "tree.continue",
  "tree.resume",
  "tree.stop",
  "tree.add-child",
  null,
  "tree.label",
  "tree.note",
  "tree.bookmark",
  null,
  "tree.split",
  "tree.merge",
  "tree.move-up",
  "tree.move-down",
  "tree.move-out",
  "tree.move-in",
  null,
  "tree.copy",
  "tree.export-path",
  "branches.compare",
  "tree.hoist",
  "tree.expand-below",
  "tree.collapse-below",
  null,
  "tree.trash",
];
