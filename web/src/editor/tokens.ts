import { type Extension, RangeSetBuilder, StateEffect } from "@codemirror/state";
import { Decoration, type DecorationSet, EditorView, ViewPlugin, type ViewUpdate } from "@codemirror/view";
import { mount, unmount, untrack } from "svelte";
import { type Level, levelOf } from "../model/probability";
import { type TokenHost, tokenInspector } from "../model/token_inspector.svelte";
import { tokenPreferences } from "../model/token_preferences.svelte";
import { tokenGroups } from "../model/token_text";
import { tokenStore } from "../model/tokens.svelte";
import type { Workspace } from "../model/workspace.svelte";
import TokenPopover from "../siblings/TokenPopover.svelte";
import { TokenPointer, type TokenPosition } from "../siblings/token_pointer";
import { fromModel, pathChanged, pathField, type Segment, segmentOf } from "./path_field";
import { watchTokens } from "./token_watch.svelte";
import "./token_marks.css";

/** Effect after which the marks of tokens are made again. */
const tokensChanged = StateEffect.define<null>();

const MARKS: Readonly<Record<Exclude<Level, "certain">, Decoration>> = {
  likely: Decoration.mark({ class: "token-mark token-likely" }),
  possible: Decoration.mark({ class: "token-mark token-possible" }),
  unlikely: Decoration.mark({ class: "token-mark token-unlikely" }),
  rare: Decoration.mark({ class: "token-mark token-rare" }),
};

const INSPECTED = Decoration.mark({ class: "token-inspected" });

/** Marks tokens by their probability, and shows the one under the pointer or at the cursor with its alternatives. */
export function tokenMarks(workspace: Workspace): Extension {
  const plugin = ViewPlugin.define((view) => untrack(() => new TokenLayer(view, workspace)), {
    decorations: (layer) => layer.marks,
    eventHandlers: {
      pointermove(event) {
        this.pointerMoved(event);
      },
      pointerleave(event) {
        // A finger leaves when it is lifted.
        if (event.pointerType !== "touch") this.pointer.leave();
      },
      pointerdown(event) {
        this.pointer.press(event);
      },
      pointerup(event) {
        this.pointer.release(event, tokenPreferences.isShownOnHover);
      },
      pointercancel() {
        this.pointer.cancel();
      },
    },
  });
  return [plugin, EditorView.decorations.of((view) => view.plugin(plugin)?.inspected ?? Decoration.none)];
}

class TokenLayer implements TokenHost {
  marks: DecorationSet = Decoration.none;
  inspected: DecorationSet = Decoration.none;

  readonly pointer = new TokenPointer(
    (x, y) => this.positionAt(x, y),
    ({ node, offset }, mode) => void this.inspector.show(this, node, offset, mode),
    () => this.inspector.popover === "hover" && this.inspector.dismiss(),
  );

  private readonly inspector;
  private readonly popover;
  private readonly endWatch;
  private frame = 0;

  constructor(
    private readonly view: EditorView,
    private readonly workspace: Workspace,
  ) {
    this.inspector = tokenInspector(workspace);
    this.inspector.textHost = this;
    this.popover = mount(TokenPopover, { target: document.body, props: { workspace } });
    this.endWatch = watchTokens(workspace, () => this.schedule());
    this.build();
  }

  update(update: ViewUpdate): void {
    const effects = update.transactions.flatMap((transaction) => transaction.effects);
    const isChanged = update.docChanged || update.viewportChanged;
    if (isChanged || effects.some((effect) => effect.is(tokensChanged) || effect.is(pathChanged))) untrack(() => this.build());
    const isTyped =
      update.docChanged && update.transactions.some((each) => each.docChanged && each.annotation(fromModel) !== true);
    untrack(() => {
      if (isTyped && this.inspector.host === this) this.inspector.dismiss();
      if (update.selectionSet || update.docChanged) this.cursorMoved();
    });
  }

  destroy(): void {
    cancelAnimationFrame(this.frame);
    this.endWatch();
    this.inspector.dismiss();
    if (this.inspector.textHost === this) this.inspector.textHost = null;
    void unmount(this.popover);
  }

  // TokenHost

  rectangle(node: number, from: number, to: number): DOMRect | null {
    const segment = segmentOf(this.view.state, node);
    if (segment === undefined || segment.from + to > this.view.state.doc.length) return null;
    const start = this.view.coordsAtPos(segment.from + from, 1);
    const end = this.view.coordsAtPos(segment.from + to, -1);
    if (start === null) return null;
    const visible = this.view.scrollDOM.getBoundingClientRect();
    if (start.bottom < Math.max(visible.top, 0) || start.top > Math.min(visible.bottom, innerHeight)) return null;
    const right = end !== null && end.top === start.top ? end.right : start.right;
    return new DOMRect(start.left, start.top, Math.max(0, right - start.left), start.bottom - start.top);
  }

  reveal(node: number, from: number, to: number): void {
    const segment = segmentOf(this.view.state, node);
    if (segment === undefined) return;
    const end = Math.min(segment.from + to, this.view.state.doc.length);
    this.view.dispatch({ effects: EditorView.scrollIntoView(Math.min(segment.from + from, end), { yMargin: 96 }) });
  }

  neighbor(node: number, step: 1 | -1): number | null {
    const segments = this.segments;
    const index = segments.findIndex((segment) => segment.node === node);
    for (let next = index + step; next >= 0 && next < segments.length; next += step) {
      const segment = segments[next]!;
      if (segment.node !== null && segment.to > segment.from) return segment.node;
    }
    return null;
  }

  focus(): void {
    this.view.focus();
  }

  pointerMoved(event: PointerEvent): void {
    if (tokenPreferences.isShownOnHover && this.inspector.popover !== "pinned") this.pointer.move(event);
  }

  private get segments(): readonly Segment[] {
    return this.view.state.field(pathField);
  }

  /** Makes the marks again in the next frame; many tokens may come in one. */
  private schedule(): void {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() =>
      this.view.dispatch({ effects: tokensChanged.of(null), annotations: fromModel.of(true) }),
    );
  }

  private cursorMoved(): void {
    const { head } = this.view.state.selection.main;
    const index = segmentIndex(this.segments, head);
    const segment = this.segments[index] ?? this.segments.at(-1);
    if (segment != null && segment.node !== null) this.inspector.moveCursor(this, segment.node, head - segment.from);
  }

  /** Returns the position of the character at a point of the window. */
  private positionAt(x: number, y: number): TokenPosition | null {
    const caret = this.view.posAtCoords({ x, y });
    if (caret === null) return null;
    // The caret may be after the character at the point.
    const position = [caret, caret - 1].find((each) => {
      const rectangle = each < 0 ? null : this.view.coordsForChar(each);
      return rectangle !== null && x >= rectangle.left && x <= rectangle.right && y >= rectangle.top && y <= rectangle.bottom;
    });
    if (position === undefined) return null;
    const segment = this.segments[segmentIndex(this.segments, position)];
    return segment === undefined || segment.node === null ? null : { node: segment.node, offset: position - segment.from };
  }

  private build(): void {
    const { state } = this.view;
    const store = tokenStore(this.workspace);
    this.inspected = this.inspectedRange();
    const builder = new RangeSetBuilder<Decoration>();
    if (store !== null && tokenPreferences.isMarked) {
      for (const visible of this.view.visibleRanges) {
        for (let index = segmentIndex(this.segments, visible.from); index < this.segments.length; index += 1) {
          const segment = this.segments[index]!;
          if (segment.from >= visible.to) break;
          if (segment.node === null) continue;
          store.request(segment.node);
          const tokens = store.get(segment.node);
          if (tokens === null) continue;
          const from = Math.max(0, visible.from - segment.from);
          const to = Math.min(segment.to, visible.to) - segment.from;
          const shown = state.sliceDoc(segment.from + from, segment.from + to);
          const nSame = commonLength(shown, tokens.text.slice(from, to));
          for (const group of tokenGroups(tokens.text, tokens.tokens, from, to)) {
            const level = group.logprob === null ? "certain" : levelOf(group.logprob);
            const [start, end] = [Math.max(group.from, from), Math.min(group.to, to)];
            // Text that was changed since is not that of the tokens.
            if (level === "certain" || start >= end || end > from + nSame) continue;
            builder.add(segment.from + start, segment.from + end, MARKS[level]);
          }
        }
      }
    }
    this.marks = builder.finish();
  }

  private inspectedRange(): DecorationSet {
    const { range, host } = this.inspector;
    const segment = range === null || host !== this ? undefined : segmentOf(this.view.state, range.node);
    if (range === null || segment === undefined) return Decoration.none;
    const [from, to] = [segment.from + range.from, Math.min(segment.from + range.to, segment.to)];
    // The cursor already shows where the token is that the panel describes.
    if (from >= to || this.inspector.popover === null) return Decoration.none;
    return Decoration.set([INSPECTED.range(from, to)]);
  }
}

/** Returns the index of the segment that has the character at a position; the number of segments after the end. */
function segmentIndex(segments: readonly Segment[], position: number): number {
  let low = 0;
  let high = segments.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (segments[middle]!.to <= position) low = middle + 1;
    else high = middle;
  }
  return low;
}

function commonLength(one: string, other: string): number {
  const end = Math.min(one.length, other.length);
  if (one.slice(0, end) === other.slice(0, end)) return end;
  let n = 0;
  while (one.charCodeAt(n) === other.charCodeAt(n)) n += 1;
  return n;
}
