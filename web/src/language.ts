/** The language feature of WGSL with products of packed integers, such as `dot4I8Packed`. */
export const PACKED_PRODUCTS = "packed_4x8_integer_dot_product";

/** Whether this browser's WGSL lacks products of packed integers. Without WebGPU that is not known. */
export function lacksPackedProducts(): boolean {
  const gpu = globalThis.navigator?.gpu;
  return gpu !== undefined && !gpu.wgslLanguageFeatures?.has(PACKED_PRODUCTS);
}
