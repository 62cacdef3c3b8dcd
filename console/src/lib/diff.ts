// Line differences of two texts, by their longest common subsequence.

export interface DiffLine {
  kind: "same" | "added" | "removed";
  text: string;
}

// Maximum size of the table of subsequence lengths, which has one cell for each pair of lines.
const MAX_CELLS = 4_000_000;

export function diffLines(before: string, after: string): DiffLine[] {
  const [old, now] = [before.split("\n"), after.split("\n")];
  if (old.length * now.length > MAX_CELLS) {
    return [...old.map((text) => ({ kind: "removed" as const, text })), ...now.map((text) => ({ kind: "added" as const, text }))];
  }
  const width = now.length + 1;
  const lengths = new Uint32Array((old.length + 1) * width);
  const at = (i: number, j: number): number => lengths[i * width + j] ?? 0;
  for (let i = old.length - 1; i >= 0; i--) {
    for (let j = now.length - 1; j >= 0; j--) {
      lengths[i * width + j] = old[i] === now[j] ? at(i + 1, j + 1) + 1 : Math.max(at(i + 1, j), at(i, j + 1));
    }
  }
  const lines: DiffLine[] = [];
  let [i, j] = [0, 0];
  while (i < old.length || j < now.length) {
    if (i < old.length && j < now.length && old[i] === now[j]) {
      lines.push({ kind: "same", text: old[i] ?? "" });
      i++;
      j++;
    } else if (i < old.length && (j >= now.length || at(i + 1, j) >= at(i, j + 1))) {
      lines.push({ kind: "removed", text: old[i++] ?? "" });
    } else {
      lines.push({ kind: "added", text: now[j++] ?? "" });
    }
  }
  return lines;
}
