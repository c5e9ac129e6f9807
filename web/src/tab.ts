/** Identity of this tab, under which unsaved text is kept. */
export interface Tab {
  id: string;
  /** Returns whether the tab with an id was closed. */
  isGone(id: string): boolean;
}

const STORAGE_KEY = "weft.tab";

/**
 * Returns the identity of this tab, the same one after a reload.
 *
 * A lock of the browser shows other tabs that it is open. Without locks, which browsers offer to secure pages only, no other tab
 * counts as gone; its text is stored when it is opened again.
 */
export async function openTab(): Promise<Tab> {
  let id = sessionStorage.getItem(STORAGE_KEY) ?? newId();
  const { locks } = navigator;
  if (locks === undefined) return remember(id, () => false);
  // A duplicated tab has a copy of the session's storage.
  if (!(await hold(locks, id))) {
    id = newId();
    await hold(locks, id);
  }
  const { held = [] } = await locks.query();
  const open = new Set(held.map(({ name }) => name));
  return remember(id, (tab) => !open.has(lockOf(tab)));
}

function remember(id: string, isGone: (id: string) => boolean): Tab {
  sessionStorage.setItem(STORAGE_KEY, id);
  return { id, isGone };
}

/** Holds the lock of a tab until the page is closed. Returns false if another tab has it. */
function hold(locks: LockManager, id: string): Promise<boolean> {
  return new Promise((resolve) => {
    void locks.request(lockOf(id), { ifAvailable: true }, (lock) => {
      resolve(lock !== null);
      return lock === null ? undefined : new Promise(() => {});
    });
  });
}

function lockOf(id: string): string {
  return `weft.tab.${id}`;
}

function newId(): string {
  return crypto.getRandomValues(new Uint32Array(2)).join("-");
}
