import { contextActions } from "./context/actions";
import { editorActions } from "./editor/actions";
import { isModified, matches } from "./keys";
import { libraryActions } from "./library/actions";
import type { Workspace } from "./model/workspace.svelte";
import { pageActions } from "./page_actions";
import { siblingsActions } from "./siblings/actions";
import type { texts } from "./texts";
import { treeActions } from "./tree/actions";

/** Part of the page in which the keys of an action work: everywhere, in the text, or around the focus (`data-scope`). */
export type Scope = "anywhere" | "text" | "tree" | "branches" | "context" | "presets" | "library" | "token";

/** Heading under which the sheet of keys lists an action. */
export type ActionGroup = keyof typeof texts.actions.groups;

/** Something that the user can do by key, by button or from the list of commands. */
export interface Action {
  id: string;
  title: string;
  group: ActionGroup;
  /** Names of its keys, see `keys.ts`. Keys without a modifier need a scope outside of the text. */
  keys?: readonly string[];
  /** Where its keys work; everywhere by default. */
  scope?: Scope;
  /** Whether its keys do what the browser has for them in text fields, as undo does. */
  isNativeInFields?: boolean;
  isEnabled?(workspace: Workspace): boolean;
  run(workspace: Workspace): unknown;
}

/** All actions of the page. The list of commands, the sheet of keys, buttons and keys run them. */
export class Actions {
  readonly all: readonly Action[] = [
    ...editorActions,
    ...pageActions,
    ...treeActions,
    ...siblingsActions,
    ...contextActions,
    ...libraryActions,
  ];

  private readonly byId = new Map(this.all.map((action) => [action.id, action]));

  constructor(private readonly workspace: Workspace) {}

  /** Returns an action; throws if there is none. */
  find(id: string): Action {
    const action = this.byId.get(id);
    if (action === undefined) throw new Error(`no action has the id ${id}`);
    return action;
  }

  isEnabled(action: Action): boolean {
    return action.isEnabled?.(this.workspace) ?? true;
  }

  /** Runs an action, if it is possible now. */
  run(id: string): void {
    const action = this.find(id);
    if (this.isEnabled(action)) action.run(this.workspace);
  }

  /** Runs the action of a key, if one has it where the focus is. */
  handleKey(event: KeyboardEvent): void {
    if (event.defaultPrevented || event.isComposing || isDialogOpen()) return;
    const scopes = scopesOf(event.target);
    const isTyping = isTextField(event.target);
    const isField = isTyping && !scopes.includes("text");
    const found = this.all.filter(({ keys, scope = "anywhere", isNativeInFields = false }) => {
      if (isNativeInFields && isField) return false;
      if (scope !== "anywhere" && !scopes.includes(scope)) return false;
      return keys?.some((key) => matches(event, key) && (isModified(key) || key === "Escape" || !isTyping)) ?? false;
    });
    // The nearest scope goes first.
    const rank = ({ scope = "anywhere" }: Action) => (scope === "anywhere" ? scopes.length : scopes.indexOf(scope));
    const action = found.sort((left, right) => rank(left) - rank(right)).find((each) => this.isEnabled(each));
    if (action === undefined) {
      // A key of an action that is not possible now must not do what the browser has for it.
      if (found.some(({ keys }) => keys?.some(isModified))) event.preventDefault();
      return;
    }
    event.preventDefault();
    action.run(this.workspace);
  }
}

/** Returns whether a dialog is open, whose keys are its own: Escape closes it. */
function isDialogOpen(): boolean {
  return document.querySelector("dialog[open]") !== null;
}

/** Returns the scopes around an element, the nearest first. */
function scopesOf(target: EventTarget | null): Scope[] {
  const scopes: Scope[] = [];
  let element = target instanceof Element ? target.closest<HTMLElement>("[data-scope]") : null;
  while (element !== null) {
    scopes.push(element.dataset.scope as Scope);
    element = element.parentElement?.closest<HTMLElement>("[data-scope]") ?? null;
  }
  return scopes;
}

function isTextField(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false;
  return target.isContentEditable || target.matches("input:not([type=checkbox], [type=radio], [type=range]), textarea, select");
}
