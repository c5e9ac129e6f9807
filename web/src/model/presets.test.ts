import { describe, expect, it } from "vitest";
import {
  applyPreset,
  BUILT_IN,
  branchedFields,
  checkNumber,
  checkValues,
  equalValues,
  findPreset,
  type LogitBias,
  NUMBER_FIELDS,
  parseNumber,
  parseValues,
  requestFields,
  VALUE_NAMES,
} from "./presets";
import { readSettings } from "./settings";

describe("numbers", () => {
  const field = (name: string) => {
    const found = Object.values(NUMBER_FIELDS)
      .flat()
      .find((each) => each.name === name);
    if (!found) throw new Error(name);
    return found;
  };

  it.each([
    ["temperature", "0.8", null],
    ["temperature", "0,8", null],
    ["temperature", "", null],
    ["temperature", "hot", "not_a_number"],
    ["temperature", "-1", "out_of_range"],
    ["top_k", "2.5", "not_an_integer"],
    ["top_p", "1.01", "out_of_range"],
    ["repeat_penalty", "0", "out_of_range"],
    ["repeat_penalty", "0.1", null],
    ["repeat_last_n", "-1", null],
    ["beam_width", "1", "out_of_range"],
    ["presence_penalty", "-3", null],
    ["min_p", "1e999", "not_a_number"],
  ])('%s = "%s": %s', (name, text, kind) => {
    expect(checkNumber(field(name), text)?.kind ?? null).toBe(kind);
  });

  it("may have a decimal comma, and are missing if empty", () => {
    expect(parseNumber(" 0,75 ")).toBe(0.75);
    expect(parseNumber(" ")).toBeUndefined();
  });

  it("out of range report the range", () => {
    expect(checkNumber(field("min_p"), "2")).toEqual({ field: "min_p", kind: "out_of_range", min: 0, max: 1 });
  });
});

describe("built-in presets", () => {
  it.each(BUILT_IN.map((preset) => [preset.name, preset.values] as const))("%s is valid", (_, values) => {
    expect(checkValues(values, 4, 4)).toEqual([]);
    expect(parseValues(values)).toEqual(values);
  });
});

describe("conflicts", () => {
  it.each([
    [{ mirostat: 2, distinct: true }, "mirostat"],
    [{ beam_width: 4, xtc_probability: 0.5 }, "xtc_probability"],
    [{ beam_width: 4, distinct: true }, "distinct"],
    [{ beam_width: 3 }, "beam_width"],
    [{ beam_width: 16 }, "beam_width"],
  ])("%o: %s", (values, field) => {
    expect(checkValues(values, 4, 8).map((problem) => problem.field)).toEqual([field]);
  });
});

describe("fields of a request", () => {
  it("leave out what is off", () => {
    expect(requestFields({ temperature: 0.5, mirostat: 0, mirostat_tau: 4, length_penalty: 2, stop: [] }, 4)).toEqual({
      temperature: 0.5,
    });
  });

  it("leave out biases without a text", () => {
    const logit_bias: LogitBias = [
      ["", 1],
      [" fox", false],
    ];
    expect(requestFields({ logit_bias }, 1)).toEqual({ logit_bias: [[" fox", false]] });
    expect(requestFields({ logit_bias: [["", 1]] }, 1)).toEqual({});
  });

  it("search with at least two beams", () => {
    expect(requestFields({ diverse: "beam" }, 1)).toEqual({ diverse: "beam", beam_width: 2 });
    expect(requestFields({ beam_width: 4, length_penalty: 0 }, 4)).toEqual({ beam_width: 4, length_penalty: 0 });
  });

  it("keep an empty list of breakers, which differs from the default", () => {
    expect(requestFields({ dry_sequence_breakers: [] }, 4)).toEqual({ dry_sequence_breakers: [] });
  });

  it("of branches take presets in turn, without fields of the whole group", () => {
    const own = { temperature: 2, stop: ["."] };
    const fields = branchedFields([{ temperature: 0.2 }, { temperature: 1, distinct: true, beam_width: 4 }], 3, own);
    expect(fields).toEqual({ stop: ["."], branches: [{ temperature: 0.2 }, { temperature: 1 }, { temperature: 0.2 }] });
  });

  it("are all named", () => {
    for (const { values } of BUILT_IN) for (const name of Object.keys(values)) expect(VALUE_NAMES).toContain(name);
  });
});

describe("settings", () => {
  it("of any JSON become defaults", () => {
    const broken = readSettings({
      memory: 4,
      author_note: [],
      lore: [null, 3, { keys: "x" }],
      sampling: { temperature: "hot" },
    });
    expect(broken.memory).toBe("");
    expect(broken.author_note).toEqual({ text: "", depth: 40, unit: "tokens" });
    expect(broken.lore).toEqual([expect.objectContaining({ keys: [], is_enabled: true, order: 100 })]);
    expect(broken.sampling).toEqual({});
    expect(readSettings({ seed: -1, n_probs: 21 })).toMatchObject({ seed: null, n_probs: null });
  });

  it("read imported notes and lore, whose depths have no unit", () => {
    const read = readSettings({
      author_note: { text: "N", depth: 3 },
      lore: [
        { name: "a", keys: ["k"], secondary_keys: [], text: "t", is_constant: true, is_enabled: true, order: 5, depth: 4 },
      ],
    });
    expect(read.author_note).toEqual({ text: "N", depth: 3, unit: "lines" });
    expect(read.lore[0]).not.toHaveProperty("unit");
  });
});

describe("presets", () => {
  it("of the document hide built-in ones of the same name", () => {
    expect(findPreset([{ name: "wild", values: { temperature: 9 } }], "wild")?.values).toEqual({ temperature: 9 });
    expect(findPreset([], "unknown")).toBeNull();
  });

  it("keep ends and biases that they do not have themselves", () => {
    const current = { temperature: 1, distinct: true, stop: ["."], ignore_eos: true };
    expect(applyPreset(current, { top_k: 3, ignore_eos: false })).toEqual({ top_k: 3, stop: ["."], ignore_eos: false });
  });

  it("are equal regardless of the order of their fields", () => {
    expect(equalValues({ temperature: 1, top_k: 2 }, { top_k: 2, temperature: 1 })).toBe(true);
    expect(equalValues({ temperature: 1 }, { temperature: 1, distinct: true })).toBe(false);
  });
});
