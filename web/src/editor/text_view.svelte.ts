import { insertNewline, standardKeymap } from "@codemirror/commands";
import { Compartment, EditorState, type Transaction } from "@codemirror/state";
import { EditorView, keymap, placeholder } from "@codemirror/view";
import type { EditorHandle } from "../model/editor_handle";
import { type TextChange, textOf } from "../model/path_text";
import type { ShownSegment } from "../model/typing.svelte";
import type { Workspace } from "../model/workspace.svelte";
import { texts } from "../texts";
import { extensions } from "./extensions";
import { fromModel, pathChanged, pathField, segmentAt, segmentOf } from "./path_field";
import { planSync } from "./sync";

/** Distance from the end of the text, in pixels, within which the view follows text that is being written. */
const FOLLOW_PX = 80;

/** Space that stays free above and below a place that is shown, in pixels. */
const MARGIN_PX = 96;

/** Pause after which the text of an input method is in the editor, in milliseconds. */
const COMPOSED_MS = 60;

/** The text column: an editor whose text is that of the current path. */
export class TextView implements EditorHandle {
  readonly view: EditorView;

  private shown: readonly ShownSegment[] = [];
  private isComposing = false;
  /** Whether the user has moved the cursor since the last segment came. */
  private isCursorMoved = false;
  private readonly spellcheck = new Compartment();
  private selectionVersion = $state(0);

  constructor(
    parent: HTMLElement,
    private readonly workspace: Workspace,
  ) {
    this.view = new EditorView({
      parent,
      state: EditorState.create({
        extensions: [
          // Other line breaks are characters, so that offsets are those of the nodes' texts.
          EditorState.lineSeparator.of("\n"),
          EditorView.lineWrapping,
          EditorView.clipboardInputFilter.of((text) => text.replace(/\r\n?/g, "\n")),
          EditorView.contentAttributes.of({ "aria-label": texts.editor.label }),
          this.spellcheck.of([]),
          placeholder(texts.editor.placeholder),
          pathField,
          EditorView.domEventHandlers({
            compositionstart: () => this.composing(true),
            compositionend: () => this.composing(false),
          }),
          keymap.of([{ key: "Enter", run: insertNewline }, ...standardKeymap]),
          extensions.map((extension) => extension(workspace)),
        ],
      }),
      dispatchTransactions: (transactions, view) => this.dispatched(transactions, view),
    });
  }

  get cursor(): { node: number; offset: number } | null {
    void this.selectionVersion;
    const { head } = this.view.state.selection.main;
    const segment = segmentAt(this.view.state, head);
    return segment === undefined || segment.node === null ? null : { node: segment.node, offset: head - segment.from };
  }

  get position(): number {
    void this.selectionVersion;
    return this.view.state.selection.main.head;
  }

  get selectedText(): string {
    void this.selectionVersion;
    const { from, to } = this.view.state.selection.main;
    return this.view.state.sliceDoc(from, to);
  }

  focus(): void {
    this.view.focus();
  }

  moveTo(position: number | null): void {
    const anchor = Math.min(position ?? this.typingPosition(), this.view.state.doc.length);
    this.view.dispatch({ selection: { anchor }, effects: EditorView.scrollIntoView(anchor, { yMargin: MARGIN_PX }) });
  }

  reveal(node: number, offset: number, length = 0): void {
    const segment = segmentOf(this.view.state, node);
    if (segment === undefined) return;
    const anchor = Math.min(segment.from + offset, segment.to);
    const head = Math.min(anchor + length, segment.to);
    const effects = EditorView.scrollIntoView(anchor, { y: "center", yMargin: MARGIN_PX });
    this.view.dispatch({ selection: { anchor, head }, effects });
  }

  setSpellcheck(isOn: boolean): void {
    const attributes = EditorView.contentAttributes.of({
      spellcheck: String(isOn),
      autocorrect: isOn ? "on" : "off",
      autocapitalize: "sentences",
    });
    this.view.dispatch({ effects: this.spellcheck.reconfigure(attributes) });
  }

  /** Shows other segments, with the cursor where typing continues the text if another branch is shown. */
  show(next: readonly ShownSegment[]): void {
    const plan = planSync(this.shown, next);
    if (this.shown.at(-1)?.key !== next.at(-1)?.key) this.isCursorMoved = false;
    this.shown = next;
    if (this.isComposing && plan.changes === null) return;
    const isFollowing = plan.isGrowth && this.isAtEnd();
    const end = next.reduce((length, { text }) => length + text.length, 0);
    this.view.dispatch({
      changes: plan.changes ?? undefined,
      effects: [
        pathChanged.of(plan.segments),
        ...(plan.changes !== null && plan.divergence !== null
          ? [EditorView.scrollIntoView(plan.divergence, { yMargin: MARGIN_PX })]
          : isFollowing
            ? [EditorView.scrollIntoView(end, { y: "end", yMargin: FOLLOW_PX / 2 })]
            : []),
      ],
      selection: plan.changes !== null && plan.divergence !== null ? { anchor: this.typingPosition() } : undefined,
      annotations: fromModel.of(true),
    });
  }

  /** Moves the cursor to the end of the text, which a branch has written to its end, unless the user has moved it. */
  written(): void {
    if (this.isCursorMoved) return;
    const anchor = this.typingPosition();
    this.view.dispatch({ selection: { anchor }, annotations: fromModel.of(true) });
  }

  destroy(): void {
    this.view.destroy();
  }

  private dispatched(transactions: readonly Transaction[], view: EditorView): void {
    const cursor = view.state.selection.main.head;
    view.update(transactions);
    if (transactions.some(({ selection, docChanged }) => selection !== undefined || docChanged)) this.selectionVersion++;
    for (const transaction of transactions) {
      const isOwn = transaction.annotation(fromModel) !== true;
      if (transaction.docChanged && isOwn) this.edited(transaction, cursor);
      else if (transaction.selection !== undefined && isOwn) this.workspace.history.endTyping();
      if (transaction.isUserEvent("select")) this.isCursorMoved = true;
    }
  }

  private edited(transaction: Transaction, cursor: number): void {
    const changes: TextChange[] = [];
    transaction.changes.iterChanges((from, to, _fromNew, _toNew, insert) =>
      changes.push({ from, to, insert: insert.toString() }),
    );
    const typing = this.workspace.typing;
    if (typing === null) return;
    typing.edit(changes, cursor);
    const { segments } = typing;
    const [shownEnd, end] = [this.view.state.doc.length, textOf(segments).length];
    // Text that a branch is writing behind the edit stays with the branch.
    if (shownEnd > end) {
      this.view.dispatch({ changes: { from: end, to: shownEnd }, annotations: fromModel.of(true) });
    }
    this.shown = segments;
    // The text is there already; the segments of it follow.
    this.show(segments);
  }

  /** Leaves the marks around a text alone while an input method composes it. */
  private composing(isComposing: boolean): void {
    this.isComposing = isComposing;
    this.workspace.typing?.setComposing(isComposing);
    if (!isComposing) setTimeout(() => this.show(this.workspace.typing?.segments ?? []), COMPOSED_MS);
  }

  /**
   * Returns the end of the text, or of the text before a branch that is being written: what is typed meanwhile stands beside the
   * branch.
   */
  private typingPosition(): number {
    const last = this.shown.at(-1);
    const isWriting = last?.node != null && this.workspace.document?.node(last.node)?.state === "running";
    return textOf(isWriting ? this.shown.slice(0, -1) : this.shown).length;
  }

  private isAtEnd(): boolean {
    const { scrollDOM } = this.view;
    return scrollDOM.scrollHeight - scrollDOM.scrollTop - scrollDOM.clientHeight < FOLLOW_PX;
  }
}
