// A page of headless Chromium with WebGPU on SwiftShader, or with WGFC_GPU=1 on a GPU, by Vulkan.
import { chromium } from "playwright-core";
import { answerFiles, serve } from "./server.mjs";

/**
 * Toggles of Dawn, WGFC_DAWN_TOGGLES. On SwiftShader, pipelines are made in a tenth of the time without clearing of workgroup memory; no kernel
 * reads what it has not written.
 */
const TOGGLES = process.env.WGFC_DAWN_TOGGLES ?? (process.env.WGFC_GPU ? "" : "disable_workgroup_init");
const QUICKLY = TOGGLES ? [`--enable-dawn-features=${TOGGLES}`] : [];
/** A GPU without a display. */
const GPU = ["--use-angle=vulkan", "--enable-features=Vulkan", "--disable-vulkan-surface", "--ignore-gpu-blocklist", "--disable-gpu-sandbox"];
const FLAGS = [
  "--no-sandbox",
  "--enable-unsafe-webgpu",
  ...(process.env.WGFC_GPU ? GPU : ["--use-webgpu-adapter=swiftshader"]),
  // Nothing is looked for beyond this machine.
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-default-apps",
  "--disable-domain-reliability",
  "--disable-quic",
  "--disable-sync",
  "--no-first-run",
  "--no-default-browser-check",
  "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
];

/** A browser of its own, with nothing kept from others. */
export function launch(flags = QUICKLY) {
  const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";
  return chromium.launch({ executablePath, headless: true, args: [...FLAGS, ...flags], timeout: 120_000 });
}

/** A page whose errors are printed, of a browser or of one of its contexts. */
export async function visit(of, address) {
  const page = await of.newPage();
  page.on("pageerror", (e) => console.log(`page: ${e.message}`));
  page.on("console", (m) => m.type() === "error" && console.log(`page: ${m.text()}`));
  await page.goto(address);
  return page;
}

/** Opens a page. `answer` is asked first about every request, and says whether it has answered it. */
export async function openPage(path, answer = () => false) {
  const { server, address } = await serve((request, response) => answer(request, response) || answerFiles(request, response));
  const browser = await launch();
  // Pages of one context share what is kept.
  const context = await browser.newContext();
  const newPage = () => visit(context, `${address}${path}`);
  return {
    address: `${address}${path}`,
    page: await newPage(),
    newPage,
    close: async () => {
      await browser.close();
      server.closeAllConnections();
      server.close();
    },
  };
}
