import { tick } from "svelte";
import type { Action } from "../actions";
import { NARROW } from "../model/panels.svelte";
import type { Workspace } from "../model/workspace.svelte";
import { texts } from "../texts";

const titles = texts.actions;

/** Actions of writing, and of moving between branches, which also work while the text has the focus. */
export const editorActions: readonly Action[] = [
  {
    id: "text.continue",
    title: titles.continue,
    group: "writing",
    keys: ["Mod+Enter"],
    isEnabled: hasText,
    run: (workspace) => continueText(workspace),
  },
  {
    id: "text.continueOnce",
    title: titles.continueOnce,
    group: "writing",
    keys: ["Mod+Shift+Enter"],
    isEnabled: hasText,
    run: (workspace) => continueText(workspace, 1),
  },
  {
    id: "text.continueAtCursor",
    title: titles.continueAtCursor,
    group: "writing",
    keys: ["Alt+Shift+Enter"],
    isEnabled: hasText,
    run: continueAtCursor,
  },
  {
    id: "text.stopAll",
    title: titles.stopAll,
    group: "writing",
    keys: ["Mod+."],
    isEnabled: ({ document }) => (document?.runningIds.size ?? 0) > 0,
    run: ({ commands }) => commands.stopAll(),
  },
  {
    id: "text.resumeAll",
    title: titles.resumeAll,
    group: "writing",
    keys: ["Alt+r"],
    isEnabled: ({ document }) => (document?.interruptedIds.length ?? 0) > 0,
    run: ({ commands }) => commands.resumeAll(),
  },
  {
    id: "text.previousSibling",
    title: titles.previousSibling,
    group: "moving",
    keys: ["Alt+ArrowUp"],
    isEnabled: hasCurrent,
    run: moving((workspace) => goSibling(workspace, -1)),
  },
  {
    id: "text.nextSibling",
    title: titles.nextSibling,
    group: "moving",
    keys: ["Alt+ArrowDown"],
    isEnabled: hasCurrent,
    run: moving((workspace) => goSibling(workspace, 1)),
  },
  {
    id: "text.parent",
    title: titles.parent,
    group: "moving",
    keys: ["Alt+ArrowLeft"],
    isEnabled: hasCurrent,
    run: moving(goParent),
  },
  {
    id: "text.child",
    title: titles.child,
    group: "moving",
    keys: ["Alt+ArrowRight"],
    isEnabled: hasChild,
    run: moving(goChild),
  },
  { id: "text.top", title: titles.top, group: "moving", keys: ["Alt+Home"], isEnabled: hasCurrent, run: moving(goTop) },
  {
    id: "text.deepest",
    title: titles.deepest,
    group: "moving",
    keys: ["Alt+End"],
    isEnabled: hasChild,
    run: moving(goDeepest),
  },
];

function hasText({ typing }: Workspace): boolean {
  return (typing?.segments.length ?? 0) > 0;
}

function hasCurrent({ document }: Workspace): boolean {
  return document !== null && document.currentId !== null;
}

function hasChild({ document }: Workspace): boolean {
  return document !== null && document.lastVisitedChild(document.currentId) !== undefined;
}

/** Returns an action that moves from the shown node, after typed text has become a node. */
function moving(go: (workspace: Workspace) => void): (workspace: Workspace) => Promise<void> {
  return async (workspace) => {
    if (workspace.typing?.state === "unsaved") await workspace.typing.flush();
    if (workspace.document !== null) go(workspace);
  };
}

/** Continues the shown text with branches: with the number of the preferences unless one is given. */
async function continueText(workspace: Workspace, n?: number): Promise<void> {
  const { notices, commands } = workspace;
  if (!(await isStored(workspace))) return;
  const node = workspace.document?.currentId ?? null;
  if (node === null) notices.show(texts.editor.nothingToContinue);
  else showBranches(workspace, await commands.continueFrom(node, { n }));
}

/** Continues the text up to the cursor; what follows it stays as a branch beside the new ones. */
async function continueAtCursor(workspace: Workspace): Promise<void> {
  const { notices, commands } = workspace;
  if (!(await isStored(workspace))) return;
  await tick();
  const cursor = workspace.editor?.cursor ?? null;
  if (cursor === null) notices.show(texts.editor.nothingToContinue);
  else showBranches(workspace, await commands.continueFrom(cursor.node, { at: cursor.offset }));
}

/** Stores typed text, so that it is continued too. */
async function isStored({ typing, notices }: Workspace): Promise<boolean> {
  if (typing !== null && (await typing.flush())) return true;
  notices.show(texts.saving.flushFailed, { isError: true });
  return false;
}

/** Shows several new branches. One branch is shown in the text. */
function showBranches({ panels }: Workspace, branches: readonly number[]): void {
  if (branches.length <= 1) return;
  if (matchMedia(NARROW).matches) panels.show("branches");
  else panels.select("branches");
}

function goSibling({ document, notices }: Workspace, step: 1 | -1): void {
  const id = document!.currentId;
  if (id === null) return;
  const siblings = document!.siblings(id);
  const index = siblings.indexOf(id);
  const next = siblings[(index + step + siblings.length) % siblings.length];
  if (next !== undefined && next !== id) document!.go(next);
  else notices.show(texts.editor.noSibling);
}

function goParent({ document }: Workspace): void {
  document!.go(document!.current?.parent ?? null);
}

function goChild({ document }: Workspace): void {
  document!.go(document!.lastVisitedChild(document!.currentId) ?? null);
}

function goTop({ document }: Workspace): void {
  document!.go(document!.currentPath[0] ?? null);
}

function goDeepest({ document }: Workspace): void {
  let node = document!.currentId;
  for (let child = document!.lastVisitedChild(node); child !== undefined; child = document!.lastVisitedChild(child))
    node = child;
  document!.go(node);
}
