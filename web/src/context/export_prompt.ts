import type { ComposedPrompt } from "../model/composer";
import type { Workspace } from "../model/workspace.svelte";
import { texts } from "../texts";

/** Returns the text of a prompt as the model reads it, without the token that the vocabulary adds at its beginning. */
export function promptText(prompt: ComposedPrompt): string {
  return prompt.parts.map((part) => part.text).join("");
}

export async function copyPrompt(workspace: Workspace, text: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
    workspace.notices.show(texts.context.copied);
  } catch {
    workspace.notices.show(texts.context.copyFailed);
  }
}

/** Saves a text as a file with the title of the document. */
export function savePrompt(workspace: Workspace, text: string): void {
  const title = workspace.document?.record.title.replace(/[^\p{L}\p{N} ._-]+/gu, "").trim() || "prompt";
  const url = URL.createObjectURL(new Blob([text], { type: "text/plain;charset=utf-8" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = `${title} prompt.txt`;
  link.click();
  URL.revokeObjectURL(url);
}
