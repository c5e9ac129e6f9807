/** Rows of a long list that are in the DOM: those in the viewport, some around it, and the one with the focus. */

/** Rows above and below the viewport, so that scrolling shows no gaps. */
const OVERSCAN = 12;

/** Bound on the rows in the DOM, whatever the height of the viewport. */
export const MAX_ROWS = 400;

export interface RowWindow {
  readonly first: number;
  readonly end: number;
}

export function rowWindow(scrollTop: number, height: number, rowHeight: number, nRows: number): RowWindow {
  const visible = Math.max(0, Math.floor(scrollTop / rowHeight));
  const first = Math.max(0, Math.min(visible, nRows - 1) - OVERSCAN);
  const end = Math.min(nRows, Math.ceil((scrollTop + height) / rowHeight) + OVERSCAN, first + MAX_ROWS);
  return { first, end: Math.max(first, end) };
}

/** Returns the scroll position that shows a row, moving as little as needed. */
export function scrollToRow(index: number, scrollTop: number, height: number, rowHeight: number): number {
  const top = index * rowHeight;
  if (top < scrollTop) return top;
  return top + rowHeight > scrollTop + height ? top + rowHeight - height : scrollTop;
}
