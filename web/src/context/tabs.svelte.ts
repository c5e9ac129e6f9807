/** Tabs of the context panel. The chosen one stays while the panel is closed. */

export const TABS = ["memory", "lore", "prompt"] as const;
export type ContextTab = (typeof TABS)[number];

class ContextTabs {
  current = $state<ContextTab>("memory");
}

export const contextTabs = new ContextTabs();
