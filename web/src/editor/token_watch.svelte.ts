import { untrack } from "svelte";
import { tokenInspector } from "../model/token_inspector.svelte";
import { tokenPreferences } from "../model/token_preferences.svelte";
import { tokenStore } from "../model/tokens.svelte";
import type { Workspace } from "../model/workspace.svelte";

/** Calls a function when tokens have come, or are shown in another way. Returns a function that ends this. */
export function watchTokens(workspace: Workspace, changed: () => void): () => void {
  return $effect.root(() => {
    $effect(() => {
      void tokenPreferences.isMarked;
      const store = tokenStore(workspace);
      changed();
      return store?.onChange(changed);
    });
    $effect(() => {
      const inspector = tokenInspector(workspace);
      void inspector.range;
      void inspector.popover;
      untrack(changed);
    });
  });
}
