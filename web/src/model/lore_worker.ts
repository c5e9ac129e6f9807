/** Worker that searches a text for regular expressions of the user, which may take any time. */

import { matches, type Matcher } from "./lore";

export interface SearchRequest {
  id: number;
  text: string;
  matchers: readonly Matcher[];
}

/** One answer for each expression, so that those before an endless one are known. */
export interface SearAnswer {
  id: number;
  nth: number;
  isFound: boolean;
}

addEventListener("message", ({ data: { id, text, matchers } }: MessageEvent<SearchRequest>) => {
  for (const [nth, matcher] of matchers.entries()) {
    postMessage({ id, nth, isFound: matches(matcher, text) } satisfies SearAnswer);
  }
});
