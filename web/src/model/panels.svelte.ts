import { tick } from "svelte";

/** Panels of the left column. */
export const LEFT_PANELS = ["tree", "library"] as const;
/** Panels of the right column. */
export const RIGHT_PANELS = ["branches", "context", "presets", "token"] as const;

/** Screens on which columns are drawers, as the style sheets have it. */
export const NARROW = "(max-width: 60rem)";

export type LeftPanel = (typeof LEFT_PANELS)[number];
export type RightPanel = (typeof RIGHT_PANELS)[number];
export type PanelId = LeftPanel | RightPanel;
export type Side = "left" | "right";

/** Which panel each column shows, and on narrow screens which column covers the text. */
export class Panels {
  left = $state<LeftPanel>("library");
  right = $state<RightPanel>("branches");

  /** Column that is open as a drawer on a narrow screen. */
  drawer = $state<Side | null>(null);

  /** Shows a panel and moves the focus into it. */
  show(id: PanelId): void {
    if (isLeft(id)) this.left = id;
    else this.right = id;
    this.drawer = isLeft(id) ? "left" : "right";
    void this.focus(id);
  }

  /** Shows a panel without moving the focus. */
  select(id: PanelId): void {
    if (isLeft(id)) this.left = id;
    else this.right = id;
  }

  /** Opens or closes the drawer of a column on a narrow screen. */
  toggle(side: Side): void {
    if (this.drawer === side) this.close();
    else this.show(this[side]);
  }

  /** Closes the drawer of a narrow screen. */
  close(): void {
    this.drawer = null;
  }

  private async focus(id: PanelId): Promise<void> {
    await tick();
    const panel = document.querySelector<HTMLElement>(`[data-panel="${id}"]`);
    const target =
      panel?.querySelector<HTMLElement>("[data-autofocus]") ??
      panel?.querySelector<HTMLElement>("[tabindex='0'], input, button") ??
      panel;
    target?.focus();
  }
}

function isLeft(id: PanelId): id is LeftPanel {
  return (LEFT_PANELS as readonly string[]).includes(id);
}
