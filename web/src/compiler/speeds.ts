/** Speeds that were measured, kept in the browser's Cache API for each adapter. */

type Speeds = Readonly<Record<string, number>>;

/** The version of what is kept. */
const VERSION = 1;

const open = async (name: boolean | string) => (name === false ? undefined : globalThis.caches?.open(name === true ? "wgfc" : name));

/** The address for an adapter in this browser, as another version may compile kernels differently. */
function address({ vendor, architecture, device, description }: GPUAdapterInfo): string {
  const words = [VERSION, vendor, architecture, device, description, globalThis.navigator?.userAgent ?? ""];
  return `https://wgfc.invalid/speeds?${encodeURIComponent(words.join("|"))}`;
}

/** Keeps the speeds of an adapter. Nothing is kept where there is no cache or no room. */
export async function keepSpeeds(info: GPUAdapterInfo, speeds: Speeds, name: boolean | string = true): Promise<void> {
  const cache = await open(name).catch(() => undefined);
  await cache?.put(address(info), new Response(JSON.stringify(speeds))).catch(() => {});
}

/** The speeds that {@link keepSpeeds} kept of an adapter. */
export async function keptSpeeds(info: GPUAdapterInfo | undefined, name: boolean | string = true): Promise<Speeds | undefined> {
  const cache = info && (await open(name).catch(() => undefined));
  const kept = await cache?.match(address(info!)).catch(() => undefined);
  return kept?.json().catch(() => undefined) as Promise<Speeds | undefined> | undefined;
}
