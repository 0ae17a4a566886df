#!/usr/bin/env node
// The command kellet-verify: verifies a bundle locally and writes headers files. Only this file and command-input.ts
// need Node.
import { hash } from 'node:crypto';
import { parseArgs } from 'node:util';
import { type AnchoredHead, anchoredHeadOf, AuditLogVerifier } from './audit-log.ts';
import { verifyBundleText } from './bundle.ts';
import { BundleFileVerifier, type PinsAt } from './bundle-file.ts';
import { readBundleLines, readDocuments, readHeaderPins, readLines } from './command-input.ts';
import { MalformedError, messageOf, RefutedError } from './errors.ts';
import { fetchHeaders, HeaderSourceError } from './header-source.ts';
import { checkHeaderChain, type HeaderAtHeight } from './headers.ts';
import { formatHeadersFile, parseCheckpoint, type Pin, pinsOfHeaders } from './pins.ts';
import {
  type AuditReport,
  formatAuditVerdict,
  formatBundle,
  formatBundlesVerdict,
  formatResult,
  formatRolloutVerdict,
  formatVerdict,
  printable,
  printableJson,
} from './report.ts';
import { type RolloutVerdict, RolloutVerifier } from './rollout-proof.ts';
import { useSha256 } from './sha256.ts';
import type { Verdict, VerdictName } from './verdict.ts';

const EXIT = { proven: 0, refuted: 1, malformed: 2, mined: 3, incomplete: 3, chained: 3 } as const satisfies Record<
  VerdictName | RolloutVerdict['verdict'] | AuditReport['verdict'],
  number
>;

const HELP = `Usage:
  kellet-verify BUNDLE.json [--headers FILE] [--checkpoint HEIGHT:HASH] [--headers-url URL] [--json]
  kellet-verify audit EVENTS.ndjson [--anchor BUNDLE.json]... [--headers FILE] [--checkpoint HEIGHT:HASH] [--headers-url URL]
                [--json]
  kellet-verify bundles FILE [--headers FILE] [--checkpoint HEIGHT:HASH]... [--headers-url URL] [--json]
  kellet-verify headers --headers-url URL --from HEIGHT [--count N | --to HEIGHT]

Proves that a telemetry point was anchored: hash, Merkle path, transaction, block, headers. BUNDLE.json is a proof
bundle, or a whole response of verify/hash with include_bundle=true; - reads it from standard input.

It may also be the proof of a whole rollout, as written by "kubectl kellet proof rollout": the pages of verify/rollouts,
one per line. Prints a line per result, then the verdict on all of them; as JSON, one object per line.

"audit" verifies an audit log: that no event was changed or removed between the first and the last. EVENTS.ndjson has an event
or a page of GET audit-events on each line, in any order. With --anchor, the proof bundle of an anchored event
(GET audit-events/anchors, then GET verify/hash), it also proves that the events up to that one existed before its block.

"bundles" verifies a file with a bundle on each line, plain or compressed with zstd, as "kellet-apiserver tenant bundles" writes
it; - reads it from standard input. Prints a line for each bundle that is not proven, then their numbers; the exit code is 1 if any
is refuted, else 2 if any is malformed or there is none, else 3 if any is not proven. A file may be of any length.

Proof of work does not identify the chain, so a proof needs a block that you trust:
  --headers FILE            a headers file: one line "HEIGHT HEADER-IN-HEX" per header
  --checkpoint HEIGHT:HASH  the hash of a block, as displayed; may be given more than once
  --headers-url URL         a header source: the base URL of its ChainTracks v2 routes
  --json                    print the verdict as JSON

"headers" writes a headers file to standard output, by default up to the source's tip.

Exit codes:
  0  proven     everything holds, and a trusted block is among the bundle's headers
  1  refuted    something is untrue, or a trusted block contradicts the bundle
  2  malformed  not a bundle, unreadable input, or bad usage
  3  mined      everything holds under the stated work, but the chain is not identified; or the command failed
     incomplete results of a rollout are not anchored yet
     chained    the hashes of an audit log are intact, but no proof of an anchor was given that covers any of its events
`;

/** Number of headers per request. */
const PAGE = 2000;

/** Maximum number of headers that one run writes: twice the length of the main chain. */
const MOST_HEADERS = 2_000_000;

/** Ends the command with a message: bad usage, an unreadable file, or a failing header source. */
class CommandError extends Error {
  readonly code: number;

  constructor(message: string, code: number) {
    super(message);
    this.code = code;
  }
}

useSha256((data) => hash('sha256', data, 'buffer'));

async function main(args: string[]): Promise<number> {
  if (args[0] === 'headers') return writeHeaders(args.slice(1));
  if (args[0] === 'bundles') return verifyBundles(args.slice(1));
  return args[0] === 'audit' ? verifyAudit(args.slice(1)) : verify(args);
}

async function verifyBundles(args: string[]): Promise<number> {
  const { values, positionals } = usage(() => parseArgs({ args, allowPositionals: true, options: pinOptions }));
  if (values.help === true) return await print(HELP);
  const [path, ...rest] = positionals;
  if (path === undefined || rest.length > 0) throw new CommandError('expected one file of bundles', EXIT.malformed);
  const sources = sourcesOf(values);
  const { pinsAt, note } = await pinsByHeight(sources);
  const verifier = new BundleFileVerifier(pinsAt);
  let failure: CommandError | undefined;
  try {
    await input(path, async () => {
      for await (const line of readBundleLines(path)) {
        const verdict = 'text' in line ? await verifier.add(line.text) : verifier.addUnreadable(line.problem);
        if (verdict.verdict !== 'proven') await print(sources.json ? printableJson(verdict) : formatBundle(verdict));
      }
    });
  } catch (error) {
    if (!(error instanceof CommandError)) throw error;
    failure = error;
  }
  const read = verifier.finish();
  // What was read up to there may be refuted nevertheless.
  const verdict = failure && read.verdict !== 'refuted' ? { ...read, verdict: 'malformed' as const } : read;
  const why = note();
  const document = why === undefined ? verdict : { ...verdict, note: why };
  await print(sources.json ? printableJson(document) : formatBundlesVerdict(verdict, why));
  if (failure) complain(failure.message);
  return EXIT[verdict.verdict];
}

/** Returns the trusted blocks of the command line by their heights, and why the header source is unusable. */
async function pinsByHeight({
  pins,
  headers,
  url,
}: Sources): Promise<{ pinsAt: PinsAt; note: () => string | undefined }> {
  const known =
    headers === undefined ? pins : [...pins, ...(await input(headers, () => readPins(headers, () => true)))];
  const byHeight = Map.groupBy(known, ({ height }) => height);
  let problem: string | undefined;
  const pinsAt = async (first: number, last: number): Promise<Pin[]> => {
    const found: Pin[] = [];
    for (let height = first - 1; height <= last; height += 1) found.push(...(byHeight.get(height) ?? []));
    const failed = await addPins({ pins: found, headers: undefined, url, json: false }, first, last);
    problem ??= failed;
    return found;
  };
  return { pinsAt, note: () => problem };
}

async function verifyAudit(args: string[]): Promise<number> {
  const { values, positionals } = usage(() =>
    parseArgs({
      args,
      allowPositionals: true,
      options: { anchor: { type: 'string', multiple: true }, ...pinOptions },
    }),
  );
  if (values.help === true) return await print(HELP);
  const [path, ...rest] = positionals;
  if (path === undefined || rest.length > 0) throw new CommandError('expected one file of events', EXIT.malformed);
  const sources = sourcesOf(values);
  const log = new AuditLogVerifier();
  await input(path, async () => {
    let line = 0;
    for await (const text of readLines(path)) log.add(text, (line += 1));
  });
  const heads: AnchoredHead[] = [];
  let report: AuditReport | undefined;
  for (const file of values.anchor ?? []) {
    const { verdict, note } = await verdictOf(await readWhole(file), sources);
    if (verdict.statement === undefined) {
      report = { ...log.finish(), verdict: verdict.verdict, reason: `${file}: ${verdict.reason ?? ''}` };
      break;
    }
    heads.push(await input(file, () => Promise.resolve(anchoredHeadOf(verdict.statement!))));
    if (verdict.verdict === 'mined')
      report = { ...log.finish(heads), verdict: 'mined', reason: note ?? verdict.reason };
  }
  const chain = log.finish(heads);
  // The chain is verified first: a bundle proves nothing about a broken chain.
  if (chain.verdict !== 'chained') report = chain;
  report ??= chain.anchored === undefined ? chain : { ...chain, verdict: 'proven' };
  await print(sources.json ? printableJson(report) : formatAuditVerdict(report));
  return EXIT[report.verdict];
}

/** Returns the text of a file with one bundle. */
async function readWhole(path: string): Promise<string> {
  const document = await nextDocument(path, readDocuments(path));
  return document?.text ?? '';
}

/** Options that name trusted blocks. */
const pinOptions = {
  // Else the last one would be used, and the others passed over.
  headers: { type: 'string', multiple: true },
  checkpoint: { type: 'string', multiple: true },
  'headers-url': { type: 'string', multiple: true },
  json: { type: 'boolean' },
  help: { type: 'boolean', short: 'h' },
} as const;

/** Reads the values of {@link pinOptions}. */
function sourcesOf(values: {
  readonly headers?: string[];
  readonly checkpoint?: string[];
  readonly 'headers-url'?: string[];
  readonly json?: boolean;
}): Sources {
  const pins = usage(() => (values.checkpoint ?? []).map(parseCheckpoint));
  const once = (option: 'headers' | 'headers-url'): string | undefined => {
    const [value, ...others] = values[option] ?? [];
    if (others.length > 0) throw new CommandError(`--${option} may be given once`, EXIT.malformed);
    return value;
  };
  return { pins, headers: once('headers'), url: once('headers-url'), json: values.json === true };
}

async function verify(args: string[]): Promise<number> {
  const { values, positionals } = usage(() =>
    parseArgs({
      args,
      allowPositionals: true,
      options: pinOptions,
    }),
  );
  if (values.help === true) return await print(HELP);
  const [path, ...rest] = positionals;
  if (path === undefined || rest.length > 0) throw new CommandError('expected one bundle', EXIT.malformed);
  const sources = sourcesOf(values);
  const documents = readDocuments(path);
  const first = await nextDocument(path, documents);
  if (first === undefined) return verifyOne('', sources);
  if (!first.isPage) return verifyOne(first.text, sources);
  return verifyRollout(path, first.text, documents, sources);
}

type Documents = ReturnType<typeof readDocuments>;

async function nextDocument(
  path: string,
  documents: Documents,
): Promise<{ text: string; isPage: boolean } | undefined> {
  const next = await input(path, () => documents.next());
  return next.done === true ? undefined : next.value;
}

/** What the command line says besides the bundle. */
interface Sources {
  readonly pins: Pin[];
  readonly headers: string | undefined;
  readonly url: string | undefined;
  readonly json: boolean;
}

/** Adds the trusted blocks of a headers file and of a header source at these heights. Returns why the source is unusable. */
async function addPins(
  { pins, headers: file, url }: Sources,
  first: number,
  last: number,
): Promise<string | undefined> {
  if (file !== undefined) {
    const isWanted = (height: number) => height >= first - 1 && height <= last;
    pins.push(...(await input(file, () => readPins(file, isWanted))));
  }
  if (url === undefined) return undefined;
  try {
    pins.push(...(await pinsOfSource(url, first, last)));
    return undefined;
  } catch (error) {
    return `the header source is unusable: ${messageOf(error)}`;
  }
}

const readPins = (file: string, isWanted: (height: number) => boolean): Promise<Pin[]> =>
  readHeaderPins(file, `headers file ${file}`, isWanted);

async function verifyOne(text: string, sources: Sources): Promise<number> {
  const { verdict, note } = await verdictOf(text, sources);
  const document = note === undefined ? verdict : { ...verdict, note };
  await print(sources.json ? printableJson(document, 2) : formatVerdict(verdict, note));
  return EXIT[verdict.verdict];
}

/** Verifies a bundle with the trusted blocks of the command line. */
async function verdictOf(text: string, sources: Sources): Promise<{ verdict: Verdict; note: string | undefined }> {
  let verdict = verifyBundleText(text, { pins: sources.pins });
  const { statement } = verdict;
  let note: string | undefined;
  if (statement !== undefined) {
    note = await addPins(sources, statement.block_height, statement.block_height + statement.proven_depth - 1);
    verdict = verifyBundleText(text, { pins: sources.pins });
  } else if (sources.headers !== undefined) await addPins({ ...sources, url: undefined }, 0, -1);
  return { verdict, note };
}

async function verifyRollout(path: string, first: string, others: Documents, sources: Sources): Promise<number> {
  const verifier = new RolloutVerifier();
  const show = async (text: string) => {
    const results = verifier.add(text);
    if (results.length === 0) return;
    await print(results.map((result) => (sources.json ? printableJson(result) : formatResult(result))).join(''));
  };
  await show(first);
  for (let next = await nextDocument(path, others); next; next = await nextDocument(path, others)) {
    await show(next.text);
  }
  const { span } = verifier;
  const note = span && (await addPins(sources, span.first, span.last));
  const verdict = verifier.finish(sources.pins);
  const document = note === undefined ? verdict : { ...verdict, note };
  await print(sources.json ? printableJson(document) : formatRolloutVerdict(verdict, note));
  return EXIT[verdict.verdict];
}

async function pinsOfSource(url: string, first: number, last: number): Promise<Pin[]> {
  const headers: HeaderAtHeight[] = [];
  while (first + headers.length <= last) {
    const page = await fetchHeaders(url, first + headers.length, Math.min(PAGE, last - first - headers.length + 1));
    if (page.length === 0) break;
    headers.push(...page);
  }
  if (headers.length === 0) throw new HeaderSourceError(`it has no block ${first}`);
  return pinsOfHeaders(headers, `header source ${url}`);
}

async function writeHeaders(args: string[]): Promise<number> {
  const { values } = usage(() =>
    parseArgs({
      args,
      options: {
        'headers-url': { type: 'string' },
        from: { type: 'string' },
        count: { type: 'string' },
        to: { type: 'string' },
        help: { type: 'boolean', short: 'h' },
      },
    }),
  );
  if (values.help === true) return await print(HELP);
  const url = values['headers-url'];
  if (url === undefined || values.from === undefined) {
    throw new CommandError('headers needs --headers-url and --from', EXIT.malformed);
  }
  if (values.count !== undefined && values.to !== undefined) {
    throw new CommandError('--count and --to are mutually exclusive', EXIT.malformed);
  }
  const from = wholeNumber('--from', values.from);
  let wanted = Infinity;
  if (values.count !== undefined) wanted = wholeNumber('--count', values.count);
  if (values.to !== undefined) wanted = wholeNumber('--to', values.to) - from + 1;
  if (wanted < 1) throw new CommandError('the range contains no headers', EXIT.malformed);
  const headers = await collectHeaders(url, from, wanted);
  for (let i = 0; i < headers.length; i += PAGE) await print(formatHeadersFile(headers.slice(i, i + PAGE)));
  return 0;
}

/** Fetches a chain of headers page by page; without a bound, up to the source's tip. */
async function collectHeaders(url: string, from: number, wanted: number): Promise<HeaderAtHeight[]> {
  const headers: HeaderAtHeight[] = [];
  try {
    while (headers.length < wanted) {
      const page = await fetchHeaders(url, from + headers.length, Math.min(PAGE, wanted - headers.length));
      if (page.length === 0) break;
      // Each page is checked at once, so that an invalid source is not read indefinitely.
      checkHeaderChain([...headers.slice(-1), ...page]);
      headers.push(...page);
      if (headers.length > MOST_HEADERS) {
        throw new CommandError(`more than ${MOST_HEADERS} headers: request them in parts with --count`, EXIT.malformed);
      }
    }
    if (headers.length === 0 || (wanted !== Infinity && headers.length < wanted)) {
      throw new HeaderSourceError(`${url} has no block ${from + headers.length}`);
    }
  } catch (error) {
    if (error instanceof HeaderSourceError) throw new CommandError(error.message, EXIT.mined);
    if (error instanceof RefutedError || error instanceof MalformedError) {
      throw new CommandError(`${url}: ${error.message}`, EXIT.refuted);
    }
    throw error;
  }
  return headers;
}

function wholeNumber(option: string, text: string): number {
  if (!/^\d{1,10}$/.test(text)) throw new CommandError(`${option} is not a whole number: ${text}`, EXIT.malformed);
  return Number(text);
}

/** Runs a function that reads the command line; any error it throws is bad usage. */
function usage<T>(read: () => T): T {
  try {
    return read();
  } catch (error) {
    throw new CommandError(messageOf(error), EXIT.malformed);
  }
}

/** Runs a function that reads a file named on the command line and adds the file name to its errors. */
async function input<T>(path: string, read: () => Promise<T>): Promise<T> {
  try {
    return await read();
  } catch (error) {
    throw new CommandError(`${path}: ${messageOf(error)}`, EXIT.malformed);
  }
}

/** Set when standard output was closed or failed. */
let outputError: NodeJS.ErrnoException | undefined;

/** Writes to standard output and waits until the data is accepted. */
function print(text: string): Promise<0> {
  return new Promise((resolve) => {
    process.stdout.write(text, (error) => {
      outputError ??= error ?? undefined;
      resolve(0);
    });
  });
}

/** Prints an error, which may quote what a header source has sent, on standard error. */
function complain(message: string): void {
  process.stderr.write(`kellet-verify: ${message.split('\n').map(printable).join('\n')}\n`);
}

/**
 * Returns the exit code of a run. Only a verdict may exit with 1: a failure of the command itself says nothing about
 * the bundle and counts as not proven.
 */
async function exitCode(args: string[]): Promise<number> {
  try {
    const code = await main(args);
    if (outputError === undefined) return code;
    // A reader that closes the pipe has seen enough of a verdict, but a truncated headers file is useless.
    if (outputError.code === 'EPIPE' && args[0] !== 'headers') return code;
    complain(`standard output: ${outputError.message}`);
    return code === EXIT.proven ? EXIT.mined : code;
  } catch (error) {
    if (error instanceof CommandError) {
      // An error in a source has nothing to do with how the command was called.
      complain(error.code === EXIT.malformed ? `${error.message}\nrun kellet-verify --help for usage` : error.message);
      return error.code;
    }
    complain(`an error in kellet-verify itself, which says nothing about the bundle: ${messageOf(error)}`);
    return EXIT.mined;
  }
}

// Stream errors are reported to the writer; without a listener they would end the process.
process.stdout.on('error', () => undefined);
process.stderr.on('error', () => undefined);
process.on('uncaughtException', (error) => {
  complain(`an error in kellet-verify itself, which says nothing about the bundle: ${messageOf(error)}`);
  process.exit(EXIT.mined);
});
process.exitCode = await exitCode(process.argv.slice(2));
