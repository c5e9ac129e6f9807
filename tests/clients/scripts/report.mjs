// What the programs beside it have in common: features, each of which passes or fails, and a status that says so.

import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import { deflateSync, crc32 } from "node:zlib";

const features = [];

/** Where the server is, from the command line: without a path. */
export const url = process.argv[2].replace(/\/$/, "");

export const MODEL = "weft";

export const TOOL = {
  name: "get_weather",
  description: "The weather of a city",
  parameters: {
    type: "object",
    properties: { city: { type: "string" }, days: { type: "integer" } },
    required: ["city", "days"],
    additionalProperties: false,
  },
};

/** Imports a package from the current folder, where the client is installed. */
export const installed = async (name) => import(pathToFileURL(createRequire(`${process.cwd()}/`).resolve(name)));

/** A task of many steps, each of which calls what is named: of texts, or of lists of them for those of one turn. */
export const task = (steps) => ["This is to be done.", ...steps.map((calls, nth) => `Step ${nth + 1}: ${[calls].flat().join(" ")}`)].join("\n");

/** Marks a function that throws where the client cannot do this. */
export function feature(name, check) {
  features.push([name, check]);
}

/** A red square in PNG, in base64. */
export function picture() {
  const side = 32;
  const row = Buffer.concat([Buffer.from([0]), Buffer.alloc(side * 3).fill(Buffer.from([255, 0, 0]))]);
  const head = Buffer.alloc(13);
  head.writeUInt32BE(side, 0);
  head.writeUInt32BE(side, 4);
  head.set([8, 2, 0, 0, 0], 8);
  const chunk = (kind, data) => {
    const told = Buffer.concat([Buffer.from(kind), data]);
    const size = Buffer.alloc(4);
    size.writeUInt32BE(data.length);
    const sum = Buffer.alloc(4);
    sum.writeUInt32BE(crc32(told) >>> 0);
    return Buffer.concat([size, told, sum]);
  };
  const pixels = deflateSync(Buffer.concat(Array(side).fill(row)));
  const parts = [chunk("IHDR", head), chunk("IDAT", pixels), chunk("IEND", Buffer.alloc(0))];
  return Buffer.concat([Buffer.from("\x89PNG\r\n\x1a\n", "latin1"), ...parts]).toString("base64");
}

/** Tries every feature that was marked, says PASS or FAIL of each, and ends the program: 1 where any failed. */
export async function run() {
  let failed = 0;
  for (const [name, check] of features) {
    try {
      await check();
      console.log(`PASS ${name}`);
    } catch (error) {
      failed += 1;
      console.error(error);
      console.log(`FAIL ${name}: ${error.name}: ${String(error.message).split(/\s+/).join(" ").slice(0, 300)}`);
    }
  }
  process.exit(failed ? 1 : 0);
}
