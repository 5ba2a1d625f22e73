/** What was measured on a device, kept in the browser's Cache API for each adapter. */

type Speeds = Readonly<Record<string, number>>;

/** The schedules that were found fastest, by the key of a kernel; `null` where that is the compiler's choice. */
export interface Choices {
  /** The version of tables of schedules. */
  readonly version: number;
  readonly choices: Readonly<Record<string, string | null>>;
}

/** The table of the schedules that are faster than the compiler's choices, as the compiler and `wgfc` read it; undefined if there are none. */
export function tableOf({ version, choices }: Choices): string | undefined {
  const faster = Object.entries(choices).filter(([, schedule]) => schedule !== null);
  return faster.length ? JSON.stringify({ version, choices: Object.fromEntries(faster) }) : undefined;
}

/** The identity of the compiler. */
declare const COMPILER: string;

/** The versions of what is kept. Keys and schedules of kernels are those of a compiler. */
const SPEEDS = "speeds?1";
const CHOICES = `choices?${COMPILER}`;

const open = async (name: boolean | string) => (name === false ? undefined : globalThis.caches?.open(name === true ? "wgfc" : name));

/** The address for an adapter in this browser, as another version may compile kernels differently. */
function address(what: string, { vendor, architecture, device, description }: GPUAdapterInfo): string {
  const words = [vendor, architecture, device, description, globalThis.navigator?.userAgent ?? ""];
  return `https://wgfc.invalid/${what}&${encodeURIComponent(words.join("|"))}`;
}

/** Nothing is kept where there is no cache or no room. */
async function keep(what: string, info: GPUAdapterInfo | undefined, value: unknown, name: boolean | string): Promise<void> {
  const cache = info && (await open(name).catch(() => undefined));
  await cache?.put(address(what, info!), new Response(JSON.stringify(value))).catch(() => {});
}

async function kept(what: string, info: GPUAdapterInfo | undefined, name: boolean | string): Promise<unknown> {
  const cache = info && (await open(name).catch(() => undefined));
  const found = await cache?.match(address(what, info!)).catch(() => undefined);
  return found?.json().catch(() => undefined);
}

/** Keeps the speeds of an adapter. */
export const keepSpeeds = (info: GPUAdapterInfo, speeds: Speeds, name: boolean | string = true): Promise<void> => keep(SPEEDS, info, speeds, name);

/** The speeds that {@link keepSpeeds} kept of an adapter. */
export const keptSpeeds = (info: GPUAdapterInfo | undefined, name: boolean | string = true) => kept(SPEEDS, info, name) as Promise<Speeds | undefined>;

/** Keeps the fastest schedules on an adapter. */
export const keepChoices = (info: GPUAdapterInfo | undefined, choices: Choices, name: boolean | string = true): Promise<void> => keep(CHOICES, info, choices, name);

/** The schedules that {@link keepChoices} kept of an adapter. */
export const keptChoices = (info: GPUAdapterInfo | undefined, name: boolean | string = true) => kept(CHOICES, info, name) as Promise<Choices | undefined>;
