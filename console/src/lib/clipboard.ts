// Copies text to the clipboard. Pages without TLS have no clipboard API, so there a selected text field is copied.
import { toasts } from "./toasts.svelte";

export async function copyText(text: string, what = "Copied"): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = document.createElement("textarea");
    field.value = text;
    field.className = "off-screen";
    (document.querySelector("dialog[open]:last-of-type") ?? document.body).append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  toasts.show(what);
}
