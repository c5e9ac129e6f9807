import type { Workspace } from "./model/workspace.svelte";

const LAST_KEY = "weft.last";

/** Keeps the open document and its current node in the fragment of the address, so that a reload shows them again. */
export function followLocation(workspace: Workspace): void {
  window.addEventListener("hashchange", () => void openLocation(workspace));
  let wasOpen = false;
  $effect.root(() => {
    $effect(() => {
      const { document } = workspace;
      if (document === null) {
        if (wasOpen && workspace.opening === null) history.replaceState(null, "", location.pathname + location.search);
        return;
      }
      wasOpen = true;
      remember(document.id);
      const hash = `#${document.id}/${document.currentId ?? ""}`;
      if (hash === location.hash) return;
      // Another document is a step of the browser's history, another node is not.
      const isSameDocument = location.hash.startsWith(`#${document.id}`);
      if (isSameDocument || location.hash === "") history.replaceState(null, "", hash);
      else history.pushState(null, "", hash);
    });
  });
}

/** Opens the document that the address names. */
async function openLocation(workspace: Workspace): Promise<void> {
  const [document = "", node = ""] = location.hash.slice(1).split("/");
  if (document !== "") await workspace.open(document, /^\d+$/.test(node) ? Number(node) : null);
}

/** Opens the document that the address names, or else the one that was open last in this browser, if it is still there. */
export async function openFirst(workspace: Workspace): Promise<void> {
  if (location.hash.length > 1) return openLocation(workspace);
  const last = workspace.library.documents.get(localStorage.getItem(LAST_KEY) ?? "");
  if (last !== undefined && !last.is_trashed) await workspace.open(last.id);
}

function remember(document: string): void {
  try {
    localStorage.setItem(LAST_KEY, document);
  } catch {
    // Without space in the browser, the page begins without a document.
  }
}
