import type { Action } from "./actions";
import type { PanelId } from "./model/panels.svelte";
import type { Workspace } from "./model/workspace.svelte";
import { texts } from "./texts";

const titles = texts.actions;

/** Actions of the frame: columns, dialogs, undo. */
export const pageActions: readonly Action[] = [
  {
    id: "page.undo",
    title: titles.undo,
    group: "page",
    keys: ["Mod+z"],
    isNativeInFields: true,
    isEnabled: ({ history }) => history.nextUndo !== undefined,
    run: (workspace) => workspace.undo(),
  },
  {
    id: "page.redo",
    title: titles.redo,
    group: "page",
    keys: ["Mod+Shift+z", "Mod+y"],
    isNativeInFields: true,
    isEnabled: ({ history }) => history.nextRedo !== undefined,
    run: (workspace) => workspace.redo(),
  },
  { id: "page.newDocument", title: titles.newDocument, group: "page", keys: ["Alt+n"], run: newDocument },
  { id: "page.palette", title: titles.palette, group: "page", keys: ["Mod+k"], run: dialog("palette") },
  { id: "page.keys", title: titles.keys, group: "page", keys: ["Mod+/", "?"], run: dialog("keys") },
  { id: "page.apiKey", title: titles.apiKey, group: "page", run: dialog("apiKey") },
  { id: "page.appearance", title: titles.appearance, group: "view", run: dialog("appearance") },
  { id: "page.focusMode", title: titles.focusMode, group: "view", keys: ["Mod+Shift+."], run: toggleFocusMode },
  {
    id: "page.nextColumn",
    title: titles.nextColumn,
    group: "view",
    keys: ["F6"],
    run: (workspace) => stepColumn(workspace, 1),
  },
  {
    id: "page.previousColumn",
    title: titles.previousColumn,
    group: "view",
    keys: ["Shift+F6"],
    run: (workspace) => stepColumn(workspace, -1),
  },
  panel("tree", "Alt+1"),
  { id: "page.text", title: titles.focusText, group: "view", keys: ["Alt+2", "Escape"], run: focusText },
  panel("branches", "Alt+3"),
  panel("context", "Alt+4"),
  panel("library", "Alt+5"),
  panel("presets", "Alt+6"),
  panel("token", "Alt+7"),
];

function panel(id: PanelId, key: string): Action {
  const show = (workspace: Workspace) => {
    workspace.preferences.set("isFocusMode", false);
    workspace.panels.show(id);
  };
  return { id: `page.show.${id}`, title: titles.show(texts.panels[id]), group: "view", keys: [key], run: show };
}

function dialog(name: NonNullable<Workspace["dialog"]>): (workspace: Workspace) => void {
  return (workspace) => (workspace.dialog = name);
}

async function newDocument(workspace: Workspace): Promise<void> {
  if ((await workspace.commands.createDocument()) !== null) focusText(workspace);
}

function focusText(workspace: Workspace): void {
  workspace.panels.close();
  workspace.editor?.focus();
}

function toggleFocusMode({ preferences, editor }: Workspace): void {
  preferences.set("isFocusMode", !preferences.get("isFocusMode"));
  editor?.focus();
}

/** Moves the focus to the next or previous column. */
function stepColumn(workspace: Workspace, step: 1 | -1): void {
  const { panels, preferences } = workspace;
  const columns = [...document.querySelectorAll<HTMLElement>("[data-column]")].map(({ dataset }) => dataset.column);
  const focused = document.activeElement?.closest<HTMLElement>("[data-column]")?.dataset.column;
  const index = columns.indexOf(focused ?? "text");
  const next = columns.at((index + step + columns.length) % columns.length);
  if (next === "text" || preferences.get("isFocusMode")) focusText(workspace);
  else panels.show(next === "left" ? panels.left : panels.right);
}
