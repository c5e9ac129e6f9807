/** Cards of a long list that are in the DOM, and their height. All cards have the same one. */

/** Bounds of a card's height, in units of the font size. */
const MIN_HEIGHT = 11;
const MAX_HEIGHT = 24;

/** Cards above and below the viewport, so that scrolling shows no gaps. */
const OVERSCAN = 2;

/** Returns the height of cards in CSS pixels: a few cards share the viewport, many are as low as their content allows. */
export function cardHeight(viewport: number, n: number, rem: number): number {
  const share = n > 0 ? Math.floor(viewport / n) : 0;
  return Math.round(Math.max(MIN_HEIGHT * rem, Math.min(MAX_HEIGHT * rem, share)));
}

export function cardWindow(scrollTop: number, viewport: number, height: number, n: number): { first: number; end: number } {
  const first = Math.max(0, Math.min(n - 1, Math.floor(scrollTop / height)) - OVERSCAN);
  const end = Math.min(n, Math.ceil((scrollTop + viewport) / height) + OVERSCAN);
  return { first, end: Math.max(first, end) };
}

/** Returns the scroll position that shows a card, moving as little as needed. */
export function scrollToCard(index: number, scrollTop: number, viewport: number, height: number): number {
  const top = index * height;
  if (top < scrollTop || height > viewport) return top;
  return top + height > scrollTop + viewport ? top + height - viewport : scrollTop;
}
