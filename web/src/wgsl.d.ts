/** Kernels in files of their own, which the build puts into the module. */
declare module "*.wgsl" {
  const text: string;
  export default text;
}
