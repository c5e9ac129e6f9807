import { describe, expect, it } from "vitest";
import { loadDefaults, readWithDefaults, saveDefaults } from "./sampling_defaults";
import { readSettings } from "./settings";

class MemoryStorage {
  private readonly values = new Map<string, string>();
  getItem = (key: string) => this.values.get(key) ?? null;
  setItem = (key: string, value: string) => void this.values.set(key, value);
}

const storage = () => new MemoryStorage() as unknown as Storage;

describe("defaults of new documents", () => {
  it("are the balanced preset", () => {
    expect(loadDefaults(storage())).toMatchObject({ preset: "balanced", sampling: { temperature: 0.8 } });
  });

  it("are what was saved, for documents without parameters of their own", () => {
    const saved = storage();
    saveDefaults(readSettings({ sampling: { temperature: 2 }, presets: [{ name: "Mine", values: {} }], memory: "M" }), saved);
    expect(readWithDefaults({}, saved)).toMatchObject({
      sampling: { temperature: 2 },
      presets: [{ name: "Mine" }],
      memory: "",
    });
    expect(readWithDefaults({ memory: "N" }, saved)).toMatchObject({ sampling: { temperature: 2 }, memory: "N" });
    expect(readWithDefaults({ sampling: { temperature: 1 } }, saved)).toMatchObject({
      sampling: { temperature: 1 },
      presets: [{ name: "Mine" }],
    });
    expect(readWithDefaults({ presets: [] }, saved)).toMatchObject({ sampling: { temperature: 2 }, presets: [] });
  });

  it("ignore what is no JSON", () => {
    const broken = storage();
    broken.setItem("weft.sampling", "{");
    expect(loadDefaults(broken).preset).toBe("balanced");
  });
});
