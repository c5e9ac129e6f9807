import type {
  ContinueRequest,
  DocumentChange,
  DocumentRecord,
  DocumentSettings,
  GenerationFields,
  ImportedDocument,
  ImportRequest,
  NodeRecord,
  Prompt,
} from "../api/types";
import { ApiError } from "../api/client";
import { texts } from "../texts";
import { characterOfOffset } from "./characters";
import { defaultRequest } from "./continue_request";
import type { OpenDocument } from "./document.svelte";
import { inverseParts, partsOf, replaceParts } from "./replace_texts";
import type { Step } from "./steps";
import { difference } from "./path_text";
import { rowTitle } from "./tree_rows";
import type { Workspace } from "./workspace.svelte";

const titles = texts.history.titles;

/** Most characters of a node that a message shows. */
const MAX_NOTICE_TITLE = 60;

/** Fields of a node that the last change wins. */
interface NodeFields {
  label?: string;
  note?: string;
  is_bookmarked?: boolean;
}

export interface ContinueOptions {
  /** Number of branches; by default as the preferences have it. */
  n?: number;
  /** Offset in the node's text after which the branches begin, in UTF-16 units; by default its end. */
  at?: number;
  /** Number of tokens after which the branches begin, in place of `at`. */
  atToken?: number;
  /** Text or tokens with which each branch begins. */
  append?: Prompt;
  /** Fields of the request, before those of presets. */
  fields?: GenerationFields;
  /** Whether to show the new branch if there is one only; true by default. */
  follow?: boolean;
}

/**
 * Actions of the user that change documents. Each is one step of undo, and shows a message if it fails.
 *
 * Methods that return a boolean return whether the server has made the change. Offsets are UTF-16 units in a node's text.
 */
export class Commands {
  /** Requests for branches that are not answered yet. */
  private readonly starting = new Set<Promise<unknown>>();

  constructor(private readonly workspace: Workspace) {}

  // Nodes

  /** Adds a node below another one, or at the top. Returns its id, or null after a failure. */
  async create(
    parent: number | null,
    text: string,
    options: { index?: number | null; label?: string } = {},
  ): Promise<number | null> {
    const document = this.opened();
    const before = document.currentId;
    const created = await this.attempt(titles.create, async () => {
      const { index = null, label = "" } = options;
      const node = await this.client.createNode(document.id, { parent, text, index, label });
      document.answered([node]);
      document.go(node.id);
      return node.id;
    });
    if (created !== undefined) this.record(titles.create, document, ...addition([created], before, created));
    return created ?? null;
  }

  /** Replaces the text of a node in place. */
  async changeText(node: number, text: string): Promise<boolean> {
    const document = this.opened();
    const typing = this.workspace.typing!;
    const before = typing.textOf(node) ?? "";
    const change = difference(before, text);
    if (change === null) return true;
    const { from, to, insert } = change;
    const step = {
      kind: "text",
      node,
      leaf: document.currentId ?? node,
      at: from,
      removed: before.slice(from, to),
      inserted: insert,
    } as const;
    typing.replace(step);
    this.workspace.history.endTyping();
    this.workspace.history.pushText(titles.changeText, document.id, step);
    this.workspace.history.endTyping();
    return typing.flush();
  }

  /** Replaces texts of several nodes in place, as one step. Returns the number of replaced texts. */
  async replaceTexts(title: string, changed: readonly { id: number; text: string }[]): Promise<number> {
    const document = this.opened();
    if (!(await this.flush())) return 0;
    const { done, failure } = await replaceParts(this.workspace, document, partsOf(document, changed));
    if (done.length > 0) {
      this.record(title, document, [{ kind: "parts", parts: inverseParts(done) }], [{ kind: "parts", parts: done }]);
    }
    if (failure !== null) this.workspace.notices.showError(failure, title);
    return done.length;
  }

  setLabel(node: number, label: string): Promise<boolean> {
    return this.setFields(titles.label, node, { label });
  }

  setNote(node: number, note: string): Promise<boolean> {
    return this.setFields(titles.note, node, { note });
  }

  setBookmark(node: number, is_bookmarked: boolean): Promise<boolean> {
    return this.setFields(titles.bookmark, node, { is_bookmarked });
  }

  /** Moves a node with all below it. `index` counts the new siblings, also those in the trash, without the node itself. */
  async move(node: number, parent: number | null, index: number | null = null): Promise<boolean> {
    const document = this.opened();
    const record = document.node(node);
    if (record === undefined) return false;
    const before = { parent: record.parent, index: document.allChildren(record.parent).indexOf(node) };
    const isMoved = await this.succeeds(titles.move, async () => {
      const { nodes } = await this.client.moveNode(document.id, node, parent, index);
      document.answered(nodes);
    });
    if (isMoved) {
      this.record(titles.move, document, [{ kind: "move", node, ...before }], [{ kind: "move", node, parent, index }]);
    }
    return isMoved;
  }

  /** Splits a node at an offset of its text: the rest becomes its only child. */
  async split(node: number, offset: number): Promise<boolean> {
    const document = this.opened();
    if (!(await this.flush())) return false;
    const text = document.node(node)?.text ?? "";
    if (offset <= 0 || offset >= text.length) return false;
    const isCurrent = document.currentId === node;
    const child = await this.attempt(titles.split, async () => {
      const { nodes } = await this.client.splitNode(document.id, node, { character: characterOfOffset(text, offset) });
      document.answered(nodes);
      return nodes[1]!.id;
    });
    if (child === undefined) return false;
    if (isCurrent) document.go(child);
    const after: Step[] = isCurrent ? [{ kind: "go", node: child, cursor: null }] : [];
    this.record(titles.split, document, [{ kind: "merge", node }], [{ kind: "split", node, at: offset, child }, ...after]);
    return true;
  }

  /** Joins a node with its only child. */
  async merge(node: number): Promise<boolean> {
    const document = this.opened();
    if (!(await this.flush())) return false;
    const first = document.node(node);
    const [child] = document.allChildren(node);
    const second = child === undefined ? undefined : document.node(child);
    if (first === undefined || second === undefined) return false;
    const before = document.currentId;
    const isMerged = await this.succeeds(titles.merge, async () => {
      const { nodes, deleted } = await this.client.mergeNode(document.id, node);
      document.answered(nodes, deleted);
    });
    if (!isMerged) return false;
    if (before === second.id) document.go(node);
    const undo: Step[] = [
      { kind: "split", node, at: first.text.length, child: second.id },
      { kind: "fields", node, fields: fieldsOf(first) },
      { kind: "fields", node: second.id, fields: fieldsOf(second) },
      { kind: "go", node: before, cursor: null },
    ];
    this.record(titles.merge, document, undo, [{ kind: "merge", node }]);
    return true;
  }

  /** Moves a node with all below it to the trash, stops branches that are being written there, and offers to undo this. */
  async trash(node: number): Promise<boolean> {
    const document = this.opened();
    const record = document.node(node);
    if (record === undefined || !(await this.setTrashed(titles.trash, [node], true))) return false;
    const title = rowTitle(record).slice(0, MAX_NOTICE_TITLE) || texts.tree.emptyNode;
    this.offerUndo(texts.tree.trashed(title), async () => {
      if (await this.workspace.open(document.id)) await this.restore([node]);
    });
    return true;
  }

  /** Moves nodes back from the trash. */
  restore(nodes: readonly number[]): Promise<boolean> {
    return this.setTrashed(titles.restore, nodes, false);
  }

  /** Deletes a node with all below it. This cannot be undone. */
  deleteForGood(node: number): Promise<boolean> {
    const document = this.opened();
    return this.succeeds(texts.history.titles.trash, async () => {
      const { deleted } = await this.client.deleteNode(document.id, node);
      document.answered([], deleted);
    });
  }

  /** Deletes all nodes in the trash of the open document. This cannot be undone. */
  async emptyTrash(): Promise<void> {
    const document = this.opened();
    for (const node of [...document.trashRoots()]) {
      // A root below another one has been deleted with it.
      if (document.node(node) === undefined) continue;
      if (this.workspace.document !== document || !(await this.deleteForGood(node))) return;
    }
  }

  // Branches

  /**
   * Starts branches that continue a node. Returns their ids; none after a failure.
   *
   * The server writes them to their ends, whether the page stays open or not. The text column shows them unless the user types or
   * goes elsewhere before the answer.
   */
  continueFrom(node: number, options: ContinueOptions = {}): Promise<number[]> {
    const branches = this.startBranches(node, options);
    this.starting.add(branches);
    const remove = () => this.starting.delete(branches);
    branches.then(remove, remove);
    return branches;
  }

  /** Waits until all branches that were requested are in the history, or their requests have failed. */
  async branchesStarted(): Promise<void> {
    await Promise.allSettled(this.starting);
  }

  private async startBranches(node: number, options: ContinueOptions): Promise<number[]> {
    const document = this.opened();
    const typing = this.workspace.typing!;
    if (!(await this.flush())) return [];
    const before = document.currentId;
    const { leaf } = typing;
    const continued = await this.attempt(titles.continue, () =>
      typing.whileContinuing(node, async () => {
        const request = await this.request(document, node, options);
        const answer = await this.client.continueNode(document.id, node, request);
        document.answered([...answer.changed, ...answer.nodes]);
        return answer;
      }),
    );
    if (continued === undefined) return [];
    const branches = continued.nodes.map(({ id }) => id);
    const [first] = branches;
    const isFollowed = branches.length === 1 && options.follow !== false;
    if (typing.leaf === leaf) {
      if (isFollowed) document.go(first!);
      else if (options.at !== undefined || options.atToken !== undefined) document.go(document.node(first!)!.parent);
      else if (before === node) document.go(node);
    }
    this.record(titles.continue, document, ...addition(branches, before, document.currentId, continued.changed));
    return branches;
  }

  /** Ends branches, which keep their texts. */
  async stop(nodes: readonly number[]): Promise<void> {
    const document = this.opened();
    await this.succeeds(texts.actions.stopAll, () => stopNodes(this.workspace, document, nodes));
  }

  stopAll(): Promise<void> {
    return this.stop([...this.opened().runningIds]);
  }

  /** Continues an interrupted branch where it ended, with memory, lore and note as they are now. */
  async resume(node: number): Promise<boolean> {
    const document = this.opened();
    return this.succeeds(texts.editor.resume, async () => {
      const prompt = await this.workspace.promptToResume(this.workspace, document, document.node(node)!);
      const { nodes } = await this.client.resumeNode(document.id, node, prompt);
      document.answered(nodes);
    });
  }

  /** Continues all interrupted branches of the document. */
  async resumeAll(): Promise<void> {
    const document = this.opened();
    await this.succeeds(texts.actions.resumeAll, async () => {
      const prompts: Record<string, Prompt> = {};
      for (const id of document.interruptedIds) {
        const prompt = await this.workspace.promptToResume(this.workspace, document, document.node(id)!);
        if (prompt !== null) prompts[id] = prompt;
      }
      const { resumed, failed } = await this.client.resumeDocument(document.id, prompts);
      document.answered(resumed.flatMap(({ nodes }) => nodes));
      const [first] = failed;
      if (first !== undefined) {
        this.workspace.notices.show(texts.editor.notResumed(failed.length, first.message), { isError: true });
      }
    });
  }

  // Documents

  /** Creates a document and opens it. Returns its id, or null after a failure. */
  async createDocument(title = "", folder = "", settings: DocumentSettings = {}): Promise<string | null> {
    return (await this.added(titles.newDocument, () => this.client.createDocument({ title, folder, settings })))?.id ?? null;
  }

  /** Creates a document from a file and opens it. Returns null after a failure. */
  importDocument(file: ImportRequest): Promise<ImportedDocument | null> {
    return this.added(titles.newDocument, () => this.client.importDocument(file));
  }

  /** Creates a copy of a document and opens it. Returns its id, or null after a failure. */
  async duplicateDocument(id: string, title: string): Promise<string | null> {
    return (await this.added(texts.library.actions.duplicate, () => this.client.duplicateDocument(id, title)))?.id ?? null;
  }

  /** Changes the title or folder of a document, or moves it to the trash or back. */
  async changeDocument(id: string, change: Omit<DocumentChange, "settings">): Promise<boolean> {
    const before = this.workspace.library.documents.get(id);
    if (before === undefined) return false;
    const title = titleOfChange(change);
    const isChanged = await this.succeeds(title, async () => {
      this.workspace.library.answered(await this.client.changeDocument(id, change));
    });
    if (!isChanged) return false;
    const old = Object.fromEntries(Object.keys(change).map((name) => [name, before[name as keyof DocumentRecord]]));
    this.workspace.history.push({
      title,
      document: null,
      undo: [{ kind: "document", document: id, change: old }],
      redo: [{ kind: "document", document: id, change }],
    });
    return true;
  }

  /** Moves a document to the trash, and offers to undo this. */
  async trashDocument(id: string): Promise<boolean> {
    const title = this.workspace.library.documents.get(id)?.title || texts.library.untitled;
    if (!(await this.changeDocument(id, { is_trashed: true }))) return false;
    this.offerUndo(texts.library.trashed(title), () => this.changeDocument(id, { is_trashed: false }));
    return true;
  }

  /** Sets keys of the open document's settings; `undefined` removes a key. */
  async changeSettings(values: DocumentSettings): Promise<boolean> {
    const document = this.opened();
    const before = document.record.settings;
    const old = Object.fromEntries(Object.keys(values).map((key) => [key, before[key] ?? null]));
    const given = Object.fromEntries(Object.entries(values).map(([key, value]) => [key, value ?? null]));
    const isChanged = await this.succeeds(titles.settings, () => setSettings(this.workspace, document.id, given));
    if (isChanged) {
      const step = { kind: "settings", document: document.id } as const;
      this.record(titles.settings, document, [{ ...step, values: old }], [{ ...step, values: given }]);
    }
    return isChanged;
  }

  /** Deletes a document with all its nodes. This cannot be undone. */
  async deleteDocumentForGood(id: string): Promise<boolean> {
    return this.succeeds(titles.trashDocument, async () => {
      if (this.workspace.document?.id === id) this.workspace.close();
      await this.client.deleteDocument(id);
      this.workspace.library.apply({ type: "document_deleted", document: id });
    });
  }

  // Helpers

  private get client() {
    return this.workspace.client;
  }

  private opened(): OpenDocument {
    const { document } = this.workspace;
    if (document === null) throw new Error("no document is open");
    return document;
  }

  /** Stores typed text first, so that the server has what the user sees. */
  private async flush(): Promise<boolean> {
    const isStored = await this.workspace.typing!.flush();
    if (!isStored) this.workspace.notices.show(texts.saving.flushFailed, { isError: true });
    return isStored;
  }

  private async request(document: OpenDocument, node: number, options: ContinueOptions): Promise<ContinueRequest> {
    const { n, at, atToken, append, fields = {} } = options;
    let request: ContinueRequest = { ...defaultRequest(this.workspace.preferences), ...fields };
    if (n !== undefined) request.n = n;
    const { text = "", state } = document.node(node) ?? {};
    if (at !== undefined && (at < text.length || state === "running")) request.at = { character: characterOfOffset(text, at) };
    if (atToken !== undefined) request.at = { token: atToken };
    if (append !== undefined) request.append = append;
    if (request.branches !== undefined) delete request.n;
    const target = { workspace: this.workspace, document, node, offset: at ?? null, append: append ?? null, fields };
    for (const prepare of this.workspace.preparers) request = await prepare(request, target);
    return request;
  }

  private async setFields(title: string, node: number, fields: NodeFields): Promise<boolean> {
    const document = this.opened();
    const record = document.node(node);
    if (record === undefined) return false;
    const all = fieldsOf(record);
    const old = Object.fromEntries(Object.keys(fields).map((name) => [name, all[name as keyof NodeFields]]));
    const isChanged = await this.succeeds(title, async () => {
      const answer = await this.client.changeNode(document.id, node, fields);
      document.answered([answer.node]);
    });
    if (isChanged) this.record(title, document, [{ kind: "fields", node, fields: old }], [{ kind: "fields", node, fields }]);
    return isChanged;
  }

  private async setTrashed(title: string, nodes: readonly number[], is_trashed: boolean): Promise<boolean> {
    const document = this.opened();
    const before = document.currentId;
    const isChanged = await this.succeeds(title, () => setTrashed(this.workspace, document, nodes, is_trashed));
    if (isChanged) {
      const step = (value: boolean): Step => ({ kind: "trash", nodes: [...nodes], is_trashed: value });
      const go: Step = { kind: "go", node: before, cursor: null };
      this.record(title, document, [step(!is_trashed), go], [step(is_trashed)]);
    }
    return isChanged;
  }

  private async added<New extends DocumentRecord>(title: string, create: () => Promise<New>): Promise<New | null> {
    const document = await this.attempt(title, create);
    if (document === undefined) return null;
    this.workspace.library.answered(document);
    await this.workspace.open(document.id);
    return document;
  }

  private record(title: string, document: OpenDocument, undo: Step[], redo: Step[]): void {
    this.workspace.history.push({ title, document: document.id, undo, redo });
  }

  /** Shows a message that offers to undo the newest action. `restore` reverses it after others have followed it. */
  private offerUndo(text: string, restore: () => unknown): void {
    const { history, notices } = this.workspace;
    const entry = history.nextUndo;
    const run = () => (history.nextUndo === entry ? this.workspace.undo() : restore());
    notices.show(text, { action: { title: texts.history.undo, run } });
  }

  private async succeeds(title: string, work: () => Promise<void>): Promise<boolean> {
    return (await this.attempt(title, async () => (await work(), true))) ?? false;
  }

  /** Runs a request; shows why it failed, and returns undefined then. */
  private async attempt<Result>(title: string, work: () => Promise<Result>): Promise<Result | undefined> {
    try {
      return await work();
    } catch (error) {
      if (error instanceof ApiError && error.status === 503) void this.workspace.server.check();
      this.workspace.notices.showError(error, title);
      return undefined;
    }
  }
}

/** Moves nodes to the trash or back; branches that write them are stopped first. */
export async function setTrashed(
  workspace: Workspace,
  document: OpenDocument,
  nodes: readonly number[],
  is_trashed: boolean,
): Promise<void> {
  if (is_trashed) {
    const within = nodes.flatMap((node) => [node, ...document.tree.descendants(node)]);
    await stopNodes(workspace, document, within);
  }
  const answers = nodes.map((node) => workspace.client.changeNode(document.id, node, { is_trashed }));
  document.answered((await Promise.all(answers)).map(({ node }) => node));
}

/** Sets keys of a document's settings, as they are now; null removes a key. */
export async function setSettings(workspace: Workspace, id: string, values: DocumentSettings): Promise<void> {
  const current = workspace.library.documents.get(id)?.settings ?? {};
  const entries = Object.entries({ ...current, ...values }).filter(([, value]) => value !== null);
  workspace.library.answered(await workspace.client.changeDocument(id, { settings: Object.fromEntries(entries) }));
}

async function stopNodes(workspace: Workspace, document: OpenDocument, nodes: readonly number[]): Promise<void> {
  const running = nodes.filter((node) => document.runningIds.has(node));
  document.answered(await Promise.all(running.map((node) => workspace.client.stopNode(document.id, node))));
}

/**
 * Returns the steps that undo and repeat the creation of nodes.
 *
 * @param parts The parts of the node that the new nodes have split, if they have.
 */
function addition(
  nodes: readonly number[],
  before: number | null,
  after: number | null,
  parts: readonly NodeRecord[] = [],
): [undo: Step[], redo: Step[]] {
  const trash = (is_trashed: boolean): Step => ({ kind: "trash", nodes: [...nodes], is_trashed });
  const [first, rest] = parts;
  const fork = (kind: "unfork" | "fork"): Step[] =>
    first && rest ? [{ kind, node: first.id, at: first.text.length, rest: rest.id, branches: [...nodes] }] : [];
  return [
    [trash(true), ...fork("unfork"), { kind: "go", node: before, cursor: null }],
    [...fork("fork"), trash(false), { kind: "go", node: after, cursor: null }],
  ];
}

function fieldsOf({ label, note, is_bookmarked }: NodeRecord): Required<NodeFields> {
  return { label, note, is_bookmarked };
}

function titleOfChange(change: DocumentChange): string {
  if (change.is_trashed !== undefined) return change.is_trashed ? titles.trashDocument : titles.restoreDocument;
  return change.title === undefined ? titles.folder : titles.title;
}
