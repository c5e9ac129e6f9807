/** Actions of the list of documents. Those with the scope "library" act on the document whose row has the focus. */

import type { Action } from "../actions";
import type { DocumentRecord } from "../api/types";
import type { Workspace } from "../model/workspace.svelte";
import { texts } from "../texts";
import { libraryViewOf, showExport, type LibraryView } from "./library_view.svelte";

const titles = texts.library.actions;

interface Target {
  readonly workspace: Workspace;
  readonly view: LibraryView;
  readonly document: DocumentRecord;
}

function target(workspace: Workspace): Target | null {
  const view = libraryViewOf(workspace);
  const id = view.menu?.document ?? view.focused ?? workspace.document?.id;
  const document = id === undefined ? undefined : workspace.library.documents.get(id);
  return document && !document.is_trashed ? { workspace, view, document } : null;
}

function onDocument(id: string, title: string, keys: string[], run: (target: Target) => unknown): Action {
  return {
    id: `library.${id}`,
    title,
    group: "library",
    scope: "library",
    keys,
    isEnabled: (workspace) => target(workspace) !== null,
    run: async (workspace) => {
      const found = target(workspace);
      if (found) await run(found);
    },
  };
}

/** Moves the focus to another row of the list. */
function step(id: string, title: string, key: string, direction: 1 | -1): Action {
  return {
    id: `library.${id}`,
    title,
    group: "library",
    scope: "library",
    keys: [key],
    run: () => {
      const rows = [...document.querySelectorAll<HTMLElement>("[data-library-row]")];
      const index = rows.indexOf(document.activeElement as HTMLElement);
      if (index + direction < 0) document.getElementById("library-search")?.focus();
      else rows[index + direction]?.focus();
    },
  };
}

async function duplicate({ workspace, document }: Target): Promise<void> {
  const title = texts.library.copyOf(document.title || texts.library.untitled);
  if ((await workspace.commands.duplicateDocument(document.id, title)) !== null) {
    workspace.notices.show(texts.library.duplicated(title));
  }
}

async function trash({ workspace, view, document }: Target): Promise<void> {
  view.focused = null;
  await workspace.commands.trashDocument(document.id);
}

function showSearch(workspace: Workspace): void {
  workspace.panels.show("library");
  requestAnimationFrame(() => {
    const field = document.getElementById("library-search");
    if (field instanceof HTMLInputElement) field.select();
  });
}

export const libraryActions: readonly Action[] = [
  {
    id: "library.import",
    title: titles.import,
    group: "library",
    keys: ["Mod+o"],
    run: (workspace) => void (libraryViewOf(workspace).dialog = { kind: "import", files: [] }),
  },
  { id: "library.search", title: titles.search, group: "library", keys: ["Mod+Shift+f"], run: showSearch },
  {
    id: "library.export-open",
    title: titles.exportOpen,
    group: "library",
    keys: ["Mod+Shift+e"],
    isEnabled: (workspace) => workspace.document !== null,
    run: (workspace) => {
      if (workspace.document) showExport(workspace, workspace.document.id, null);
    },
  },
  {
    id: "library.find-replace",
    title: titles.findReplace,
    group: "writing",
    keys: ["Mod+f"],
    isEnabled: (workspace) => workspace.document !== null,
    run: (workspace) => void (libraryViewOf(workspace).dialog = { kind: "find" }),
  },
  step("previous", titles.previous, "ArrowUp", -1),
  step("next", titles.next, "ArrowDown", 1),
  onDocument("open", titles.open, [], ({ workspace, document }) => workspace.open(document.id)),
  onDocument("rename", titles.rename, ["F2"], ({ view, document }) => void (view.renamed = document.id)),
  onDocument(
    "move",
    titles.move,
    ["Shift+F2"],
    ({ view, document }) => void (view.dialog = { kind: "move", document: document.id }),
  ),
  onDocument("duplicate", titles.duplicate, ["Mod+d"], duplicate),
  onDocument("export", titles.export, ["Mod+e"], ({ workspace, document }) => showExport(workspace, document.id, null)),
  onDocument("trash", titles.trash, ["Delete"], trash),
];
