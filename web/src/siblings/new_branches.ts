import type { TokenAlternative } from "../api/types";
import { tokenInspector } from "../model/token_inspector.svelte";
import type { Workspace } from "../model/workspace.svelte";
import { branchesViewOf } from "./branches_view.svelte";

/** Starts branches with another token in place of the inspected one, and shows them. */
export async function chooseAlternative(workspace: Workspace, alternative: TokenAlternative): Promise<void> {
  await showBranches(workspace, tokenInspector(workspace).choose(alternative));
}

/** Starts branches after the inspected token, and shows them. */
export async function forkAtToken(workspace: Workspace): Promise<void> {
  await showBranches(workspace, tokenInspector(workspace).fork());
}

async function showBranches(workspace: Workspace, started: Promise<readonly number[]>): Promise<void> {
  const focused = document.activeElement;
  const [first] = await started;
  const view = branchesViewOf(workspace);
  if (first === undefined || view === null) return;
  view.focusedId = first;
  const { activeElement } = document;
  // The user may have gone on meanwhile.
  const isFocusFree = activeElement === focused || activeElement === document.body;
  if (isFocusFree) workspace.panels.show("branches");
  else workspace.panels.select("branches");
}
