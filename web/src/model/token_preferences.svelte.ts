const STORAGE_KEY = "weft.tokens";

interface Values {
  /** Whether the text is marked by the probability of its tokens. */
  isMarked: boolean;
  /** Whether alternatives are shown under the pointer. */
  isShownOnHover: boolean;
}

const DEFAULTS: Values = { isMarked: false, isShownOnHover: true };

/** How tokens are shown in this browser. */
class TokenPreferences {
  private values = $state.raw<Values>(stored());

  get isMarked(): boolean {
    return this.values.isMarked;
  }

  get isShownOnHover(): boolean {
    return this.values.isShownOnHover;
  }

  set(change: Partial<Values>): void {
    this.values = { ...this.values, ...change };
    try {
      localStorage.setItem(STORAGE_KEY, JSON.stringify(this.values));
    } catch {
      // A browser without space shows them so until the tab is closed.
    }
  }
}

function stored(): Values {
  try {
    const given = JSON.parse(localStorage.getItem(STORAGE_KEY) ?? "{}") as Partial<Values>;
    return {
      isMarked: typeof given.isMarked === "boolean" ? given.isMarked : DEFAULTS.isMarked,
      isShownOnHover: typeof given.isShownOnHover === "boolean" ? given.isShownOnHover : DEFAULTS.isShownOnHover,
    };
  } catch {
    return DEFAULTS;
  }
}

export const tokenPreferences = new TokenPreferences();
