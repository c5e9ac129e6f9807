/** Characters of a branch's text that its card shows; the text column shows all. */
const MAX_SHOWN = 8000;

export interface ShownText {
  text: string;
  /** Offset of the shown part in the text. */
  start: number;
  /** Characters that are left out. */
  nCut: number;
}

/** Returns the part of a text that a card shows: its end while it is written, else its beginning. */
export function shownText(text: string, isRunning: boolean): ShownText {
  const nCut = Math.max(0, text.length - MAX_SHOWN);
  if (nCut === 0) {
    // Blank lines at the beginning would leave a card empty.
    const start = /^\n*/.exec(text)![0].length;
    return { text: text.slice(start), start, nCut };
  }
  // Halves of a pair would be shown as replacement characters.
  const isLow = (offset: number) => /[\udc00-\udfff]/.test(text.charAt(offset));
  if (isRunning) {
    const start = isLow(nCut) ? nCut + 1 : nCut;
    return { text: text.slice(start), start, nCut: start };
  }
  const end = isLow(MAX_SHOWN) ? MAX_SHOWN - 1 : MAX_SHOWN;
  return { text: text.slice(0, end), start: 0, nCut: text.length - end };
}
