/** Reads as much of an ONNX file's graph as a picture of it needs. */

export interface GraphNode {
  readonly name: string;
  readonly operator: string;
  readonly inputs: readonly string[];
  readonly outputs: readonly string[];
}

const text = new TextDecoder();

/** The fields of a protobuf message, each as its number and its bytes or, of a varint, its value. Fixed-width fields are skipped. */
function* fields(bytes: Uint8Array): Generator<[number, Uint8Array | number]> {
  let at = 0;
  const varint = () => {
    let value = 0;
    for (let scale = 1; ; scale *= 128) {
      const byte = bytes[at++];
      if (byte === undefined) throw new Error("it is cut off");
      value += (byte & 127) * scale;
      if (byte < 128) return value;
    }
  };
  while (at < bytes.length) {
    const key = varint();
    const [field, kind] = [Math.floor(key / 8), key % 8];
    if (kind === 0) yield [field, varint()];
    else if (kind === 1) at += 8;
    else if (kind === 5) at += 4;
    else if (kind === 2) {
      const length = varint();
      yield [field, bytes.subarray(at, (at += length))];
    } else throw new Error("it is no ONNX model");
  }
}

/** The nodes of a model's main graph, without those of loops and branches. */
export function readGraph(bytes: Uint8Array): GraphNode[] {
  const nodes: GraphNode[] = [];
  for (const [field, graph] of fields(bytes)) {
    if (field !== 7 || typeof graph === "number") continue;
    for (const [of, node] of fields(graph)) {
      if (of !== 1 || typeof node === "number") continue;
      const inputs: string[] = [];
      const outputs: string[] = [];
      let [name, operator] = ["", ""];
      for (const [part, value] of fields(node)) {
        if (typeof value === "number") continue;
        if (part === 1) inputs.push(text.decode(value));
        else if (part === 2) outputs.push(text.decode(value));
        else if (part === 3) name = text.decode(value);
        else if (part === 4) operator = text.decode(value);
      }
      nodes.push({ name, operator, inputs, outputs });
    }
  }
  return nodes;
}
