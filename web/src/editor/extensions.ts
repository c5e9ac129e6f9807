import type { Extension } from "@codemirror/state";
import type { Workspace } from "../model/workspace.svelte";
import { nodeMarks } from "./node_marks";
import { tokenMarks } from "./tokens";

/** Makes a part of the text column's behaviour, such as the marks of tokens. */
export type EditorExtension = (workspace: Workspace) => Extension;

/** What the text column does besides showing and editing the text. */
export const extensions: readonly EditorExtension[] = [nodeMarks, tokenMarks];
