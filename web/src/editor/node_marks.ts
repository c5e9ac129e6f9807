import { type EditorState, type Extension, StateEffect, StateField } from "@codemirror/state";
import { Decoration, type DecorationSet, EditorView, WidgetType } from "@codemirror/view";
import type { Workspace } from "../model/workspace.svelte";
import { pathField } from "./path_field";

/** What the marks show of a node. */
interface NodeMark {
  label: string;
  isRunning: boolean;
}

/** Effect that sets what the marks show, by node. */
export const marksChanged = StateEffect.define<ReadonlyMap<number, NodeMark>>();

/** Marks the nodes of the path: labels as headings, the current node, and where a branch is writing. */
export function nodeMarks(_workspace: Workspace): Extension {
  return [marks, decorations];
}

const marks = StateField.define<ReadonlyMap<number, NodeMark>>({
  create: () => new Map(),
  update(value, transaction) {
    for (const effect of transaction.effects) if (effect.is(marksChanged)) return effect.value;
    return value;
  },
});

const decorations = StateField.define<DecorationSet>({
  create: decorate,
  update(value, transaction) {
    const isChanged = transaction.docChanged || transaction.state.field(pathField) !== transaction.startState.field(pathField);
    const hasNewMarks = transaction.effects.some((effect) => effect.is(marksChanged));
    return isChanged || hasNewMarks ? decorate(transaction.state) : value;
  },
  provide: (field) => EditorView.decorations.from(field),
});

function decorate(state: EditorState): DecorationSet {
  const segments = state.field(pathField);
  const known = state.field(marks);
  const ranges = [];
  for (const [index, { node, from, to }] of segments.entries()) {
    const mark = node === null ? undefined : known.get(node);
    if (mark?.label) ranges.push(Decoration.widget({ widget: new LabelWidget(mark.label), block: true, side: -1 }).range(from));
    const isLast = index === segments.length - 1;
    if (isLast && index > 0) ranges.push(Decoration.widget({ widget: CURRENT, side: -1 }).range(from));
    if (mark?.isRunning) ranges.push(Decoration.widget({ widget: WRITING, side: 1 }).range(to));
  }
  return Decoration.set(ranges, true);
}

class LabelWidget extends WidgetType {
  constructor(private readonly label: string) {
    super();
  }

  override eq(other: LabelWidget): boolean {
    return other.label === this.label;
  }

  override toDOM(): HTMLElement {
    const heading = document.createElement("div");
    heading.className = "cm-node-label";
    heading.textContent = this.label;
    return heading;
  }
}

/** A mark without text. */
class MarkWidget extends WidgetType {
  constructor(private readonly className: string) {
    super();
  }

  override eq(other: MarkWidget): boolean {
    return other.className === this.className;
  }

  override toDOM(): HTMLElement {
    const mark = document.createElement("span");
    mark.className = this.className;
    mark.setAttribute("aria-hidden", "true");
    return mark;
  }
}

/** Where the current node begins. */
const CURRENT = new MarkWidget("cm-current-node");

/** Where a branch is writing. */
const WRITING = new MarkWidget("cm-writing");
