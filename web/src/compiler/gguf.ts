/** The headers of GGUF files: metadata, and the places of tensors. Weights stay in the file. */

/** The largest header in bytes; vocabularies are most of one. */
const LARGEST = 256 << 20;
const FIRST = 1 << 20;
const [TEXT, LIST] = [8, 9];
/** The bytes of items of a fixed size, by their type. */
const WIDTHS: readonly (number | undefined)[] = [1, 1, 2, 2, 4, 4, 4, 1, undefined, undefined, 8, 8, 8];

/** Whether a file begins as GGUF files do. */
export function isGguf(bytes: Uint8Array): boolean {
  return new TextDecoder().decode(bytes.subarray(0, 4)) === "GGUF";
}

/** The header of a file of `size` bytes, read from its beginning. Of a file that is damaged, as much as was read, for the compiler's report. */
export async function headerOf(size: number, read: (to: number) => Promise<Uint8Array>): Promise<Uint8Array<ArrayBuffer>> {
  for (let bytes = FIRST; ; bytes *= 4) {
    const begin = await read(Math.min(bytes, size));
    const end = endOf(begin);
    if (end !== undefined || bytes >= size || bytes >= LARGEST) return begin.slice(0, end);
  }
}

/** The end of the header; undefined if it is beyond these bytes. */
export function endOf(bytes: Uint8Array): number | undefined {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let at = 8;
  const number = () => view.getUint32((at += 4) - 4, true);
  const count = () => Number(view.getBigUint64((at += 8) - 8, true));
  const skipText = () => {
    const length = count();
    at += length;
  };
  const skipItems = (type: number, items: number) => {
    const width = WIDTHS[type];
    if (width !== undefined) at += width * items;
    else if (type !== TEXT) return false;
    else for (let i = 0; i < items; i++) skipText();
    return true;
  };
  try {
    const [tensors, items] = [count(), count()];
    for (let i = 0; i < items; i++) {
      skipText();
      const type = number();
      const known = type === LIST ? skipItems(number(), count()) : skipItems(type, 1);
      // The compiler names the type that it does not know.
      if (!known) return bytes.length;
    }
    for (let i = 0; i < tensors; i++) {
      skipText();
      const rank = number();
      at += 8 * rank + 4 + 8;
    }
    return at <= bytes.length ? at : undefined;
  } catch (e) {
    if (e instanceof RangeError) return undefined;
    throw e;
  }
}
