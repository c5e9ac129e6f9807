import type { TokenAlternative } from "../api/types";
import { tokenInspector } from "../model/token_inspector.svelte";
import type { Workspace } from "../model/workspace.svelte";
import { branchesViewOf } from "./branches_view.svelte";

/** Starts branches with another token in place of the inspected one, and shows them. */
export async function chooseAlternative(workspace: Workspace, alternative: TokenAlternative): Promise<void> {
  showBranches(workspace, await tokenInspector(workspace).choose(alternative));
}

/** Starts branches after the inspected token, and shows them. */
export async function forkAtToken(workspace: Workspace): Promise<void> {
  showBranches(workspace, await tokenInspector(workspace).fork());
}

function showBranches(workspace: Workspace, [first]: readonly number[]): void {
  const view = branchesViewOf(workspace);
  if (first === undefined || view === null) return;
  view.focusedId = first;
  workspace.panels.show("branches");
}
