/** What other parts of the page may ask of the text column. Offsets are UTF-16 units. */
export interface EditorHandle {
  /** Node and offset in its text at which the cursor stands; null where no stored text is. */
  readonly cursor: { node: number; offset: number } | null;
  /** Offset of the cursor in the whole text column. */
  readonly position: number;
  /** Selected text. */
  readonly selectedText: string;
  focus(): void;
  /** Moves the cursor to an offset of the text column (null: to where typing continues it), and shows it. */
  moveTo(position: number | null): void;
  /** Selects a part of a node's text, and shows it. The node must be on the current path. */
  reveal(node: number, offset: number, length?: number): void;
}
