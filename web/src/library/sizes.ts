const UNITS = ["B", "kB", "MB", "GB"] as const;

/** Returns a number of bytes in words, as "12 MB". Units count by 1024, as the quotas of the server do. */
export function sizeText(nBytes: number): string {
  let size = nBytes;
  let unit = 0;
  // Not 1000 kB, but 1 MB.
  while (size >= 999.5 && unit < UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  const digits = size < 10 && unit > 0 ? 1 : 0;
  return `${size.toLocaleString("en", { maximumFractionDigits: digits })} ${UNITS[unit]}`;
}

const DAY_MS = 86_400_000;

/** Returns when something changed, as "today, 14:05". */
export function timeText(ms: number, now = Date.now()): string {
  const date = new Date(ms);
  const days = Math.floor((startOfDay(now) - startOfDay(ms)) / DAY_MS + 0.5);
  const time = date.toLocaleTimeString("en", { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
  if (days <= 0) return `today, ${time}`;
  if (days === 1) return `yesterday, ${time}`;
  const isThisYear = date.getFullYear() === new Date(now).getFullYear();
  return date.toLocaleDateString("en", { day: "numeric", month: "short", ...(!isThisYear && { year: "numeric" }) });
}

function startOfDay(ms: number): number {
  return new Date(ms).setHours(0, 0, 0, 0);
}
