import type { Action } from "../actions";
import { storyContext } from "../model/story_context.svelte";
import type { Workspace } from "../model/workspace.svelte";
import { texts } from "../texts";
import { promptText, savePrompt } from "./export_prompt";
import { contextTabs, type ContextTab } from "./tabs.svelte";

const t = texts.context;

function show(tab: ContextTab): (workspace: Workspace) => void {
  return (workspace) => {
    contextTabs.current = tab;
    workspace.panels.show("context");
  };
}

const hasDocument = (workspace: Workspace) => workspace.document !== null;

export const contextActions: readonly Action[] = [
  {
    id: "context.memory",
    title: t.showMemory,
    group: "context",
    keys: ["1"],
    scope: "context",
    isEnabled: hasDocument,
    run: show("memory"),
  },
  {
    id: "context.lore",
    title: t.showLore,
    group: "context",
    keys: ["2"],
    scope: "context",
    isEnabled: hasDocument,
    run: show("lore"),
  },
  {
    id: "context.prompt",
    title: t.showPrompt,
    group: "context",
    keys: ["3"],
    scope: "context",
    isEnabled: hasDocument,
    run: show("prompt"),
  },
  {
    id: "context.save",
    title: t.exportPrompt,
    group: "context",
    isEnabled: (workspace) => (workspace.document?.currentId ?? null) !== null,
    run: async (workspace) => {
      try {
        savePrompt(workspace, promptText(await storyContext(workspace).composeNow()));
      } catch (error) {
        workspace.notices.showError(error, t.exportPrompt);
      }
    },
  },
];
