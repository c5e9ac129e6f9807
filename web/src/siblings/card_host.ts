import type { TokenHost } from "../model/token_inspector.svelte";

/** Shows tokens in the cards of branches. */
export const cardHost = {
  rangeOf,

  rectangle(node: number, from: number, to: number): DOMRect | null {
    const range = rangeOf(node, from, to);
    const container = textElement(node);
    if (range === null || container === null) return null;
    const [rectangle] = range.getClientRects();
    const visible = container.getBoundingClientRect();
    if (rectangle === undefined || rectangle.bottom < visible.top || rectangle.top > visible.bottom) return null;
    return rectangle;
  },

  reveal(node: number, from: number, to: number): void {
    const rectangle = rangeOf(node, from, to)?.getBoundingClientRect();
    const container = textElement(node);
    if (rectangle === undefined || container === null) return;
    const visible = container.getBoundingClientRect();
    if (rectangle.top < visible.top) container.scrollTop -= visible.top - rectangle.top;
    else if (rectangle.bottom > visible.bottom) container.scrollTop += rectangle.bottom - visible.bottom;
  },

  neighbor: () => null,

  focus(): void {
    document.querySelector<HTMLElement>(".branch[tabindex='0']")?.focus({ preventScroll: true });
  },
} satisfies TokenHost & { rangeOf: unknown };

/** Returns the node and the offset in its text at a point of the window; null if no card shows text there. */
export function cardPosition(x: number, y: number): { node: number; offset: number } | null {
  const found = caretAt(x, y);
  if (found === null || !(found.node instanceof Text)) return null;
  const container = found.node.parentElement?.closest<HTMLElement>("[data-branch-text]");
  if (!container) return null;
  // The caret may be after the character at the point.
  for (const offset of [found.offset, found.offset - 1]) {
    if (offset < 0 || offset >= found.node.length) continue;
    const range = document.createRange();
    range.setStart(found.node, offset);
    range.setEnd(found.node, offset + 1);
    const isAt = [...range.getClientRects()].some(
      ({ left, right, top, bottom }) => x >= left && x <= right && y >= top && y <= bottom,
    );
    if (isAt) return { node: Number(container.dataset.branchText), offset: Number(container.dataset.start) + offset };
  }
  return null;
}

function caretAt(x: number, y: number): { node: Node; offset: number } | null {
  if ("caretPositionFromPoint" in document) {
    const position = document.caretPositionFromPoint(x, y);
    return position && { node: position.offsetNode, offset: position.offset };
  }
  // Safari has another name for it.
  const range = (document as Document & { caretRangeFromPoint(x: number, y: number): Range | null }).caretRangeFromPoint(x, y);
  return range && { node: range.startContainer, offset: range.startOffset };
}

function textElement(node: number): HTMLElement | null {
  return document.querySelector<HTMLElement>(`[data-branch-text="${node}"]`);
}

function rangeOf(node: number, from: number, to: number): Range | null {
  const container = textElement(node);
  const text = [...(container?.childNodes ?? [])].find((child) => child instanceof Text && child.length > 0) as
    Text | undefined;
  if (!container || !text) return null;
  const start = from - Number(container.dataset.start);
  if (start < 0 || start > text.length) return null;
  const range = document.createRange();
  range.setStart(text, start);
  range.setEnd(text, Math.min(text.length, to - Number(container.dataset.start)));
  return range;
}
