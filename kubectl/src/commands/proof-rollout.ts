// proof rollout NAME: shows how many results of a rollout are anchored, or saves its proof for offline verification. Reads a page
// at a time, so that the size of the fleet does not matter.
import { open, rename, rm } from 'node:fs/promises';
import { type Outcome, PluginError, usageError } from '../errors.ts';
import { readRollout, rolloutIdOf } from '../rollouts.ts';
import type { Session } from '../session.ts';

/** A page as returned by the API, as far as it is read here. */
interface Page {
  readonly results: readonly { readonly data_hash: string; readonly batch_id: string }[];
  readonly next_page_token: string;
}

/** Runs the command. */
export async function runRolloutProof(session: Session, name: string): Promise<Outcome> {
  const { cluster, terminal } = session;
  const format = session.option('output');
  const isFormat = format === 'json' || format === 'yaml' || format === 'name';
  const file = session.option('bundle') ?? (isFormat ? undefined : format);
  if (format === 'yaml') throw usageError('the proof of a rollout has no yaml output', 'proof');
  const rollout = await readRollout(cluster, name);
  const pages = pagesOf(session, rolloutIdOf(rollout));
  if (format === 'name') {
    for await (const { results } of pages) {
      for (const { data_hash: hash } of results) terminal.write(`${hash}\n`);
    }
    return 'ok';
  }
  if (file === '-' || (file === undefined && format === 'json')) {
    for await (const page of pages) terminal.write(lineOf(page));
    return 'ok';
  }
  const { results, anchored } = file === undefined ? await count(pages) : await save(pages, file);
  const pending = results - anchored;
  const text = `${results} results, ${anchored} anchored, ${pending} not yet`;
  if (file === undefined) terminal.write(`${text}\n`);
  else {
    terminal.say(`wrote the proof of ${text}, to ${file}`);
    terminal.say(
      pending > 0
        ? 'run this again later for the others: anchoring takes about a block'
        : `to verify it without Kellet: kellet-verify ${file} --headers-url URL (a header source you trust)`,
    );
  }
  return 'ok';
}

async function* pagesOf({ dataPlane }: Session, rolloutId: string): AsyncGenerator<Page> {
  for (let token = ''; ;) {
    const query = { page_size: '500', ...(token ? { page_token: token } : {}) };
    const page = await dataPlane.call<Page>('GET', `verify/rollouts/${rolloutId}`, { query });
    yield page;
    token = page.next_page_token;
    if (!token) return;
  }
}

const lineOf = (page: Page): string => `${JSON.stringify(page)}\n`;

interface Counts {
  results: number;
  anchored: number;
}

async function count(pages: AsyncIterable<Page>, each: (page: Page) => Promise<void> = async () => undefined) {
  const counts: Counts = { results: 0, anchored: 0 };
  for await (const page of pages) {
    counts.results += page.results.length;
    counts.anchored += page.results.filter(({ batch_id: batch }) => batch !== '').length;
    await each(page);
  }
  return counts;
}

/** Writes the pages to a file, which exists only once it is complete. */
async function save(pages: AsyncIterable<Page>, file: string): Promise<Counts> {
  const part = `${file}.part`;
  const failed = (error: Error) => new PluginError('failed', `${file} cannot be written: ${error.message}`);
  const handle = await open(part, 'w').catch((error: Error) => Promise.reject(failed(error)));
  try {
    const write = (page: Page) =>
      handle.appendFile(lineOf(page)).catch((error: Error) => Promise.reject(failed(error)));
    const counts = await count(pages, write);
    await handle.close();
    await rename(part, file).catch((error: Error) => Promise.reject(failed(error)));
    return counts;
  } catch (error) {
    await handle.close().catch(() => undefined);
    await rm(part, { force: true });
    throw error;
  }
}
