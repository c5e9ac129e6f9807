import type { OpenDocument } from "../model/document.svelte";
import { indexAmongAll, stepDestination, type Destination, type Direction } from "../model/tree_rows";
import type { Workspace } from "../model/workspace.svelte";
import { texts } from "../texts";
import type { TreeView } from "./tree_view.svelte";

/** Moves a node, and shows its row at the new place. */
export async function moveNode(
  workspace: Workspace,
  doc: OpenDocument,
  view: TreeView,
  id: number,
  destination: Destination,
): Promise<void> {
  const { parent, index } = destination;
  await workspace.commands.move(id, parent, indexAmongAll(doc.allChildren(parent), doc.children(parent), id, index));
  view.focus(id);
}

/** Moves the focused node by one step, or says why it cannot move. */
export async function stepNode(workspace: Workspace, doc: OpenDocument, view: TreeView, direction: Direction): Promise<void> {
  const id = view.focusedId;
  if (id === null) return;
  const destination = stepDestination(doc, id, direction);
  if (destination) await moveNode(workspace, doc, view, id, destination);
  else workspace.notices.show(texts.tree.cannotMove[direction]);
}
