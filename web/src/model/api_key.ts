const STORAGE_KEY = "weft.key";

/** Keeps an API key over reloads of this tab if the user wishes that, else forgets it. */
export function rememberKey(key: string, isRemembered: boolean): void {
  try {
    if (isRemembered) sessionStorage.setItem(STORAGE_KEY, key);
    else sessionStorage.removeItem(STORAGE_KEY);
  } catch {
    // A browser without storage asks for the key again.
  }
}

/** Returns the API key that this tab keeps, or null. */
export function rememberedKey(): string | null {
  return sessionStorage.getItem(STORAGE_KEY);
}
