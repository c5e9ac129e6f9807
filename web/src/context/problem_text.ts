import type { Problem } from "../model/presets";
import { texts } from "../texts";

/** Returns the message for an invalid value, with the name of its field and the range. */
export function problemText(problem: Problem): string {
  const t = texts.presets.problems;
  const name = (field: string) => (texts.presets.fields as Readonly<Record<string, { label: string }>>)[field]?.label ?? field;
  const field = name(problem.field);
  switch (problem.kind) {
    case "not_a_number":
      return t.notANumber(field);
    case "not_an_integer":
      return t.notAnInteger(field);
    case "out_of_range":
      return t.outOfRange(field, problem.min, problem.max, problem.isMinExcluded === true);
    case "conflict":
      return t.conflict(field, name(problem.other));
    case "too_few_beams":
      return t.tooFewBeams(problem.n);
    case "too_many_beams":
      return t.tooManyBeams(problem.slots);
    case "exists":
      return t.exists;
    case "empty":
      return t.empty;
  }
}
