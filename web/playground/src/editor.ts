/** An editor of WGSL. */

import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { HighlightStyle, StreamLanguage, bracketMatching, syntaxHighlighting } from "@codemirror/language";
import { EditorState } from "@codemirror/state";
import { EditorView, drawSelection, highlightActiveLine, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";

const words = (text: string) => new Set(text.split(" "));
const KEYWORDS = words(
  "alias break case const const_assert continue continuing default diagnostic discard else enable fn for if let loop override requires return struct switch var while true false",
);
const TYPES = words("array atomic bool f16 f32 i32 mat2x2f mat3x3f mat4x4f mat4x4 ptr u32 vec2 vec3 vec4 vec2f vec3f vec4f vec2h vec4h vec2i vec3i vec4i vec2u vec3u vec4u function private storage uniform workgroup read read_write");

const wgsl = StreamLanguage.define<{ comment: number }>({
  name: "wgsl",
  startState: () => ({ comment: 0 }),
  token(stream, state) {
    // Block comments may be nested.
    if (state.comment > 0 || stream.match("/*")) {
      if (state.comment === 0) state.comment = 1;
      while (!stream.eol() && state.comment > 0) {
        if (stream.match("*/")) state.comment--;
        else if (stream.match("/*")) state.comment++;
        else stream.next();
      }
      return "comment";
    }
    if (stream.match("//")) {
      stream.skipToEnd();
      return "comment";
    }
    if (stream.match(/^(0[xX][\da-fA-F.]+([pP][+-]?\d+)?|\d+(\.\d*)?([eE][+-]?\d+)?|\.\d+)[iufh]?/)) return "number";
    if (stream.match(/^@\w+/)) return "meta";
    const word = stream.match(/^[A-Za-z_]\w*/) as RegExpMatchArray | null;
    if (word) {
      if (KEYWORDS.has(word[0])) return "keyword";
      if (TYPES.has(word[0])) return "typeName";
      return stream.match(/^\s*\(/, false) ? "variableName.function" : "variableName";
    }
    stream.next();
    return null;
  },
  languageData: { commentTokens: { line: "//", block: { open: "/*", close: "*/" } } },
});

const colours = HighlightStyle.define([
  { tag: tags.keyword, color: "var(--code-keyword)" },
  { tag: tags.typeName, color: "var(--code-type)" },
  { tag: tags.number, color: "var(--code-number)" },
  { tag: tags.comment, color: "var(--code-comment)", fontStyle: "italic" },
  { tag: tags.meta, color: "var(--code-meta)" },
  { tag: tags.function(tags.variableName), color: "var(--code-function)" },
]);

const theme = EditorView.theme({
  "&": { height: "100%", fontSize: "12.5px", backgroundColor: "transparent", color: "var(--ink)" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.5" },
  ".cm-gutters": { backgroundColor: "transparent", color: "var(--faint)", border: "none" },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "var(--hover)" },
  "&.cm-focused": { outline: "none" },
  ".cm-cursor": { borderLeftColor: "var(--ink)" },
  "&.cm-focused .cm-selectionBackground, .cm-selectionBackground": { backgroundColor: "var(--selection) !important" },
  ".cm-matchingBracket": { backgroundColor: "var(--selection)", outline: "none" },
});

export interface Editor {
  readonly element: HTMLElement;
  /** Shows a text. Changes to it are reported with its key. */
  show(key: string, text: string): void;
}

/** Ctrl-Enter calls `run`. Escape followed by Tab leaves the editor. */
export function editor(label: string, changed: (key: string, text: string) => void, run: () => void): Editor {
  let current = "";
  const extensions = [
    lineNumbers(), history(), drawSelection(), bracketMatching(), highlightActiveLine(), wgsl, syntaxHighlighting(colours), theme,
    keymap.of([{ key: "Mod-Enter", run: () => (run(), true) }, ...defaultKeymap, ...historyKeymap, indentWithTab]),
    EditorView.contentAttributes.of({ "aria-label": label, spellcheck: "false" }),
    EditorView.updateListener.of((u) => {
      if (u.docChanged) changed(current, u.state.doc.toString());
    }),
  ];
  const view = new EditorView({ state: EditorState.create({ extensions }) });
  return {
    element: view.dom,
    show(key, text) {
      if (key === current && text === view.state.doc.toString()) return;
      current = key;
      view.setState(EditorState.create({ doc: text, extensions }));
    },
  };
}
