// A real browser for tests of the dashboard: Chromium as the machine has it, driven by playwright-core.
import { accessSync, constants } from 'node:fs';
import { delimiter, join } from 'node:path';
import { type Browser, type BrowserContext, chromium, type Page } from 'playwright-core';

const names = ['chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable', 'chrome'];

/** Returns the path of a Chromium: KELLET_CHROMIUM, or the first on PATH. Throws if there is none. */
function findChromium(environment: NodeJS.ProcessEnv = process.env): string {
  const { KELLET_CHROMIUM: given, PATH = '' } = environment;
  const places = PATH.split(delimiter).flatMap((folder) => names.map((name) => join(folder, name)));
  const found = given ?? places.find(isProgram);
  if (found !== undefined) return found;
  throw new Error(
    'the browser tests need Chromium: install it (on Debian: apt-get install chromium), or name one in KELLET_CHROMIUM',
  );
}

function isProgram(path: string): boolean {
  try {
    accessSync(path, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}

/** A window, with the problems that were seen in it. */
export interface Window {
  readonly page: Page;
  readonly context: BrowserContext;
  /** Errors of scripts and of the content security policy, requests to other hosts, and dialogs of scripts. */
  readonly problems: readonly string[];
}

/** Starts the browser. */
export const startBrowser = (): Promise<Browser> =>
  chromium.launch({
    executablePath: findChromium(),
    // Chromium's own sandbox cannot be set up by root, nor in most containers; only our pages are opened.
    args: ['--no-sandbox'],
  });

/** Opens a window of a width that may load things from these hosts alone. */
export async function openWindow(browser: Browser, width: number, hosts: readonly string[]): Promise<Window> {
  const context = await browser.newContext({ viewport: { width, height: 800 }, acceptDownloads: true });
  const page = await context.newPage();
  const problems: string[] = [];
  page.setDefaultTimeout(30_000);
  page.on('pageerror', (error) => problems.push(`error: ${error.message}`));
  page.on('dialog', (dialog) => {
    problems.push(`dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  page.on('console', (message) => {
    // A refused sign-in is reported here by the browser too.
    if (message.type() === 'error' && !message.text().startsWith('Failed to load resource')) {
      problems.push(`console: ${message.text()}`);
    }
  });
  page.on('request', (request) => {
    const url = new URL(request.url());
    if (url.protocol !== 'blob:' && !hosts.includes(url.host)) problems.push(`request: ${url.host}`);
  });
  return { page, context, problems };
}
