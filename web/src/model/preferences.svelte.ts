import type { BranchLength } from "./continue_request";

export interface PreferenceValues {
  theme: "system" | "light" | "dark";
  font: "serif" | "sans" | "mono";
  /** Size of the text, in pixels. */
  size: number;
  /** Width of the text column, in characters. */
  width: number;
  lineHeight: number;
  spellcheck: boolean;
  isFocusMode: boolean;
  /** Number of branches that one continuation begins. */
  branchCount: number;
  branchLength: BranchLength;
}

const DEFAULTS: PreferenceValues = {
  theme: "system",
  font: "serif",
  size: 18,
  width: 66,
  lineHeight: 1.65,
  spellcheck: true,
  isFocusMode: false,
  branchCount: 4,
  branchLength: 64,
};

const STORAGE_KEY = "weft.preferences";

/** How the page looks in this browser. */
export class Preferences {
  private values = $state<PreferenceValues>(DEFAULTS);

  /** @param storage Where they are kept, as `localStorage`. */
  constructor(private readonly storage: Pick<Storage, "getItem" | "setItem">) {
    try {
      const stored = JSON.parse(storage.getItem(STORAGE_KEY) ?? "{}") as Partial<PreferenceValues>;
      this.values = { ...DEFAULTS, ...stored };
    } catch {
      this.values = { ...DEFAULTS };
    }
  }

  get<Key extends keyof PreferenceValues>(key: Key): PreferenceValues[Key] {
    return this.values[key];
  }

  set<Key extends keyof PreferenceValues>(key: Key, value: PreferenceValues[Key]): void {
    this.values[key] = value;
    try {
      this.storage.setItem(STORAGE_KEY, JSON.stringify(this.values));
    } catch {
      // A browser without space shows them until the tab is closed.
    }
  }
}
