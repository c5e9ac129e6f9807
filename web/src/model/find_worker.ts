/** Worker that finds regular expressions of the user, which may take any time. */

import { find, type FindTask, type Found } from "./find_replace";

export interface FindRequest {
  readonly id: number;
  readonly task: FindTask;
}

export interface FindAnswer {
  readonly id: number;
  readonly found: Found;
}

addEventListener("message", ({ data: { id, task } }: MessageEvent<FindRequest>) => {
  postMessage({ id, found: find(task) } satisfies FindAnswer);
});
