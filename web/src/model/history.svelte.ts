import { type HistoryEntry, inverse, joined, type NodeRef, type TextStep, withNode } from "./steps";

/** Most entries that are kept. */
const MAX_ENTRIES = 300;

/** Pause after which typing begins a new entry, in milliseconds. */
const PAUSE_MS = 1_500;

/** Most characters that one entry of typing inserts. */
const MAX_TYPED = 200;

const STORAGE_KEY = "weft.history";

/** The newest entry while typing may still extend it. */
interface Typing {
  node: NodeRef;
  /** When it was last extended. */
  at: number;
}

/**
 * What the user did in this tab, to be undone and redone. It survives a reload.
 *
 * Typing is one entry until the user pauses, moves the cursor or begins a paragraph.
 */
export class History {
  private undoable = $state.raw<readonly HistoryEntry[]>([]);
  private redoable = $state.raw<readonly HistoryEntry[]>([]);
  private typing: Typing | null = null;

  /** @param storage Where entries are kept over a reload, as `sessionStorage`. */
  constructor(
    private readonly storage: Pick<Storage, "getItem" | "setItem" | "removeItem">,
    private readonly now: () => number = Date.now,
  ) {
    this.load();
  }

  /** The entry that undo reverses, if there is one. */
  get nextUndo(): HistoryEntry | undefined {
    return this.undoable.at(-1);
  }

  /** The entry that redo repeats, if there is one. */
  get nextRedo(): HistoryEntry | undefined {
    return this.redoable.at(-1);
  }

  /** Adds an entry. What was undone before can no longer be redone. */
  push(entry: HistoryEntry): void {
    this.typing = null;
    this.set([...this.undoable, entry], []);
  }

  /** Adds an entry for typing that created a node; typing that continues it belongs to the entry. */
  pushCreated(entry: HistoryEntry, node: NodeRef): void {
    this.push(entry);
    this.typing = { node, at: this.now() };
  }

  /** Adds typing in a node, to the newest entry if it continues that. */
  pushText(title: string, document: string, step: TextStep): void {
    const continued = this.continuedBy(step);
    const entry = continued ?? { title, document, undo: [inverse(step)], redo: [step] };
    this.set([...(continued === null ? this.undoable : this.undoable.slice(0, -1)), entry], []);
    this.typing = { node: step.node, at: this.now() };
  }

  /** Makes further typing begin a new entry, as after the cursor was moved. */
  endTyping(): void {
    this.typing = null;
  }

  /** Takes the newest entry from the list of entries to undo, and adds it to those to redo. */
  moveToRedo(): void {
    this.typing = null;
    const entry = this.nextUndo;
    if (entry !== undefined) this.set(this.undoable.slice(0, -1), [...this.redoable, entry]);
  }

  /** Takes the newest entry from the list of entries to redo, and adds it to those to undo. */
  moveToUndo(): void {
    const entry = this.nextRedo;
    if (entry !== undefined) this.set([...this.undoable, entry], this.redoable.slice(0, -1));
  }

  /** Removes the newest entry, which cannot be undone any more. */
  dropUndo(): void {
    this.set(this.undoable.slice(0, -1), this.redoable);
  }

  /** Removes the newest undone entry, which cannot be repeated any more. */
  dropRedo(): void {
    this.set(this.undoable, this.redoable.slice(0, -1));
  }

  /** Replaces a node of a document in all entries, as after typed text was stored as a node. */
  rename(document: string, from: NodeRef, to: NodeRef): void {
    const renamed = (entry: HistoryEntry): HistoryEntry => {
      if (entry.document !== document) return entry;
      const rename = (step: HistoryEntry["undo"][number]) => withNode(step, from, to);
      return { ...entry, undo: entry.undo.map(rename), redo: entry.redo.map(rename) };
    };
    if (this.typing?.node === from) this.typing = { ...this.typing, node: to };
    this.set(this.undoable.map(renamed), this.redoable.map(renamed));
  }

  /** Returns the newest entry extended by typing, or null if the typing begins a new entry. */
  private continuedBy(step: TextStep): HistoryEntry | null {
    const entry = this.nextUndo;
    if (entry === undefined || this.typing === null || this.redoable.length > 0) return null;
    if (this.typing.node !== step.node || this.now() - this.typing.at > PAUSE_MS) return null;
    if (step.inserted.includes("\n")) return null;
    const last = entry.redo[0];
    // Text that was typed into a node that the entry has created is undone with the node.
    if (last?.kind !== "text") return entry;
    const both = joined(last, step);
    if (both === null || both.inserted.length > MAX_TYPED) return null;
    return { ...entry, undo: [inverse(both)], redo: [both] };
  }

  private set(undoable: readonly HistoryEntry[], redoable: readonly HistoryEntry[]): void {
    this.undoable = undoable.slice(-MAX_ENTRIES);
    this.redoable = redoable;
    this.save();
  }

  private load(): void {
    try {
      const stored = JSON.parse(this.storage.getItem(STORAGE_KEY) ?? "null") as [HistoryEntry[], HistoryEntry[]] | null;
      if (stored !== null) [this.undoable, this.redoable] = stored;
    } catch {
      this.storage.removeItem(STORAGE_KEY);
    }
  }

  /** Stores the entries; the oldest half is left out where the storage is too small. */
  private save(): void {
    for (let undoable = this.undoable; ; undoable = undoable.slice(Math.ceil(undoable.length / 2))) {
      try {
        this.storage.setItem(STORAGE_KEY, JSON.stringify([undoable, this.redoable]));
        return;
      } catch {
        if (undoable.length === 0) {
          this.storage.removeItem(STORAGE_KEY);
          return;
        }
      }
    }
  }
}
