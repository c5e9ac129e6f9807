import type { PathSegment } from "../model/path_text";

const WORD = /[\p{L}\p{N}][\p{L}\p{M}\p{N}]*(?:['’\-‐][\p{L}\p{N}][\p{L}\p{M}\p{N}]*)*/gu;

/** Pause after a change before words are counted again, in milliseconds. */
const PAUSE_MS = 250;

/** Returns the number of words of a text. */
export function countWords(text: string): number {
  return text.match(WORD)?.length ?? 0;
}

/** The number of words of the text column, a moment after it has changed. */
export class WordCount {
  total = $state(0);

  constructor(segments: () => readonly PathSegment[]) {
    $effect(() => {
      const shown = segments();
      const timer = setTimeout(() => (this.total = countWords(shown.map(({ text }) => text).join(""))), PAUSE_MS);
      return () => clearTimeout(timer);
    });
  }

  of(text: string): number {
    return countWords(text);
  }
}
