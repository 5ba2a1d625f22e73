// Plans for tests, of few words.
export const port = (name, shape, buffer = 0, more = {}) => ({ name, dtype: "f32", shape, buffer, ...more });
export const buffer = (elements, kind, dtype = "f32") => ({ kind, dtype, elements });
export const kernel = (more = {}) => ({
  name: "k", family: "map", workgroup_size: [64, 1, 1], bindings: ["read", "read_write"], uses_dims: false, workgroup_bytes: 0, features: [],
  ...more,
});
export const dispatch = (more = {}) => ({ kernel: 0, bindings: [0, 1], workgroups: [1, 1, 1], nodes: ["n"], bytes: 0, flops: 0, ...more });

/** One dispatch from an input to an output. */
export const plan = (more = {}) => ({
  name: "", needs: { features: [], limits: {} }, inputs: [port("x", ["n", 4])], outputs: [port("y", ["n", 4], 1)], symbols: ["n"], constraints: [],
  buffers: [buffer("4*n", { kind: "input", index: 0 }), buffer("4*n", { kind: "output", index: 0 })],
  kernels: [kernel()], dispatches: [dispatch()], stats: { model_nodes: 1, bytes_unfused: 0, weights_absent: false, warnings: [] },
  ...more,
});

/** The file of these plans. */
export const bundle = (plans, weights) => ({ version: 1, producer: "test", plans, weights });
