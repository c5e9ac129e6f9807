import type { Workspace } from "../model/workspace.svelte";
import { DocumentSearch } from "./document_search.svelte";
import type { Order } from "./folders";

/** A dialog about documents that is open. */
export type LibraryDialog =
  | { readonly kind: "export"; readonly document: string; readonly node: number | null }
  | { readonly kind: "import"; readonly files: readonly File[] }
  | { readonly kind: "move"; readonly document: string }
  | { readonly kind: "folder"; readonly folder: string }
  | { readonly kind: "delete"; readonly documents: readonly string[] }
  | { readonly kind: "find" };

/** What the list of documents shows. */
export class LibraryView {
  dialog: LibraryDialog | null = $state.raw(null);
  /** Document whose title is being edited. */
  renamed: string | null = $state(null);
  /** Document of the row that had the focus last. */
  focused: string | null = $state(null);
  /** Document whose menu is open, and where. */
  menu: { readonly document: string; readonly x: number; readonly y: number } | null = $state.raw(null);
  /** Document that is being dragged. */
  dragged: string | null = $state(null);
  /** Folder over which a document is dragged, if it is not in it already; empty for no folder. */
  dropFolder: string | null = $state(null);
  order: Order = $state("changed");
  closedFolders: ReadonlySet<string> = $state.raw(new Set());
  readonly search: DocumentSearch;

  constructor(workspace: Workspace) {
    this.search = new DocumentSearch(workspace.client);
  }

  toggleFolder(path: string): void {
    const closed = new Set(this.closedFolders);
    if (!closed.delete(path)) closed.add(path);
    this.closedFolders = closed;
  }
}

const views = new WeakMap<Workspace, LibraryView>();

export function libraryViewOf(workspace: Workspace): LibraryView {
  const known = views.get(workspace);
  if (known) return known;
  const view = new LibraryView(workspace);
  views.set(workspace, view);
  return view;
}

/** Opens the dialog that exports a document, or the path to one of its nodes. */
export function showExport(workspace: Workspace, document: string, node: number | null): void {
  libraryViewOf(workspace).dialog = { kind: "export", document, node };
}
