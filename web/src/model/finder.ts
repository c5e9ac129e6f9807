/** Runs searches: plain text on this thread, regular expressions of the user in a worker with a time limit. */

import { find, type FindTask, type Found } from "./find_replace";
import type { FindAnswer, FindRequest } from "./find_worker";

const EXPRESSION_MS = 5000;

/** The part of `Worker` that the finder uses. */
export interface FindingWorker {
  postMessage(request: FindRequest): void;
  terminate(): void;
  onmessage: ((event: MessageEvent<FindAnswer>) => void) | null;
  onerror: ((event: ErrorEvent) => void) | null;
}

/** A regular expression exceeded the time limit. */
export class SlowExpressionError extends Error {}

/** A later search replaced this one. */
export class SupersededError extends Error {}

export class Finder {
  readonly #start: () => FindingWorker;
  readonly #timeoutMs: number;
  #worker: FindingWorker | null = null;
  #cancel: (() => void) | null = null;
  #nRequests = 0;

  constructor(start: () => FindingWorker, timeoutMs = EXPRESSION_MS) {
    this.#start = start;
    this.#timeoutMs = timeoutMs;
  }

  /**
   * Returns the matches of a task, and cancels the search before it.
   *
   * @throws {SlowExpressionError} The expression took too long.
   * @throws {SupersededError} Another search was started meanwhile.
   */
  async find(task: FindTask): Promise<Found> {
    this.#cancel?.();
    if (!task.isExpression) return find(task);
    const worker = (this.#worker ??= this.#start());
    const id = (this.#nRequests += 1);
    return await new Promise<Found>((resolve, reject) => {
      const end = () => {
        clearTimeout(timer);
        this.#cancel = null;
      };
      const fail = (error: Error) => {
        end();
        // Only its end stops an expression.
        this.close();
        reject(error);
      };
      const timer = setTimeout(() => fail(new SlowExpressionError()), this.#timeoutMs);
      this.#cancel = () => fail(new SupersededError());
      worker.onmessage = ({ data }) => {
        if (data.id !== id) return;
        end();
        resolve(data.found);
      };
      worker.onerror = (event) => fail(new Error(event.message));
      worker.postMessage({ id, task });
    });
  }

  close(): void {
    this.#worker?.terminate();
    this.#worker = null;
  }
}
