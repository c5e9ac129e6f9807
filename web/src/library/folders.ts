/** Documents by folder. A folder exists as long as a document is in it; `/` in its name separates levels. */

export interface DocumentEntry {
  readonly id: string;
  readonly title: string;
  readonly folder: string;
  readonly is_trashed: boolean;
  readonly changed_ms: number;
}

export interface Folder<D> {
  /** Whole name; empty for documents outside of folders. */
  readonly path: string;
  /** Last part of the name. */
  readonly name: string;
  readonly level: number;
  readonly folders: Folder<D>[];
  readonly documents: D[];
}

export type Order = "changed" | "title";

/** Returns the folder that holds all documents and folders, sorted. */
export function folderTree<D extends DocumentEntry>(documents: Iterable<D>, order: Order): Folder<D> {
  const root: Folder<D> = { path: "", name: "", level: 0, folders: [], documents: [] };
  const byPath = new Map<string, Folder<D>>([["", root]]);
  for (const document of sorted(documents, order)) folderAt(byPath, normalFolder(document.folder)).documents.push(document);
  for (const each of byPath.values()) each.folders.sort((a, b) => compareTexts(a.name, b.name));
  return root;
}

function folderAt<D>(byPath: Map<string, Folder<D>>, path: string): Folder<D> {
  const known = byPath.get(path);
  if (known) return known;
  const end = path.lastIndexOf("/");
  const above = folderAt(byPath, path.slice(0, Math.max(end, 0)));
  const made: Folder<D> = { path, name: path.slice(end + 1), level: above.level + 1, folders: [], documents: [] };
  above.folders.push(made);
  byPath.set(path, made);
  return made;
}

/** Returns the name of a folder without empty parts and outer spaces. */
export function normalFolder(name: string): string {
  return name
    .split("/")
    .map((each) => each.trim())
    .filter((each) => each)
    .slice(0, MAX_LEVELS)
    .join("/");
}

/** Levels of folders that are shown, since a name of 1,000 characters could have 500. */
const MAX_LEVELS = 8;

/** Returns all folders, with those that hold only folders. */
export function folderNames<D>(root: Folder<D>): string[] {
  return root.folders.flatMap((each) => [each.path, ...folderNames(each)]);
}

export function sorted<D extends DocumentEntry>(documents: Iterable<D>, order: Order): D[] {
  return [...documents].sort((a, b) => (order === "title" && compareTexts(a.title, b.title)) || b.changed_ms - a.changed_ms);
}

const collator = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });

function compareTexts(a: string, b: string): number {
  return collator.compare(a, b);
}
