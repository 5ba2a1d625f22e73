// Hooks of node: modules from http addresses, as in a browser.
const isAddress = (of) => /^https?:/.test(of);

export async function resolve(specifier, context, next) {
  if (isAddress(specifier)) return { url: specifier, format: "module", shortCircuit: true };
  if (isAddress(context.parentURL ?? "") && /^[./]/.test(specifier)) return { url: new URL(specifier, context.parentURL).href, format: "module", shortCircuit: true };
  // Packages are those of the folder web.
  return next(specifier, isAddress(context.parentURL ?? "") ? { ...context, parentURL: import.meta.url } : context);
}

export async function load(url, context, next) {
  if (!isAddress(url)) return next(url, context);
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url}: ${response.status}`);
  return { format: "module", source: await response.text(), shortCircuit: true };
}
