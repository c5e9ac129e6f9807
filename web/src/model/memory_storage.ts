/** Storage in memory, for tests. */
export class MemoryStorage {
  private readonly items = new Map<string, string>();

  /** @param limit Longest value that fits, in UTF-16 units. */
  constructor(private readonly limit = Infinity) {}

  get length(): number {
    return this.items.size;
  }

  key(index: number): string | null {
    return [...this.items.keys()][index] ?? null;
  }

  getItem(key: string): string | null {
    return this.items.get(key) ?? null;
  }

  setItem(key: string, value: string): void {
    if (value.length > this.limit) throw new Error("the storage is full");
    this.items.set(key, value);
  }

  removeItem(key: string): void {
    this.items.delete(key);
  }
}
