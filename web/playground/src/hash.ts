/** The content of a link, which is in the fragment of the address and not sent to servers. */

export interface Shared {
  /** `model`, or the name of a demo. */
  readonly view: string;
  /** The address of a model, or its contents if the file is small. */
  readonly model?: string;
  readonly file?: { readonly name: string; readonly bytes: Uint8Array };
  readonly dims: Readonly<Record<string, number>>;
  /** The index of the selected dispatch. */
  readonly dispatch?: number;
  /** The edited texts of kernels, by name. */
  readonly edits: Readonly<Record<string, string>>;
}

/** Files larger than this are not put into links. */
export const LARGEST_FILE = 24 << 10;

async function through(bytes: Uint8Array, stream: CompressionStream | DecompressionStream): Promise<Uint8Array> {
  const body = new Blob([bytes as BlobPart]).stream().pipeThrough(stream as ReadableWritablePair<Uint8Array, Uint8Array>);
  return new Uint8Array(await new Response(body as BodyInit).arrayBuffer());
}

function toText(bytes: Uint8Array): string {
  let s = "";
  for (const b of bytes) s += String.fromCharCode(b);
  return btoa(s).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

function fromText(text: string): Uint8Array {
  return Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0));
}

export async function encode(shared: Shared): Promise<string> {
  const { file, ...rest } = shared;
  const json = JSON.stringify({ ...rest, ...(file ? { file: { name: file.name, bytes: toText(file.bytes) } } : {}) });
  return `#1${toText(await through(new TextEncoder().encode(json), new CompressionStream("deflate-raw")))}`;
}

/** Reads the content of a link; undefined if it is damaged. */
export async function decode(hash: string): Promise<Shared | undefined> {
  const plain = /^#(\w+)$/.exec(hash);
  // The form of links that `wgfc serve` uses.
  const address = /^#model=(.+)$/.exec(hash);
  if (address) return { view: "model", model: decodeURIComponent(address[1]!), dims: {}, edits: {} };
  if (!hash.startsWith("#1")) return plain ? { view: plain[1]!, dims: {}, edits: {} } : undefined;
  try {
    const text = new TextDecoder().decode(await through(fromText(hash.slice(2)), new DecompressionStream("deflate-raw")));
    const value = JSON.parse(text) as Omit<Shared, "file"> & { file?: { name: string; bytes: string } };
    const { file, ...rest } = value;
    return { ...rest, dims: rest.dims ?? {}, edits: rest.edits ?? {}, ...(file ? { file: { name: file.name, bytes: fromText(file.bytes) } } : {}) };
  } catch {
    return undefined;
  }
}
