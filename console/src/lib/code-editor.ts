// JSON editor: CodeMirror with completion from a schema, and marks at the problems that the gateway found. It is loaded
// only when a page shows an editor. The editor is inside a shadow root. There, its styles need no `<style>` element,
// which the Content-Security-Policy forbids.
import { autocompletion, closeBrackets, closeBracketsKeymap, completionKeymap, snippet, type Completion, type CompletionContext, type CompletionResult } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
import { json, jsonParseLinter } from "@codemirror/lang-json";
import { bracketMatching, foldGutter, foldKeymap, HighlightStyle, indentUnit, syntaxHighlighting, syntaxTree } from "@codemirror/language";
import { lintGutter, lintKeymap, linter, type Diagnostic } from "@codemirror/lint";
import { highlightSelectionMatches, search, searchKeymap } from "@codemirror/search";
import { Annotation, Compartment, EditorState, type Extension } from "@codemirror/state";
import { drawSelection, EditorView, highlightActiveLine, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import type { Problem } from "./errors";
import { keysAt, parsePath, skeleton, valuesAt, type JsonPath, type JsonSchema } from "./json-schema";

type Node = ReturnType<ReturnType<typeof syntaxTree>["resolveInner"]>;

export interface EditorOptions {
  parent: ShadowRoot;
  text: string;
  label: string;
  isReadOnly: boolean;
  schema: JsonSchema | null;
  /** Values that completion offers in addition to those of the schema, by the last key of the path. */
  offers: () => Record<string, string[]>;
  /** Validates a document that is valid JSON, and returns its problems. */
  validate: ((text: string) => Promise<Problem[]>) | null;
  onchange: (text: string) => void;
  onsubmit: () => void;
}

/** Marks a change of the text that the page made, which is no edit of the user. */
const fromPage = Annotation.define<boolean>();
const VALIDATION_DELAY_MS = 600;
const MAX_VALIDATED_CHARS = 1_000_000;

const colors = HighlightStyle.define([
  { tag: tags.propertyName, color: "var(--accent)" },
  { tag: tags.string, color: "var(--text)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--warn)" },
  { tag: [tags.separator, tags.brace, tags.squareBracket], color: "var(--muted)" },
]);

const theme = EditorView.theme({
  "&": { fontSize: "12.5px", color: "var(--text)", backgroundColor: "var(--code)", borderRadius: "6px", height: "100%" },
  "&.cm-focused": { outline: "2px solid var(--accent)", outlineOffset: "-2px" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "19px" },
  ".cm-content": { caretColor: "var(--text)", padding: "8px 0" },
  ".cm-cursor": { borderLeftColor: "var(--text)" },
  ".cm-gutters": { backgroundColor: "var(--code)", color: "var(--muted)", border: "none" },
  ".cm-activeLine": { backgroundColor: "var(--hover)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": { backgroundColor: "var(--accent-soft)" },
  ".cm-tooltip, .cm-panels": { backgroundColor: "var(--raised)", color: "var(--text)", border: "1px solid var(--line-strong)", borderRadius: "6px" },
  ".cm-tooltip-autocomplete ul li[aria-selected]": { backgroundColor: "var(--accent-soft)", color: "var(--text)" },
  ".cm-completionDetail": { color: "var(--muted)", fontStyle: "normal" },
  ".cm-completionInfo": { maxWidth: "340px", fontFamily: "system-ui, sans-serif" },
  ".cm-textfield, .cm-button": { backgroundColor: "var(--panel)", backgroundImage: "none", color: "var(--text)", border: "1px solid var(--line-strong)" },
  ".cm-matchingBracket": { backgroundColor: "var(--accent-soft) !important" },
});

/** Returns the JSON path of a node of the syntax tree. */
function pathOf(node: Node, state: EditorState): JsonPath {
  const path: JsonPath = [];
  for (let at: Node | null = node; at?.parent; at = at.parent) {
    if (at.name === "Property") path.unshift(nameOf(at, state));
    else if (at.parent.name === "Array" && at.name !== "[" && at.name !== "]" && at.name !== ",") {
      let index = 0;
      for (let before = at.prevSibling; before; before = before.prevSibling) if (!/^[[\],]$/.test(before.name) && !before.type.isError) index += 1;
      path.unshift(index);
    }
  }
  return path;
}

function nameOf(property: Node, state: EditorState): string {
  const name = property.getChild("PropertyName");
  const text = name ? state.sliceDoc(name.from, name.to) : "";
  try {
    return String(JSON.parse(text));
  } catch {
    return text.replaceAll('"', "");
  }
}

/** Returns where the value at a path is, or the closest object or list around it. */
function rangeAt(state: EditorState, path: JsonPath): { from: number; to: number } {
  let node: Node | null = syntaxTree(state).topNode.firstChild;
  let range = { from: 0, to: Math.min(1, state.doc.length) };
  for (const step of path) {
    if (!node) break;
    if (typeof step === "number") {
      const items: Node[] = [];
      for (let child = node.firstChild; child; child = child.nextSibling) if (!/^[[\],]$/.test(child.name)) items.push(child);
      node = items[step] ?? null;
      if (node) range = { from: node.from, to: node.to };
    } else {
      const property: Node | undefined = node.getChildren("Property").find((one) => nameOf(one, state) === step);
      const name = property?.getChild("PropertyName");
      if (name) range = { from: name.from, to: name.to };
      node = property?.lastChild ?? null;
    }
  }
  return range;
}

function completeKey(root: JsonSchema, node: Node, context: CompletionContext): CompletionResult | null {
  const object = node.name === "Object" ? node : node.parent?.name === "Property" ? node.parent.parent : node.parent;
  if (object?.name !== "Object") return null;
  const isQuoted = node.name === "PropertyName" || context.matchBefore(/"[\w.-]*$/) !== null;
  const from = node.name === "PropertyName" ? node.from : (context.matchBefore(/"?[\w.-]*$/)?.from ?? context.pos);
  const to = node.name === "PropertyName" ? node.to : context.pos;
  const present = new Set(object.getChildren("Property").filter((one) => one.from !== node.parent?.from).map((one) => nameOf(one, context.state)));
  const hasValue = /^\s*:/.test(context.state.sliceDoc(to, to + 20).replace(/^"/, ""));
  const options = keysAt(root, pathOf(object, context.state))
    .filter((offer) => !present.has(offer.key))
    .map((offer): Completion => {
      const text = JSON.stringify(offer.key);
      const after = skeleton(root, offer.schema).replaceAll(/[{}]/g, "\\$&").replace("|", "${}");
      return {
        label: isQuoted ? text : offer.key,
        displayLabel: offer.key,
        detail: offer.isRequired ? "required" : "",
        type: "property",
        boost: offer.isRequired ? 5 : offer.schema.description === "an option of some providers" ? -20 : 0,
        ...(offer.schema.description ? { info: offer.schema.description } : {}),
        apply: hasValue ? text : (view, completion, start, end) => snippet(`${text}: ${after}`)(view, completion, start, Math.max(end, closingQuote(view.state, end))),
      };
    });
  return { from, to, options, validFor: /^"?[\w.-]*$/ };
}

/** Returns the position after a quote that closes an unfinished key. */
function closingQuote(state: EditorState, at: number): number {
  return state.sliceDoc(at, at + 1) === '"' ? at + 1 : at;
}

function completeValue(root: JsonSchema, node: Node, context: CompletionContext, offers: Record<string, string[]>): CompletionResult | null {
  const isText = node.name === "String";
  const before = context.matchBefore(/"?[\w@./-]*$/);
  const holder = isText || !["Property", "Array", "⚠"].includes(node.name) ? node : (node.childBefore(context.pos) ?? node);
  const inArray = node.name === "Array" || (isText && node.parent?.name === "Array");
  const path = inArray && !isText ? [...pathOf(node, context.state), 0] : pathOf(holder, context.state);
  if (!path.length) return null;
  const last = [...path].reverse().find((step) => typeof step === "string");
  const own = (last && offers[String(last)]) || [];
  const values = [...own, ...valuesAt(root, path)];
  if (!values.length) return null;
  const options = values.map((value): Completion => {
    const text = JSON.stringify(value);
    return { label: text, displayLabel: String(value), type: own.includes(String(value)) ? "variable" : "enum", boost: own.includes(String(value)) ? 10 : 0, apply: text };
  });
  return { from: isText ? node.from : (before?.from ?? context.pos), to: isText ? node.to : context.pos, options, validFor: /^"?[\w@./-]*$/ };
}

function completeFrom(root: JsonSchema, offers: () => Record<string, string[]>) {
  return (context: CompletionContext): CompletionResult | null => {
    const node = syntaxTree(context.state).resolveInner(context.pos, -1);
    const before = context.state.sliceDoc(0, context.pos).replace(/"?[\w@./-]*$/, "").trimEnd();
    const last = before.at(-1);
    if (!context.explicit && !context.matchBefore(/["\w@.-]$/)) return null;
    if (last === ":") return completeValue(root, node, context, offers());
    const isInArray = node.name === "Array" || node.parent?.name === "Array";
    if ((last === "[" || last === ",") && isInArray) return completeValue(root, node, context, offers());
    return completeKey(root, node, context);
  };
}

function problemLinter(validate: (text: string) => Promise<Problem[]>): Extension {
  return linter(
    async (view): Promise<Diagnostic[]> => {
      const text = view.state.doc.toString();
      if (jsonParseLinter()(view).length || text.length > MAX_VALIDATED_CHARS || !text.trim()) return [];
      const problems = await validate(text);
      return problems.map((problem) => ({ ...rangeAt(view.state, parsePath(problem.path)), severity: "error", message: `${problem.path} ${problem.message}` }));
    },
    { delay: VALIDATION_DELAY_MS },
  );
}

/** Replaces selected text. Browsers would copy its style into an attribute, which the page's policy forbids. */
function replaceSelection(event: InputEvent, view: EditorView): boolean {
  const text = event.data;
  if (event.inputType !== "insertText" || !text || event.isComposing || view.state.readOnly) return false;
  // Reads the selection from the page, because the editor updates its own later.
  const selection = (view.root as Document).getSelection?.();
  if (!selection || selection.isCollapsed || !selection.anchorNode || !selection.focusNode) return false;
  // The editor puts brackets and quotes around the selection, so they do not replace it.
  if (/^[[{("']$/.test(text)) return false;
  const ends = [view.posAtDOM(selection.anchorNode, selection.anchorOffset), view.posAtDOM(selection.focusNode, selection.focusOffset)];
  const [from, to] = [Math.min(...ends), Math.max(...ends)];
  view.dispatch({ changes: { from, to, insert: text }, selection: { anchor: from + text.length }, userEvent: "input.type", scrollIntoView: true });
  return true;
}

/** Opens an editor in a shadow root. */
export function openEditor(options: EditorOptions): { setText: (text: string) => void; setReadOnly: (isReadOnly: boolean) => void; close: () => void } {
  const access = new Compartment();
  const accessOf = (isReadOnly: boolean): Extension => [EditorState.readOnly.of(isReadOnly), EditorView.contentAttributes.of({ "aria-label": options.label, "aria-readonly": String(isReadOnly) })];
  const view = new EditorView({
    root: options.parent,
    parent: options.parent,
    state: EditorState.create({
      doc: options.text,
      extensions: [
        keymap.of([
          { key: "Mod-Enter", run: () => (options.onsubmit(), true) },
          ...closeBracketsKeymap, ...completionKeymap, ...searchKeymap, ...historyKeymap, ...foldKeymap, ...lintKeymap, ...defaultKeymap,
        ]),
        lineNumbers(), foldGutter(), history(), drawSelection(), bracketMatching(), closeBrackets(), highlightActiveLine(), highlightSelectionMatches(), search({ top: true }),
        indentUnit.of("  "), json(), syntaxHighlighting(colors), theme, lintGutter(), linter(jsonParseLinter()),
        autocompletion(options.schema ? { override: [completeFrom(options.schema, options.offers)] } : {}),
        ...(options.validate ? [problemLinter(options.validate)] : []),
        access.of(accessOf(options.isReadOnly)),
        EditorView.domEventHandlers({ beforeinput: replaceSelection }),
        EditorView.updateListener.of((update) => {
          if (update.docChanged && !update.transactions.some((one) => one.annotation(fromPage))) options.onchange(update.state.doc.toString());
        }),
      ],
    }),
  });
  return {
    setText: (text) => {
      if (text !== view.state.doc.toString()) view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: text }, annotations: fromPage.of(true) });
    },
    setReadOnly: (isReadOnly) => view.dispatch({ effects: access.reconfigure(accessOf(isReadOnly)) }),
    close: () => view.destroy(),
  };
}
