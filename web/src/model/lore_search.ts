/** Search for the keys of lore entries: keywords on this thread, regular expressions of the user in a worker with a time limit. */

import { activate, matcher, matches, type LoreState, type Matcher } from "./lore";
import type { SearAnswer, SearchRequest } from "./lore_worker";
import type { LoreEntry } from "./settings";

/** Time for one regular expression. */
const EXPRESSION_MS = 250;
/** Time in which a worker starts. */
const START_MS = 2000;

/** The part of `Worker` that the search uses. */
export interface SearchWorker {
  postMessage(request: SearchRequest): void;
  terminate(): void;
  onmessage: ((event: MessageEvent<SearAnswer>) => void) | null;
  onerror: ((event: ErrorEvent) => void) | null;
}

export interface LoreMatches {
  states: LoreState[];
  /** Regular expressions that exceeded the time limit; they count as not found. */
  slow: string[];
}

export class LoreSearch {
  readonly #start: () => SearchWorker;
  readonly #expressionMs: number;
  readonly #startMs: number;
  #worker: SearchWorker | null = null;
  #nRequests = 0;
  /** Last search of the worker. */
  #last: Promise<unknown> = Promise.resolve();
  /** Expressions that were too slow once, which are not tried again. */
  readonly #slow = new Set<string>();

  constructor(start: () => SearchWorker, expressionMs = EXPRESSION_MS, startMs = START_MS) {
    this.#start = start;
    this.#expressionMs = expressionMs;
    this.#startMs = startMs;
  }

  /** Returns the state of each entry for a text, before the budget. */
  async search(entries: readonly LoreEntry[], text: string): Promise<LoreMatches> {
    const own = ownMatchers(entries);
    const search = this.#last.then(() => this.#found(own, text));
    this.#last = search.catch(() => undefined);
    const found = own.size ? await search : new Map<string, boolean>();
    const states = activate(entries, text, (each, scanned) =>
      each.isOwn ? found.get(key(each)) === true : matches(each, scanned),
    );
    return { states, slow: [...own.values()].filter((each) => this.#slow.has(key(each))).map((each) => key(each)) };
  }

  close(): void {
    this.#worker?.terminate();
    this.#worker = null;
  }

  async #found(own: ReadonlyMap<string, Matcher>, text: string): Promise<Map<string, boolean>> {
    const found = new Map<string, boolean>();
    let left = [...own.values()].filter((each) => !this.#slow.has(key(each)));
    while (left.length) {
      const nDone = await this.#ask(left, text, (each, isFound) => found.set(key(each), isFound));
      if (nDone < left.length) {
        this.#slow.add(key(left[nDone] as Matcher));
        this.close();
      }
      left = left.slice(nDone + 1);
    }
    return found;
  }

  /** Returns the number of expressions that were searched in time. */
  #ask(matchers: readonly Matcher[], text: string, add: (each: Matcher, isFound: boolean) => void): Promise<number> {
    const worker = (this.#worker ??= this.#start());
    const id = (this.#nRequests += 1);
    return new Promise((resolve, reject) => {
      let nDone = 0;
      // The first answer includes the start of the worker.
      let timer = setTimeout(() => resolve(nDone), this.#expressionMs + this.#startMs);
      worker.onmessage = ({ data }) => {
        if (data.id !== id) return;
        clearTimeout(timer);
        add(matchers[data.nth] as Matcher, data.isFound);
        nDone = data.nth + 1;
        if (nDone === matchers.length) resolve(nDone);
        else timer = setTimeout(() => resolve(nDone), this.#expressionMs);
      };
      worker.onerror = (event) => {
        clearTimeout(timer);
        this.close();
        reject(new Error(event.message));
      };
      worker.postMessage({ id, text, matchers });
    });
  }
}

function ownMatchers(entries: readonly LoreEntry[]): Map<string, Matcher> {
  const own = new Map<string, Matcher>();
  for (const entry of entries) {
    if (!entry.is_enabled || entry.is_constant) continue;
    for (const text of [...entry.keys, ...entry.secondary_keys]) {
      try {
        const each = matcher(text, entry);
        if (each.isOwn) own.set(key(each), each);
      } catch {
        // The entry shows that its key is invalid.
      }
    }
  }
  return own;
}

function key({ source, flags }: Matcher): string {
  return `/${source}/${flags}`;
}
