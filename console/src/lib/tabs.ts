// The open tab of a page or sheet, which the address names.
import { route } from "./router.svelte";

/** Returns the name of the tab in the address; the first one if there is no such tab. */
export function openedTab(tabs: Record<string, string>): string {
  const names = Object.keys(tabs);
  return names.find((name) => name === route.param("tab")) ?? names[0] ?? "";
}

/** Returns true if a key was pressed without a modifier that makes it a shortcut of the browser. */
export function isPlainKey(event: KeyboardEvent): boolean {
  // Some keyboards have brackets only with AltGr, which counts as Ctrl and Alt.
  return event.getModifierState("AltGraph") || !(event.altKey || event.ctrlKey || event.metaKey);
}
