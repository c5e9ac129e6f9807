import type { PopoverMode } from "../model/token_inspector.svelte";

/** Time for which a pointer rests on a token before it is inspected, in milliseconds. */
const HOVER_MS = 350;
/** Time until a pointer that has left is forgotten, so that it may enter the popover, in milliseconds. */
const LEAVE_MS = 300;
/** Duration of a long press, in milliseconds. */
const PRESS_MS = 500;
/** Distance that a finger may move during a long press, in CSS pixels. */
const PRESS_SLOP = 10;

export interface TokenPosition {
  node: number;
  offset: number;
}

/** Turns movements of a pointer into tokens to inspect: where it rests, or after a long press. */
export class TokenPointer {
  /** True if the last press was long. */
  wasLongPress = false;

  private hovering: ReturnType<typeof setTimeout> | undefined;
  private leaving: ReturnType<typeof setTimeout> | undefined;
  private pressing: ReturnType<typeof setTimeout> | undefined;
  private start = { x: 0, y: 0 };

  /**
   * @param positionAt Returns the position in a text at a point of the window; null if no text is there.
   * @param inspect Inspects the token at a position.
   * @param dismiss Called when the pointer is at no text any more.
   */
  constructor(
    private readonly positionAt: (x: number, y: number) => TokenPosition | null,
    private readonly inspect: (position: TokenPosition, mode: PopoverMode) => void,
    private readonly dismiss: () => void,
  ) {}

  move({ clientX: x, clientY: y, pointerType, buttons }: PointerEvent): void {
    clearTimeout(this.hovering);
    if (Math.hypot(x - this.start.x, y - this.start.y) > PRESS_SLOP) clearTimeout(this.pressing);
    if (pointerType === "touch" || buttons !== 0) return;
    this.hovering = setTimeout(() => {
      const position = this.positionAt(x, y);
      if (position === null) return this.leave();
      clearTimeout(this.leaving);
      this.inspect(position, "hover");
    }, HOVER_MS);
  }

  leave(): void {
    clearTimeout(this.hovering);
    clearTimeout(this.leaving);
    this.leaving = setTimeout(() => {
      // The pointer may have gone into the popover.
      if (document.querySelector(".token-popover:hover") === null) this.dismiss();
    }, LEAVE_MS);
  }

  press({ clientX: x, clientY: y, pointerType }: PointerEvent): void {
    this.wasLongPress = false;
    clearTimeout(this.hovering);
    clearTimeout(this.pressing);
    if (pointerType !== "touch") return;
    this.start = { x, y };
    this.pressing = setTimeout(() => {
      const position = this.positionAt(x, y);
      if (position === null) return;
      this.wasLongPress = true;
      this.inspect(position, "pinned");
    }, PRESS_MS);
  }

  /** A tap inspects a token if `showsTapped` is true. */
  release({ clientX: x, clientY: y, pointerType }: PointerEvent, showsTapped = false): void {
    clearTimeout(this.pressing);
    const hasMoved = Math.hypot(x - this.start.x, y - this.start.y) > PRESS_SLOP;
    if (pointerType !== "touch" || !showsTapped || this.wasLongPress || hasMoved) return;
    const position = this.positionAt(x, y);
    if (position !== null) this.inspect(position, "hover");
  }

  /** Ends a press that has become something else, such as scrolling. */
  cancel(): void {
    clearTimeout(this.pressing);
  }
}
