/** Typed text that is not stored on the server yet, kept in the browser: it survives a reload, and a crash of the tab. */

/** Text of a stored node that was changed and is not stored. */
export interface NodeDraft {
  node: number;
  /** Version that the text changes. */
  version: number;
  text: string;
  /** Text of the last attempt to store it, whose result is unknown; null without one. */
  sent: string | null;
}

/** A node that is to be created. */
export interface NewNodeDraft {
  key: string;
  text: string;
  /** Text of the last attempt to create it, whose result is unknown; null without one. */
  sent: string | null;
  /** Highest id of a node before that attempt. */
  sentAfter: number;
}

/** New nodes, each the child of the one before. */
export interface TailDraft {
  /** Node that the first one continues; null is the top. */
  anchor: number | null;
  /** Sibling after which the first one stands; null is after the last. */
  after: number | null;
  nodes: NewNodeDraft[];
}

/** All unsaved text of a document in one tab. */
export interface Draft {
  changed: NodeDraft[];
  tails: TailDraft[];
}

const PREFIX = "weft.draft.";

/** Drafts of this tab and of tabs that are gone. */
export class Drafts {
  /**
   * @param storage Where drafts are kept, as `localStorage`.
   * @param tab Id of this tab.
   */
  constructor(
    private readonly storage: Pick<Storage, "getItem" | "setItem" | "removeItem" | "key" | "length">,
    readonly tab: string,
  ) {}

  /** Keeps the unsaved text of a document, or forgets it if there is none. Returns false if the browser has no space for it. */
  keep(document: string, draft: Draft): boolean {
    const key = this.keyOf(document, this.tab);
    try {
      if (draft.changed.length === 0 && draft.tails.length === 0) this.storage.removeItem(key);
      else this.storage.setItem(key, JSON.stringify(draft));
      return true;
    } catch {
      return false;
    }
  }

  /** Returns the kept text of a document in this tab, or null. */
  own(document: string): Draft | null {
    return this.read(this.keyOf(document, this.tab));
  }

  /** Takes over the drafts of tabs that are gone. Returns the documents that have drafts now. */
  adopt(isGone: (tab: string) => boolean): string[] {
    const documents = new Set<string>();
    for (const key of this.keys()) {
      const [tab = "", document = ""] = key.slice(PREFIX.length).split(".");
      if (tab === this.tab) {
        documents.add(document);
        continue;
      }
      if (!isGone(tab)) continue;
      const draft = this.read(key);
      if (draft === null) continue;
      const own = this.own(document) ?? { changed: [], tails: [] };
      const changed = [...own.changed, ...draft.changed.filter(({ node }) => !own.changed.some((each) => each.node === node))];
      if (this.keep(document, { changed, tails: [...own.tails, ...draft.tails] })) this.storage.removeItem(key);
      documents.add(document);
    }
    return [...documents];
  }

  private keyOf(document: string, tab: string): string {
    return `${PREFIX}${tab}.${document}`;
  }

  private keys(): string[] {
    const keys = Array.from({ length: this.storage.length }, (_, index) => this.storage.key(index));
    return keys.filter((key): key is string => key?.startsWith(PREFIX) ?? false);
  }

  private read(key: string): Draft | null {
    try {
      return JSON.parse(this.storage.getItem(key) ?? "null") as Draft | null;
    } catch {
      return null;
    }
  }
}
