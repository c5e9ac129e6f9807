import { Actions } from "../actions";
import { ApiError, Client } from "../api/client";
import type { ReceivedEvent } from "../api/events";
import { preparers, promptToResume } from "../preparers";
import { texts } from "../texts";
import { Commands } from "./commands";
import { Connection } from "./connection.svelte";
import type { RequestPreparer } from "./continue_request";
import { lastChanged, OpenDocument } from "./document.svelte";
import { Drafts } from "./drafts";
import type { EditorHandle } from "./editor_handle";
import { History } from "./history.svelte";
import { Library } from "./library.svelte";
import { Notices } from "./notices.svelte";
import { Panels } from "./panels.svelte";
import { Preferences } from "./preferences.svelte";
import { ServerStatus } from "./server.svelte";
import { Typing } from "./typing.svelte";
import { Undo } from "./undo";

/** A dialog that covers the page. */
export type DialogName = "palette" | "keys" | "apiKey" | "appearance";

/** Everything that the components of one tab share. */
export class Workspace {
  readonly client = new Client();
  readonly library = new Library(this.client);
  readonly notices = new Notices();
  readonly panels = new Panels();
  readonly history: History;
  readonly preferences: Preferences;
  readonly commands = new Commands(this);
  readonly actions = new Actions(this);
  readonly server = new ServerStatus(this.client, () => this.notices.show(texts.connection.ready));
  readonly connection: Connection;
  readonly preparers: readonly RequestPreparer[] = preparers;
  readonly promptToResume = promptToResume;

  /** The open document. */
  document = $state.raw<OpenDocument | null>(null);

  /** What the user types into the open document. */
  typing = $state.raw<Typing | null>(null);

  /** The text column, while it is on the page. */
  editor = $state.raw<EditorHandle | null>(null);

  /** The document that is being read. */
  opening = $state.raw<OpenDocument | null>(null);

  dialog = $state<DialogName | null>(null);

  /** Whether the server has refused the API key that is in use. */
  isKeyRefused = $state(false);

  private readonly drafts: Drafts;
  private readonly undoRunner = new Undo(this);
  /** Documents that were left with text that is not stored yet. */
  private readonly left = new Map<string, { document: OpenDocument; typing: Typing }>();

  /** @param tab Id of this tab, under which unsaved text is kept. */
  constructor(tab: string) {
    this.history = new History(sessionStorage);
    this.preferences = new Preferences(localStorage);
    this.drafts = new Drafts(localStorage, tab);
    this.connection = new Connection(this.client, {
      reload: () => this.reload(),
      receive: (events) => this.receive(events),
      resumed: () => this.resumed(),
    });
    this.client.onUnauthorized = () => {
      this.isKeyRefused = this.client.apiKey !== null;
      this.dialog = "apiKey";
    };
  }

  /**
   * Connects to the server, opens a document, and stores text that was left unsaved.
   *
   * @param isGone Returns whether a tab, whose unsaved text is still here, was closed.
   * @param openFirst Opens the first document, once events arrive.
   */
  async start(isGone: (tab: string) => boolean, openFirst: () => Promise<void>): Promise<void> {
    void this.server.check();
    void this.connection.run();
    window.addEventListener("online", () => this.connection.retry());
    window.addEventListener("pagehide", () => this.keep());
    const unsaved = this.drafts.adopt(isGone);
    await this.connection.opened();
    // The document that is open stores its own text.
    await openFirst();
    await Promise.all(unsaved.map((document) => this.storeDraft(document)));
  }

  /** Opens a document, at a node or where it was left. Returns whether it is open. */
  async open(id: string, node: number | null = null): Promise<boolean> {
    if (this.document?.id === id) {
      if (node !== null) this.document.go(node);
      return true;
    }
    this.leave();
    const { document, typing } = this.left.get(id) ?? this.create(id);
    this.left.delete(id);
    this.opening = document;
    try {
      await document.load();
    } catch (error) {
      if (this.opening === document) {
        this.opening = null;
        this.notices.showError(error, texts.app.openFailed);
      }
      return false;
    }
    if (this.opening !== document) return false;
    this.opening = null;
    document.go(node ?? document.currentId ?? lastPosition(id) ?? lastChanged(document));
    if (document.currentId === null) document.go(lastChanged(document));
    typing.restore(this.drafts.own(id));
    this.typing = typing;
    this.document = document;
    this.panels.select("tree");
    return true;
  }

  /** Closes the open document; typed text is stored. */
  close(): void {
    this.leave();
  }

  /** Reverses the last action. */
  undo(): Promise<void> {
    return this.undoRunner.undo();
  }

  /** Repeats the last action that was undone. */
  redo(): Promise<void> {
    return this.undoRunner.redo();
  }

  /** Uses another API key, and shows its documents. */
  useKey(key: string): void {
    this.client.apiKey = key;
    this.isKeyRefused = false;
    this.connection.restart();
    void this.server.check();
    this.typing?.retry();
  }

  /** Keeps text that is not stored in the browser, before the page is closed. */
  private keep(): void {
    this.typing?.keep();
    for (const { typing } of this.left.values()) typing.keep();
  }

  private create(id: string): { document: OpenDocument; typing: Typing } {
    const { client, library, history, notices, drafts } = this;
    const document = new OpenDocument(client, library, id);
    return { document, typing: new Typing(document, client, history, notices, drafts) };
  }

  private leave(): void {
    const { document, typing } = this;
    this.opening = null;
    if (document === null || typing === null) return;
    rememberPosition(document);
    this.document = null;
    this.typing = null;
    if (typing.state === "saved") return;
    this.left.set(document.id, { document, typing });
    void typing.flush();
  }

  /** Stores text that another page, or this one before a reload, has left unsaved. */
  private async storeDraft(id: string): Promise<void> {
    if (this.documents().some((document) => document.id === id)) return;
    const made = this.create(id);
    this.left.set(id, made);
    try {
      await made.document.load();
      made.typing.restore(this.drafts.own(id));
      if (await made.typing.flush()) this.left.delete(id);
    } catch (error) {
      this.left.delete(id);
      if (error instanceof ApiError && error.status === 404) await this.recover(id);
      else this.notices.showError(error, texts.saving.notSaved);
    }
  }

  /** Makes a new document of unsaved text whose document was deleted. */
  private async recover(id: string): Promise<void> {
    const draft = this.drafts.own(id);
    if (draft === null) return;
    const typed = [...draft.changed, ...draft.tails.flatMap(({ nodes }) => nodes)];
    const text = typed.map((each) => each.text).join("\n\n");
    try {
      const made = await this.client.createDocument({ title: texts.saving.recovered });
      await this.client.createNode(made.id, { text });
      this.drafts.keep(id, { changed: [], tails: [] });
      this.notices.show(texts.saving.recoveredNotice);
    } catch (error) {
      this.notices.showError(error, texts.saving.notSaved);
    }
  }

  private documents(): OpenDocument[] {
    const open = [this.document, this.opening].filter((document) => document !== null);
    return [...open, ...[...this.left.values()].map(({ document }) => document)];
  }

  private async reload(): Promise<string> {
    const cursor = await this.library.load();
    await Promise.all(this.documents().map((document) => this.reloadDocument(document)));
    return cursor;
  }

  private async reloadDocument(document: OpenDocument): Promise<void> {
    try {
      await document.load();
    } catch (error) {
      if (!(error instanceof ApiError && error.status === 404)) throw error;
      this.left.delete(document.id);
      this.deleted(document.id);
    }
  }

  private receive(events: readonly ReceivedEvent[]): void {
    for (const received of events) {
      const { event } = received;
      this.library.apply(event);
      if (event.type === "document_deleted") this.deleted(event.document);
      if (event.type !== "nodes" && event.type !== "nodes_deleted" && event.type !== "tokens") continue;
      for (const document of this.documents()) if (document.id === event.document) document.apply(received);
    }
  }

  /** Closes a document that was deleted, unless it has text that is not stored. */
  private deleted(id: string): void {
    if (this.document?.id !== id) return;
    this.notices.show(texts.app.documentGone);
    if (this.typing?.state === "saved") this.leave();
  }

  private resumed(): void {
    this.notices.show(texts.connection.back);
    void this.server.check();
    this.typing?.retry();
    for (const { typing } of this.left.values()) typing.retry();
  }
}

const POSITION_PREFIX = "weft.position.";

function rememberPosition(document: OpenDocument): void {
  try {
    localStorage.setItem(POSITION_PREFIX + document.id, String(document.currentId ?? ""));
  } catch {
    // Without space in the browser, a document opens at the node that was changed last.
  }
}

/** Returns the node at which a document was left in this browser. */
function lastPosition(id: string): number | null {
  const stored = localStorage.getItem(POSITION_PREFIX + id);
  return stored ? Number(stored) : null;
}
