/** Chat templates: a model's own program in Jinja that makes a prompt of messages. */

import { WgfcError } from "./index.js";

/** A message of a conversation, in the form of OpenAI's chat completions. */
export interface Message {
  /** `system`, `user`, `assistant`, `tool`, or another role that the template knows. */
  readonly role: string;
  /** A text, or parts such as `{ type: "text", text: "Hello!" }`; null where there are only calls of tools. */
  readonly content?: string | readonly MessagePart[] | null;
  /** The calls of tools. Arguments are an object, or its JSON as a text. */
  readonly tool_calls?: readonly unknown[] | null;
  /** Further fields, such as `name` and `tool_call_id`. */
  readonly [field: string]: unknown;
}

export interface MessagePart {
  readonly type: string;
  readonly text?: string;
  readonly [field: string]: unknown;
}

/** The options of a chat template. */
export interface TemplateOptions {
  /** The functions that the model may call, each `{ type: "function", function: {…} }`. */
  readonly tools?: readonly unknown[];
  /** Further variables of the template, such as `{ enable_thinking: false }`. */
  readonly variables?: Readonly<Record<string, unknown>>;
}

/** The chat templates of a model and its special tokens. */
export interface ChatFiles {
  /** The texts of the templates by name. */
  readonly templates: ReadonlyMap<string, string>;
  /** The special tokens by the names of their variables, such as `bos_token`. */
  readonly special: Readonly<Record<string, string>>;
}

const DEFAULT = "default";
const TOOLS = "tool_use";
/** The largest number of characters of a template. */
const LARGEST = 1 << 18;
const NEEDLE = "<NEEDLE>";

/** The templates of `tokenizer_config.json` and `chat_template.jinja`; the latter takes the place of the default one. */
export function readChatFiles(config: string | undefined, template: string | undefined): ChatFiles {
  const wrong = (why: string) => new WgfcError("corrupt", `tokenizer_config.json ${why}: correct or remove the file`);
  let parsed: Readonly<Record<string, unknown>> = {};
  try {
    if (config !== undefined) parsed = JSON.parse(config) as typeof parsed;
  } catch (e) {
    throw wrong(`is no JSON (${(e as Error).message})`);
  }
  const special: Record<string, string> = {};
  for (const [name, value] of Object.entries(parsed)) {
    const text = typeof value === "string" ? value : (value as { content?: unknown } | null)?.content;
    if (name.endsWith("_token") && typeof text === "string") special[name] = text;
  }
  const given = parsed["chat_template"] ?? [];
  const list = typeof given === "string" ? [{ name: DEFAULT, template: given }] : given;
  if (!Array.isArray(list)) throw wrong("has a `chat_template` that is neither a string nor a list of templates");
  const templates = new Map<string, string>();
  for (const one of list as { name?: unknown; template?: unknown }[]) {
    if (typeof one?.name !== "string" || typeof one.template !== "string") throw wrong("has a `chat_template` with an entry without `name` or `template`");
    templates.set(one.name, one.template);
  }
  if (template !== undefined) templates.set(DEFAULT, template);
  return { templates, special };
}

/** Chat templates, of which each is parsed when it is used for the first time. */
export class ChatTemplates {
  readonly #files: ChatFiles;
  readonly #read = new Map<string, Promise<ChatTemplate>>();

  constructor(files: ChatFiles) {
    this.#files = files;
  }

  /** The special tokens by the names of their variables. */
  get special(): Readonly<Record<string, string>> {
    return this.#files.special;
  }

  /** The prompt for messages, which ends with the beginning of the assistant's next one. */
  async render(messages: readonly Message[], options: TemplateOptions = {}): Promise<string> {
    const { templates, special } = this.#files;
    const name = options.tools && templates.has(TOOLS) ? TOOLS : DEFAULT;
    const text = templates.get(name);
    if (text === undefined) {
      const others = templates.size ? `no chat template "${DEFAULT}", only ${[...templates.keys()].join(", ")}` : "no chat template";
      throw new WgfcError("shape", `the model has ${others}: put its tokenizer_config.json with chat_template, or chat_template.jinja, beside it, or continue a text with generate`);
    }
    const read = this.#read.get(name) ?? openTemplate(text, special);
    this.#read.set(name, read);
    return (await read).render(messages, options);
  }
}

/** A template with the variables that every conversation has. */
export class ChatTemplate {
  readonly #write: (variables: Record<string, unknown>) => string;
  readonly #special: Readonly<Record<string, string>>;
  #takes: { readonly text: boolean; readonly parts: boolean } | undefined;

  constructor(write: (variables: Record<string, unknown>) => string, special: Readonly<Record<string, string>>) {
    this.#write = write;
    this.#special = special;
  }

  render(messages: readonly Message[], { tools, variables }: TemplateOptions = {}): string {
    const takes = (this.#takes ??= this.#find());
    const adapted = messages.map((m, i) => {
      const { role, content = null, tool_calls, ...other } = m;
      if (typeof role !== "string") throw new WgfcError("shape", `message ${i + 1} has no \`role\``);
      return {
        role, content: contentFor(takes, content, i), ...(tool_calls?.length ? { tool_calls: tool_calls.map(call) } : {}), ...other,
      };
    });
    try {
      return this.#all(adapted, tools ?? null, variables);
    } catch (cause) {
      throw new WgfcError("shape", `the chat template refuses the messages, or fails: ${wordsOf(cause)}`, { cause });
    }
  }

  #all(messages: readonly object[], tools: unknown, variables: TemplateOptions["variables"] = {}): string {
    return this.#write({ ...this.#special, add_generation_prompt: true, ...variables, messages, tools, documents: null });
  }

  /** The forms of content that the template writes, found by trying it out. */
  #find(): { text: boolean; parts: boolean } {
    const writes = (content: unknown) => {
      try {
        const text = this.#all([{ role: "user", content }], null);
        // A template that knows no parts may write the list itself.
        return text.includes(NEEDLE) && !/['"]text['"]/.test(text);
      } catch {
        return false;
      }
    };
    const takes = { text: writes(NEEDLE), parts: writes([{ type: "text", text: NEEDLE }]) };
    // A template that writes neither refuses the message for another reason.
    return takes.text || takes.parts ? takes : { text: true, parts: true };
  }
}

/** Parses a template with the package `@huggingface/jinja`. */
export async function openTemplate(text: string, special: Readonly<Record<string, string>>): Promise<ChatTemplate> {
  let jinja: typeof import("@huggingface/jinja");
  try {
    jinja = await import("@huggingface/jinja");
  } catch (cause) {
    throw new WgfcError("feature", "chat templates are read by the package @huggingface/jinja: install it, or make the prompt yourself and use `complete`", { cause });
  }
  if (text.length > LARGEST) throw new WgfcError("corrupt", `the chat template has ${text.length} characters; at most ${LARGEST} are allowed`);
  try {
    const template = new jinja.Template(text);
    return new ChatTemplate((variables) => template.render(variables), special);
  } catch (cause) {
    throw new WgfcError("corrupt", `the chat template is not valid: ${wordsOf(cause)}`, { cause });
  }
}

const wordsOf = (e: unknown) => (e instanceof Error ? e.message : String(e));

/** The content of a message in a form that the template takes. */
function contentFor(takes: { text: boolean; parts: boolean }, content: Message["content"], i: number): unknown {
  if (typeof content === "string") return takes.text ? content : [{ type: "text", text: content }];
  if (!Array.isArray(content) || takes.parts) return content;
  const other = (content as MessagePart[]).find((p) => p.type !== "text" || typeof p.text !== "string");
  if (other) throw new WgfcError("shape", `message ${i + 1} has a part of type "${other.type}", and the chat template takes texts alone: give parts of type "text"`);
  return (content as MessagePart[]).map((p) => p.text).join("\n");
}

/** A call of a tool, whose arguments are an object if they were the JSON of one. */
function call(given: unknown): unknown {
  if (typeof given !== "object" || given === null) return given;
  const made: Record<string, unknown> = { ...given };
  if (made["function"]) made["function"] = call(made["function"]);
  if (typeof made["arguments"] === "string") {
    try {
      const parsed: unknown = JSON.parse(made["arguments"]);
      if (typeof parsed === "object" && parsed !== null && !Array.isArray(parsed)) made["arguments"] = parsed;
    } catch {
      // Arguments that are no JSON stay a text.
    }
  }
  return made;
}
