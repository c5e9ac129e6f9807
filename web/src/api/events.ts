import type { Client } from "./client";
import type { DocumentEvent } from "./types";

/** An event with its position in the stream. */
export interface ReceivedEvent {
  /** Id of the event, with which the stream can be resumed after it. */
  cursor: string;
  event: DocumentEvent;
}

/** Silence after which the connection counts as lost, in milliseconds. The server sends a comment every 30 s by default. */
const SILENCE_MS = 75_000;

/**
 * Reads the stream of events after a cursor, and calls `receive` with the events of each piece that arrives.
 *
 * Returns when the server ends the stream.
 *
 * @throws ApiError, ConnectionError or, after `signal`, the reason of its abort.
 */
export async function readEvents(
  client: Client,
  after: string | null,
  receive: (events: ReceivedEvent[]) => void,
  signal: AbortSignal,
): Promise<void> {
  const silence = new AbortController();
  let timer = 0;
  const restart = () => {
    clearTimeout(timer);
    timer = window.setTimeout(() => silence.abort(), SILENCE_MS);
  };
  restart();
  try {
    const response = await client.events(after, AbortSignal.any([signal, silence.signal]));
    const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
    const parser = new EventParser();
    for (let read = await reader.read(); !read.done; read = await reader.read()) {
      restart();
      const events = parser.push(read.value);
      if (events.length > 0) receive(events);
    }
  } finally {
    clearTimeout(timer);
  }
}

/** Splits the text of a stream of server-sent events into events, whatever pieces it arrives in. */
export class EventParser {
  private rest = "";

  /** Adds a piece of the stream. Returns the events that it completes. */
  push(piece: string): ReceivedEvent[] {
    const blocks = (this.rest + piece).split("\n\n");
    this.rest = blocks.pop()!;
    return blocks.map(parse).filter((event) => event !== null);
  }
}

/** Returns the event of a block of lines, or null for a comment. */
function parse(block: string): ReceivedEvent | null {
  let cursor = "";
  let data: string | null = null;
  for (const line of block.split("\n")) {
    if (line.startsWith("id: ")) cursor = line.slice("id: ".length);
    else if (line.startsWith("data: ")) data = line.slice("data: ".length);
  }
  return data === null ? null : { cursor, event: JSON.parse(data) as DocumentEvent };
}

/** Returns whether a cursor is at or before another one of the same run of the server; false if the two cannot be compared. */
export function isAtOrBefore(cursor: string, other: string): boolean {
  const [epoch, position] = split(cursor);
  const [otherEpoch, otherPosition] = split(other);
  return epoch === otherEpoch && position <= otherPosition;
}

function split(cursor: string): [string, number] {
  const at = cursor.lastIndexOf("-");
  return [cursor.slice(0, at), Number(cursor.slice(at + 1))];
}
