/** Actions of branches and tokens. Those with the scope "branches" act on the branch whose card has the focus. */

import { tick } from "svelte";
import type { Action } from "../actions";
import type { OpenDocument } from "../model/document.svelte";
import { tokenInspector } from "../model/token_inspector.svelte";
import { tokenPreferences } from "../model/token_preferences.svelte";
import { tokenStore } from "../model/tokens.svelte";
import type { Workspace } from "../model/workspace.svelte";
import { texts } from "../texts";
import { treeViewOf } from "../tree/tree_view.svelte";
import { branchesViewOf, type BranchesView } from "./branches_view.svelte";
import { cardHost } from "./card_host";
import { appendedTokens, fieldsLike } from "./more_like";
import { forkAtToken } from "./new_branches";

const titles = texts.branches.actions;

/** Branches that Page Up and Page Down skip. */
const PAGE = 5;

/** The branch that an action is about. */
interface Target {
  readonly workspace: Workspace;
  readonly doc: OpenDocument;
  readonly view: BranchesView;
  readonly id: number;
}

function target(workspace: Workspace): Target | null {
  const { document: doc } = workspace;
  const view = branchesViewOf(workspace);
  const id = view?.ids[view.focusedIndex];
  return doc === null || view === null || id === undefined ? null : { workspace, doc, view, id };
}

function onBranch(
  id: string,
  title: string,
  keys: string[],
  run: (target: Target) => unknown,
  isEnabled: (target: Target) => boolean = () => true,
): Action {
  return {
    id: `branches.${id}`,
    title,
    group: "branches",
    scope: "branches",
    keys,
    isEnabled: (workspace) => {
      const found = target(workspace);
      return found !== null && isEnabled(found);
    },
    run: (workspace) => {
      const found = target(workspace);
      return found === null ? undefined : run(found);
    },
  };
}

function step(id: string, title: string, key: string, indexOf: (index: number, n: number) => number): Action {
  return onBranch(id, title, [key], ({ view }) => view.focusIndex(indexOf(view.focusedIndex, view.ids.length)));
}

const isRunning = ({ doc, id }: Target) => doc.node(id)?.state === "running";
const isGenerated = ({ doc, id }: Target) => doc.node(id)?.model != null;

/** Goes to a branch, and shows the branches beside it. The cursor is at its end, so that typing continues it. */
async function keep({ workspace, doc, view, id }: Target): Promise<void> {
  doc.go(id);
  view.showsChildren = false;
  view.focusedId = id;
  workspace.panels.close();
  workspace.editor?.focus();
  await tick();
  workspace.editor?.moveTo(null);
}

function goToParent({ doc, view, id }: Target): void {
  const parent = doc.node(id)?.parent;
  if (parent == null) return;
  doc.go(parent);
  view.showsChildren = false;
  view.focusedId = parent;
}

function showChildren({ doc, view, id }: Target): void {
  doc.go(id);
  if (doc.children(id).length === 0) return;
  view.showsChildren = true;
  view.focusedId = doc.lastVisitedChild(id) ?? null;
}

/** Moves a branch to the trash; the focus goes to the next one, or to the text if there is none. */
async function prune({ workspace, doc, view, id }: Target): Promise<void> {
  const index = view.ids.indexOf(id);
  const next = view.ids[index + 1] ?? view.ids[index - 1] ?? null;
  const wasOnPath = doc.currentPath.includes(id);
  if (!(await workspace.commands.trash(id))) return;
  if (wasOnPath && next !== null) doc.go(next);
  view.focusedId = next;
  await tick();
  const { activeElement } = document;
  // The user may have gone on meanwhile.
  if (activeElement !== document.body && !activeElement?.closest("[data-scope='branches']")) return;
  if (next === null) {
    if (workspace.panels.drawer === null) workspace.editor?.focus();
    return;
  }
  view.focusedId = next;
  await tick();
  cardHost.focus();
}

/** Continues the parent with the parameters of a branch. */
async function moreLikeThis({ workspace, doc, view, id }: Target): Promise<void> {
  const node = doc.node(id);
  if (node?.parent == null) return;
  let append: number[] = [];
  try {
    const tokens = await tokenStore(workspace)?.load(id);
    if (tokens?.isCurrent) append = appendedTokens(tokens);
  } catch (error) {
    workspace.notices.showError(error, texts.branches.more);
    return;
  }
  const n = workspace.preferences.get("branchCount");
  const made = await workspace.commands.continueFrom(node.parent, {
    fields: fieldsLike(node, n),
    follow: false,
    ...(append.length > 0 && { append }),
  });
  if (made[0] !== undefined) view.focusedId = made[0];
}

/** Inspects the last token of a branch. */
async function inspectBranch({ workspace, doc, id }: Target): Promise<void> {
  const node = doc.node(id);
  if (node === undefined) return;
  const isShown = await tokenInspector(workspace).show(cardHost, id, Math.max(0, node.text.length - 1), "pinned");
  if (!isShown) workspace.notices.show(texts.tokens.unknown);
}

/** Returns the node that an action is about which works in several places: that with the focus, or the current one. */
function nodeAtFocus(workspace: Workspace): number | null {
  const { document: doc } = workspace;
  if (doc === null) return null;
  const scope = document.activeElement?.closest<HTMLElement>("[data-scope]")?.dataset.scope;
  if (scope === "tree") return treeViewOf(doc).focusedId;
  if (scope === "branches") return target(workspace)?.id ?? null;
  return doc.currentId;
}

function mark(workspace: Workspace): void {
  const view = branchesViewOf(workspace);
  const node = nodeAtFocus(workspace);
  if (view === null || node === null) return;
  view.markedId = view.markedId === node ? null : node;
  if (view.markedId !== null) workspace.notices.show(texts.branches.marked);
}

/** Compares a branch with the marked one, with the current one, or with one beside it. */
function compare(workspace: Workspace): void {
  const { document: doc } = workspace;
  const view = branchesViewOf(workspace);
  const node = nodeAtFocus(workspace);
  if (doc === null || view === null || node === null) return;
  const siblings = doc.siblings(node);
  const index = siblings.indexOf(node);
  const onPath = siblings.find((id) => doc.currentPath.includes(id));
  const candidates = [view.markedId, onPath ?? null, siblings[index + 1] ?? null, siblings[index - 1] ?? null];
  const other = candidates.find((id) => id !== null && id !== node && doc.node(id) !== undefined);
  if (other == null) workspace.notices.show(texts.branches.nothingToCompare);
  else view.comparison = { first: other, second: node };
}

async function inspectAtCursor(workspace: Workspace): Promise<void> {
  const { editor } = workspace;
  const cursor = editor?.cursor;
  const inspector = tokenInspector(workspace);
  if (cursor == null || inspector.textHost === null) {
    workspace.notices.show(texts.tokens.noToken);
    return;
  }
  const { node, offset } = cursor;
  const length = workspace.document?.node(node)?.text.length ?? 0;
  // At the end of a text, its last token is meant.
  const isShown = await inspector.show(inspector.textHost, node, offset >= length ? Math.max(0, length - 1) : offset, "pinned");
  if (!isShown && inspector.popover === null) workspace.notices.show(texts.tokens.noToken);
}

function inToken(
  id: string,
  title: string,
  keys: string[],
  run: (workspace: Workspace) => unknown,
  isEnabled = hasToken,
): Action {
  return { id: `tokens.${id}`, title, group: "branches", scope: "token", keys, isEnabled, run };
}

const hasDocument = (workspace: Workspace) => workspace.document !== null;
const hasToken = (workspace: Workspace) => tokenInspector(workspace).token !== null;

function toggle(key: "isMarked" | "isShownOnHover", on: string, off: string): (workspace: Workspace) => void {
  return (workspace) => {
    tokenPreferences.set({ [key]: !tokenPreferences[key] });
    workspace.notices.show(tokenPreferences[key] ? on : off);
  };
}

const chooseActions = Array.from({ length: 9 }, (_, index) =>
  onBranch(
    `choose-${index + 1}`,
    titles.choose(index + 1),
    [String(index + 1)],
    ({ view, ...rest }) => keep({ ...rest, view, id: view.ids[index]! }),
    ({ view }) => index < view.ids.length,
  ),
);

export const siblingsActions: readonly Action[] = [
  step("previous", titles.previous, "ArrowUp", (index) => index - 1),
  step("next", titles.next, "ArrowDown", (index) => index + 1),
  step("first", titles.first, "Home", () => 0),
  step("last", titles.last, "End", (_, n) => n - 1),
  step("page-up", titles.pageUp, "PageUp", (index) => index - PAGE),
  step("page-down", titles.pageDown, "PageDown", (index) => index + PAGE),
  onBranch("parent", titles.parent, ["ArrowLeft"], goToParent),
  onBranch("child", titles.child, ["ArrowRight"], showChildren),
  onBranch("keep", titles.keep, ["Enter"], keep),
  ...chooseActions,
  onBranch("stop", titles.stop, ["s"], ({ workspace, id }) => workspace.commands.stop([id]), isRunning),
  {
    ...onBranch("stop-all", titles.stopAll, ["Shift+s"], ({ workspace, view }) => workspace.commands.stop(view.running)),
    isEnabled: (workspace) => (branchesViewOf(workspace)?.running.length ?? 0) > 0,
  },
  onBranch(
    "resume",
    titles.resume,
    ["r"],
    ({ workspace, id }) => workspace.commands.resume(id),
    ({ doc, id }) => doc.node(id)?.state === "interrupted",
  ),
  onBranch("prune", titles.prune, ["Delete", "x"], prune),
  onBranch("more", titles.more, ["m"], moreLikeThis, (found) => isGenerated(found) && found.doc.node(found.id)?.parent != null),
  onBranch("fork", titles.fork, ["f", "t"], inspectBranch, isGenerated),
  onBranch("bookmark", titles.bookmark, ["b"], ({ workspace, doc, id }) =>
    workspace.commands.setBookmark(id, doc.node(id)?.is_bookmarked !== true),
  ),
  { id: "branches.compare", title: titles.compare, group: "branches", keys: ["Alt+c"], isEnabled: hasDocument, run: compare },
  { id: "branches.mark", title: titles.mark, group: "branches", keys: ["Alt+Shift+c"], isEnabled: hasDocument, run: mark },
  {
    id: "tokens.inspect",
    title: texts.tokens.inspect,
    group: "writing",
    scope: "text",
    keys: ["Alt+Enter"],
    run: inspectAtCursor,
  },
  {
    id: "tokens.toggle-marks",
    title: texts.tokens.toggleMarks,
    group: "view",
    keys: ["Alt+p"],
    run: toggle("isMarked", texts.tokens.marksOn, texts.tokens.marksOff),
  },
  {
    id: "tokens.toggle-hover",
    title: texts.tokens.toggleHover,
    group: "view",
    keys: ["Alt+Shift+p"],
    run: toggle("isShownOnHover", texts.tokens.hoverOn, texts.tokens.hoverOff),
  },
  inToken("previous", texts.tokens.previous, ["ArrowLeft"], (workspace) => tokenInspector(workspace).move(-1)),
  inToken("next", texts.tokens.next, ["ArrowRight"], (workspace) => tokenInspector(workspace).move(1)),
  inToken("fork", texts.tokens.forkHelp, ["f"], forkAtToken, (workspace) => tokenInspector(workspace).canFork),
  inToken(
    "close",
    texts.tokens.close,
    ["Escape"],
    (workspace) => tokenInspector(workspace).close(),
    (workspace) => tokenInspector(workspace).popover !== null,
  ),
];
