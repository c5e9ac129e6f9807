import { tick } from "svelte";
import { ApiError, ConnectionError } from "../api/client";
import { texts } from "../texts";
import { characterOfOffset } from "./characters";
import { setSettings, setTrashed } from "./commands";
import type { OpenDocument } from "./document.svelte";
import { joinParts, splitAgain, type Fork } from "./forks";
import { areCurrent, replaceParts } from "./replace_texts";
import { startsOf } from "./path_text";
import { withNode, type ForkStep, type HistoryEntry, type NodeRef, type Step, type TextStep } from "./steps";
import type { Workspace } from "./workspace.svelte";

/** A step that is not possible any more, because the document was changed elsewhere. */
class OutdatedStepError extends Error {}

/** A node that takes the place of another one in later steps. */
interface NewNode {
  from: NodeRef;
  to: number;
}

/** Undoes and redoes entries of the history, one at a time. */
export class Undo {
  private running: Promise<void> = Promise.resolve();
  /** Whether the user has gone elsewhere while the present entry waited for the server. */
  private isElsewhere = false;

  constructor(private readonly workspace: Workspace) {}

  undo(): Promise<void> {
    return this.queue(async () => {
      const { commands, history, notices } = this.workspace;
      await commands.branchesStarted();
      const entry = await this.prepared(() => history.nextUndo, "undo");
      if (entry === undefined) notices.show(texts.history.nothingToUndo);
      else if (await this.run(entry, "undo", () => history.dropUndo())) {
        history.moveToRedo();
        notices.show(texts.history.undone(entry.title));
      }
    });
  }

  redo(): Promise<void> {
    return this.queue(async () => {
      const { history, notices } = this.workspace;
      const entry = await this.prepared(() => history.nextRedo, "redo");
      if (entry === undefined) notices.show(texts.history.nothingToRedo);
      else if (await this.run(entry, "redo", () => history.dropRedo())) {
        history.moveToUndo();
        notices.show(texts.history.redone(entry.title));
      }
    });
  }

  private queue(work: () => Promise<void>): Promise<void> {
    const done = this.running.then(work);
    this.running = done.catch(() => {});
    return done;
  }

  /** Returns an entry whose typed text is stored, where its steps need nodes. */
  private async prepared(next: () => HistoryEntry | undefined, direction: "undo" | "redo"): Promise<HistoryEntry | undefined> {
    const isText = next()?.[direction].every(({ kind }) => kind === "text") ?? true;
    // Storing gives the typed text its nodes, also in the entry.
    if (!isText) await this.workspace.typing?.flush();
    return next();
  }

  /** Runs the steps of an entry. Returns whether all were possible; an entry that never will be is dropped. */
  private async run(entry: HistoryEntry, direction: "undo" | "redo", drop: () => void): Promise<boolean> {
    const { workspace } = this;
    this.isElsewhere = false;
    try {
      if (entry.document !== null && !(await workspace.open(entry.document))) return false;
      await this.steps(entry[direction]);
      return true;
    } catch (error) {
      const isOutdated = error instanceof OutdatedStepError || (error instanceof ApiError && [404, 409].includes(error.status));
      if (isOutdated) {
        drop();
        workspace.notices.show(texts.history.changedElsewhere(entry.title), { isError: true });
      } else if (error instanceof ApiError || error instanceof ConnectionError) {
        workspace.notices.showError(error, entry.title);
      } else {
        throw error;
      }
      return false;
    }
  }

  /** Performs steps. Later steps name the nodes that earlier ones have made. */
  private async steps([step, ...later]: readonly Step[]): Promise<void> {
    if (step === undefined) return;
    const made = await this.step(step);
    await this.steps(made ? later.map((each) => withNode(each, made.from, made.to)) : later);
  }

  /** Performs a step. Returns the node that it has made, with the one whose place it takes. */
  private async step(step: Step): Promise<NewNode | void> {
    const { workspace } = this;
    const { client } = workspace;
    if (step.kind === "document") {
      workspace.library.answered(await client.changeDocument(step.document, step.change));
      return;
    }
    if (step.kind === "settings") return setSettings(workspace, step.document, step.values);
    const document = workspace.document!;
    switch (step.kind) {
      case "text":
        return this.replaceText(document, step);
      case "go":
        return this.go(document, step.node, step.cursor);
      case "fields": {
        const { node } = await client.changeNode(document.id, stored(step.node), step.fields);
        document.answered([node]);
        return;
      }
      case "parts": {
        if (!areCurrent(document, step.parts)) throw new OutdatedStepError();
        const { failure } = await replaceParts(workspace, document, step.parts);
        if (failure !== null) throw failure;
        return;
      }
      case "trash": {
        const path = document.currentPath;
        await setTrashed(workspace, document, step.nodes.map(stored), step.is_trashed);
        const { currentId } = document;
        this.isElsewhere = currentId !== null && !path.includes(currentId);
        return;
      }
      case "move": {
        const parent = step.parent === null ? null : stored(step.parent);
        const { nodes } = await client.moveNode(document.id, stored(step.node), parent, step.index);
        document.answered(nodes);
        return;
      }
      case "split": {
        const node = stored(step.node);
        const at = { character: characterOfOffset(document.node(node)?.text ?? "", step.at) };
        const { nodes } = await client.splitNode(document.id, node, at);
        document.answered(nodes);
        return this.replaceNode(document, step.child, nodes[1]!.id);
      }
      case "merge": {
        const node = stored(step.node);
        const { nodes, deleted } = await client.mergeNode(document.id, node);
        document.answered(nodes, deleted);
        if (document.currentId === null || deleted.includes(document.currentId)) document.go(node);
        return;
      }
      case "unfork":
        return joinParts(client, document, forkOf(step));
      case "fork": {
        const rest = await splitAgain(client, document, forkOf(step));
        if (rest === null) throw new OutdatedStepError();
        return this.replaceNode(document, step.rest, rest);
      }
    }
  }

  private replaceNode(document: OpenDocument, from: NodeRef, to: number): NewNode {
    this.workspace.history.rename(document.id, from, to);
    return { from, to };
  }

  private async replaceText(document: OpenDocument, step: TextStep): Promise<void> {
    const typing = this.workspace.typing!;
    const isShown = () => typing.segments.some(({ key }) => key === step.node);
    if (!isShown()) document.go(typeof step.leaf === "number" ? step.leaf : null);
    if (!isShown() && typeof step.node === "number") document.go(step.node);
    if (!typing.replace(step)) throw new OutdatedStepError();
    await tick();
    const { segments } = typing;
    const start = startsOf(segments)[segments.findIndex(({ key }) => key === step.node)]!;
    this.workspace.editor?.moveTo(start + step.at + step.inserted.length);
  }

  private async go(document: OpenDocument, node: NodeRef | null, cursor: number | null): Promise<void> {
    if (typeof node === "string" || this.isElsewhere) return;
    document.go(node);
    await tick();
    this.workspace.editor?.moveTo(cursor);
  }
}

function forkOf({ node, at, rest, branches }: ForkStep): Fork {
  return { node: stored(node), at, rest: stored(rest), branches: branches.map(stored) };
}

/** Returns the id of a node that must be stored. */
function stored(node: NodeRef): number {
  if (typeof node === "number") return node;
  throw new OutdatedStepError();
}
