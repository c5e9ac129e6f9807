import { describe, expect, test } from "vitest";

import { folderNames, folderTree, normalFolder } from "./folders";
import { detectFormat, fileName, titleOfFile } from "./formats";
import { excerptParts, grouped, type SearchHit } from "./search_hits";

describe("the format of a file", () => {
  test.each([
    ["json", "a.json", JSON.stringify({ format: "weft document", version: 1, nodes: [] })],
    ["loom", "a.json", JSON.stringify({ root: { text: "a", children: [] } })],
    ["mikupad", "a.json", JSON.stringify({ prompt: JSON.stringify([{ type: "user", content: "a" }]) })],
    ["sillytavern", "a.json", JSON.stringify({ entries: { 0: { key: ["fox"], content: "red" } } })],
    ["koboldai", "a.json", JSON.stringify({ gamestarted: true, prompt: "a", actions: ["b"] })],
    ["koboldai", "a.json", JSON.stringify([{ key: "fox", content: "red" }])],
    ["koboldai", "a.json", JSON.stringify({ prompt: "Once" })],
    ["markdown", "a.md", "No heading"],
    ["markdown", "a", "\n# The fox\n\nThere was a fox."],
    ["text", "a", "There was a #fox."],
    ["text", "a.txt", "# not a heading"],
    ["text", "a", "{not JSON"],
    ["text", "a", '{"other": 1}'],
  ])("is %s", (format, name, content) => {
    expect(detectFormat(name, content)).toBe(format);
  });

  test("names files that every system takes", () => {
    expect(fileName('A/B: "fox"?\u202e', "md", "story")).toBe("A B fox.md");
    expect(fileName(" .. ", "txt", "story")).toBe("story.txt");
    expect(fileName("x".repeat(200), "json", "story")).toBe(`${"x".repeat(80)}.json`);
    expect(titleOfFile("folder/The fox.loom.json")).toBe("The fox");
  });
});

describe("folders", () => {
  const document = (id: string, folder: string, changed_ms: number) => ({
    id,
    title: `t${id}`,
    folder,
    is_trashed: false,
    changed_ms,
  });
  const documents = [document("1", "", 1), document("2", "b/c", 2), document("3", "a", 3), document("10", "/a/ ", 4)];

  test("hold documents, the last changed first", () => {
    const root = folderTree(documents, "changed");
    expect(folderNames(root)).toEqual(["a", "b", "b/c"]);
    expect(root.documents.map((each) => each.id)).toEqual(["1"]);
    expect(root.folders[0]?.documents.map((each) => each.id)).toEqual(["10", "3"]);
    expect(root.folders[1]?.folders[0]).toMatchObject({ path: "b/c", name: "c", level: 2 });
  });

  test("sort titles with their numbers", () => {
    expect(folderTree(documents, "title").folders[0]?.documents.map((each) => each.id)).toEqual(["3", "10"]);
  });

  test("have names without empty parts", () => {
    expect(normalFolder(" a //b/")).toBe("a/b");
    expect(normalFolder("/x".repeat(100)).split("/").length).toBe(8);
  });
});

describe("hits", () => {
  const hit = (values: Partial<SearchHit>): SearchHit => ({
    document: "d",
    title: "D",
    node: 1,
    field: "text",
    start: 0,
    length: 3,
    excerpt: "fox",
    ...values,
  });

  test("are grouped by document", () => {
    const groups = grouped([hit({}), hit({ document: "e" }), hit({ node: 2 })]);
    expect(groups.map((each) => [each.document, each.hits.map((one) => one.node)])).toEqual([
      ["d", [1, 2]],
      ["e", [1]],
    ]);
  });

  test("count characters beyond the basic plane as one", () => {
    expect(excerptParts(hit({ start: 2, length: 3, excerpt: "😀 fox 😀" }))).toEqual({
      before: "😀 ",
      match: "fox",
      after: " 😀",
    });
    const excerpt = `${"a".repeat(60)}fox.`;
    expect(excerptParts(hit({ start: 100, excerpt }))).toEqual({ before: `…${"a".repeat(60)}`, match: "fox", after: "." });
  });
});
