// Runs kellet-verify on inputs of every kind. KELLET_VERIFY_FUZZ=N runs the command on N mutated bundles (the gate uses
// a few).
import { spawn } from 'node:child_process';
import { mkdtempSync, openSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Ajv2020 } from 'ajv/dist/2020.js';
import { expect } from 'chai';
import { type Below, mutate, seeded } from '../testing/mutate.ts';
import { soundBundle } from '../testing/sound-bundle.ts';
import { buildBeef } from './beef.ts';
import { serialiseBump } from './bump.ts';
import { verifyBundleText } from './bundle.ts';
import { PROOF_BUNDLE_SCHEMA } from './bundle-schema.ts';
import { fromDisplayHex, fromHex, toDisplayHex, toHex } from './bytes.ts';
import { blockHash } from './headers.ts';
import { canonicalPayload } from './leaf-hash.ts';
import { parseCheckpoint } from './pins.ts';
import { sha256d } from './sha256.ts';
import type { Verdict } from './verdict.ts';

interface Run {
  code: number | null;
  signal: NodeJS.Signals | null;
  stdout: string;
  stderr: string;
}

const cli = new URL('cli.ts', import.meta.url).pathname;
const bundle = soundBundle({ headers: 4 });
const first = bundle.block_header_chain[0]!;
const checkpoint = `${first.height}:${toDisplayHex(blockHash(fromHex(first.header)))}`;
const headerLine = `${first.height} ${first.header}\n`;
let folder: string;

/** Runs the command; `stdout` is a file descriptor to use instead of a pipe. */
function run(
  args: string[],
  options: { input?: Uint8Array; stdout?: number; closeStdout?: boolean } = {},
): Promise<Run> {
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, [cli, ...args], {
      cwd: folder,
      stdio: ['pipe', options.stdout ?? 'pipe', 'pipe'],
    });
    const result: Run = { code: null, signal: null, stdout: '', stderr: '' };
    if (options.closeStdout === true) child.stdout!.destroy();
    else child.stdout?.on('data', (part: Buffer) => (result.stdout += part.toString()));
    child.stderr!.on('data', (part: Buffer) => (result.stderr += part.toString()));
    child.on('error', reject);
    child.on('close', (code, signal) => resolve({ ...result, code, signal }));
    child.stdin!.on('error', () => undefined);
    child.stdin!.end(options.input ?? '');
  });
}

/** Writes a file to the test's folder. */
function file(name: string, content: string | Uint8Array): string {
  writeFileSync(join(folder, name), content);
  return name;
}

const validate = new Ajv2020({ allowUnionTypes: true, logger: false }).compile(PROOF_BUNDLE_SCHEMA);

/**
 * Reports whether the bytes are a document that may be refuted: JSON with a bundle that matches the published schema.
 */
function isWellFormed(bytes: Uint8Array): boolean {
  try {
    const value = JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes)) as { bundle?: unknown } | null;
    return [value, value?.bundle].some((candidate: unknown) => validate(candidate));
  } catch {
    return false;
  }
}

/** Replaces one value of a JSON document by an unusual one, as JSON text. */
function mutateValue(document: unknown, below: Below): string {
  // prettier-ignore
  const unusual = [
    'null', 'true', '-1', '1e400', '-0', '0.5', '18446744073709551616', '""', '"\\ud800"', '"\\u0000"', '[]', '{}',
    `"${'a'.repeat(100_000)}"`, `"${'ab'.repeat(100_000)}"`, `${'['.repeat(3000)}${']'.repeat(3000)}`, '{"__proto__":1}',
    `"${'ff'.repeat(9)}"`,
  ];
  const holders: [Record<string, unknown>, string][] = [];
  const copy = structuredClone(document) as Record<string, unknown>;
  const walk = (value: unknown) => {
    if (typeof value !== 'object' || value === null) return;
    for (const [key, inner] of Object.entries(value)) {
      holders.push([value as Record<string, unknown>, key]);
      walk(inner);
    }
  };
  walk(copy);
  const [holder, key] = holders[below(holders.length)]!;
  if (below(8) === 0) delete holder[key];
  else holder[key] = '@@here@@';
  return JSON.stringify(copy).replace('"@@here@@"', () => unusual[below(unusual.length)]!);
}

/** Returns the `i`-th input of a run: mutated bytes, mutated values, or noise. */
function inputOf(i: number, below: Below): Uint8Array {
  const response = { data_hash: bundle.data_hash, count: bundle.count, merkle_path: bundle.merkle_path, bundle };
  const document = below(2) === 0 ? bundle : response;
  const text = Buffer.from(JSON.stringify(document));
  if (i % 8 === 7) return Uint8Array.from({ length: below(300) }, () => below(256));
  return i % 2 === 0 ? mutate(text, below) : Buffer.from(mutateValue(document, below));
}

describe('kellet-verify with arbitrary input', function () {
  this.timeout(120_000);
  before(() => {
    folder = mkdtempSync(join(tmpdir(), 'kellet-verify-input-'));
    file('bundle.json', JSON.stringify(bundle));
  });
  after(() => rmSync(folder, { recursive: true }));

  it('refutes only well-formed bundles and proves only the sound one', async function () {
    const runs = Number(process.env['KELLET_VERIFY_FUZZ'] ?? 24);
    this.timeout(60_000 + runs * 5000);
    const seen = new Map<number | null, number>();
    const work = async (worker: number) => {
      for (let i = worker; i < runs; i += 2) {
        // By the input's number, so that the order in which the two workers come to it does not matter.
        const input = inputOf(i, seeded(11 + i));
        const name = file(`mutated-${worker}.json`, input);
        const { code, signal, stdout, stderr } = await run([name, '--json', '--checkpoint', checkpoint]);
        const shown = `input ${i}: exit ${code} ${signal ?? ''} ${stderr.slice(0, 500)}\n${toHex(input.subarray(0, 4096))}`;
        expect(code, shown).to.be.oneOf([0, 1, 2]);
        expect(stderr, shown).not.to.match(/itself|\n {4}at /);
        if (code === 1) expect(isWellFormed(input), shown).to.equal(true);
        if (code === 0) {
          const { statement } = JSON.parse(stdout) as { statement: { data_hash: string } };
          expect(statement.data_hash).to.equal(bundle.data_hash);
        }
        seen.set(code, (seen.get(code) ?? 0) + 1);
      }
    };
    await Promise.all([work(0), work(1)]);
    for (const code of [1, 2]) expect(seen.get(code), `runs with exit ${code}`).to.be.greaterThan(0);
  });

  it('behaves the same as a library, which never throws', () => {
    const below = seeded(12);
    const runs = 20 * Number(process.env['KELLET_VERIFY_FUZZ'] ?? 100);
    const pins = [parseCheckpoint(checkpoint)];
    for (let i = 0; i < runs; i++) {
      const input = inputOf(i, below);
      const verdict = verifyBundleText(new TextDecoder().decode(input), { pins });
      if (verdict.verdict === 'proven') expect(verdict.statement!.data_hash).to.equal(bundle.data_hash);
    }
  });

  /** Returns the bundle with a BUMP of all 65,536 transactions of a block, including its own. */
  const crowdedBundle = () => {
    const hashes = Array.from({ length: 2 ** 16 }, (_, i) => sha256d(Uint8Array.of(i, i >> 8)));
    hashes[0] = fromDisplayHex(bundle.txid);
    const leaves = hashes.map((hash, offset) => ({ offset, hash, isTxid: true }));
    const bump = { blockHeight: 1, levels: [leaves, ...Array.from({ length: 15 }, () => [])] };
    const beef = buildBeef(fromHex(bundle.raw_tx), bump);
    return JSON.stringify({ ...bundle, bump_hex: toHex(serialiseBump(bump)), beef_hex: toHex(beef) });
  };
  // prettier-ignore
  const cases: { name: string; code: number; says: RegExp; args: () => string[]; input?: Uint8Array }[] = [
    { name: 'an empty file', code: 2, says: /not JSON/, args: () => [file('empty.json', '')] },
    { name: 'empty input', code: 2, says: /not JSON/, args: () => ['-'] },
    { name: 'a string of 15 MB', code: 2, says: /schema/, args: () => [file('long.json', `{"a":"${'x'.repeat(15e6)}"}`)] },
    { name: 'hexadecimal of 15 MB', code: 2, says: /schema: \/raw_tx must match/, args: () => [file('hex.json', JSON.stringify({ ...bundle, raw_tx: 'ab'.repeat(7.5e6) }))] },
    { name: 'a payload of 15 MB', code: 1, says: /leaf_hash/, args: () => [file('payload.json', JSON.stringify({ ...bundle, canonical_hash_inputs: { ...bundle.canonical_hash_inputs, payload: 'x'.repeat(15e6) } }))] },
    { name: '30 MB', code: 2, says: /longer than 16777216 bytes/, args: () => [file('big.json', `{"a":"${'x'.repeat(30e6)}"}`)] },
    { name: '30 MB of input', code: 2, says: /longer than 16777216 bytes/, args: () => ['-'], input: new Uint8Array(30e6) },
    { name: 'endless input', code: 2, says: /longer than 16777216 bytes/, args: () => ['/dev/zero'] },
    { name: 'arrays 5,000,000 deep', code: 2, says: /nested deeper than 64/, args: () => [file('deep.json', `${'['.repeat(5e6)}${']'.repeat(5e6)}`)] },
    { name: 'a field beside the bundle that is 9,000 deep', code: 2, says: /nested deeper than 64/, args: () => [file('beside.json', JSON.stringify({ bundle, merkle_path: 0 }).replace('"merkle_path":0', `"merkle_path":${'['.repeat(9000)}${']'.repeat(9000)}`))] },
    { name: 'half a surrogate pair beside the bundle', code: 1, says: /record: the field txid/, args: () => [file('half.json', JSON.stringify({ bundle, txid: 0 }).replace('"txid":0', '"txid":"\\ud800"'))] },
    { name: 'a number out of range beside the bundle', code: 1, says: /record: the field count/, args: () => [file('huge.json', JSON.stringify({ bundle, count: 0 }).replace(/"count":0\}$/, '"count":1e400}'))] },
    { name: 'a BUMP of 65,536 nodes', code: 1, says: /bump: bump_hex is for block 1/, args: () => [file('nodes.json', crowdedBundle())] },
    { name: 'an unreadable file', code: 2, says: /: E/, args: () => ['/proc/self/mem'] },
    { name: 'a folder as headers file', code: 2, says: /EISDIR/, args: () => ['bundle.json', '--headers', '.'] },
    { name: 'an empty headers file', code: 2, says: /no headers/, args: () => ['bundle.json', '--headers', file('none.txt', '')] },
    { name: 'an endless headers file', code: 2, says: /line 1 is not/, args: () => ['bundle.json', '--headers', '/dev/zero'] },
    { name: 'random bytes as headers file', code: 2, says: /line 1 is not/, args: () => ['bundle.json', '--headers', '/dev/urandom'] },
    { name: 'an empty line after the headers', code: 2, says: /line 2 is not/, args: () => ['bundle.json', '--headers', file('empty-line.txt', `${headerLine}\n`)] },
    { name: 'two headers files, of which one would be passed over', code: 2, says: /--headers may be given once/, args: () => ['bundle.json', '--headers', 'none.txt', '--headers', 'none.txt'] },
    { name: 'a checkpoint of many digits', code: 2, says: /a checkpoint must be/, args: () => ['bundle.json', '--checkpoint', `${'9'.repeat(400)}:00`] },
    { name: 'an invalid URL as header source', code: 3, says: /unusable/, args: () => ['bundle.json', '--headers-url', 'nonsense'] },
    { name: 'an empty argument', code: 2, says: /ENOENT/, args: () => [''] },
  ];
  for (const { name, code, says, args, input } of cases) {
    it(`${name}: exit ${code}`, async () => {
      const result = await run([...args(), '--json'], input === undefined ? {} : { input });
      expect((result.stdout + result.stderr).slice(0, 5000)).to.match(says);
      expect(result.code).to.equal(code);
    });
  }

  it('prints nothing that controls the terminal, as JSON neither', async () => {
    const payload = canonicalPayload({}, { name: '\u009b2J\u202e\u2028\u{e0001}' });
    const point = { tenantId: 'a\u009b31m', deviceId: '\u202ed', timestampSeconds: 1, payload };
    const name = file('controls.json', JSON.stringify(soundBundle({ point })));
    for (const format of [[], ['--json']]) {
      const { code, stdout } = await run([name, ...format]);
      expect(code).to.equal(3);
      expect(stdout).not.to.match(/[^\P{Cc}\n]|[\p{Cf}\p{Zl}\p{Zp}]/u);
      if (format.length > 0)
        expect((JSON.parse(stdout) as Verdict).statement).to.include({ payload, device_id: '\u202ed' });
    }
  });

  it('accepts a headers file larger than memory', async () => {
    // Sparse: one header, then an endless line of zeros.
    truncateSync(join(folder, file('sparse.txt', headerLine)), 40e9);
    const { code, stderr } = await run(['bundle.json', '--headers', 'sparse.txt']);
    expect(stderr).to.match(/line 2 is not/);
    expect(code).to.equal(2);
  });

  it('keeps its verdict when its output is closed, and reports when it cannot be written', async () => {
    for (const [args, code] of [
      [['--checkpoint', checkpoint], 0],
      [[], 3],
      [['--checkpoint', `${first.height}:${'00'.repeat(32)}`], 1],
    ] as const) {
      expect(await run(['bundle.json', ...args], { closeStdout: true })).to.include({ code, stderr: '' });
    }
    const full = await run(['bundle.json', '--checkpoint', checkpoint], { stdout: openSync('/dev/full', 'w') });
    expect(full.stderr).to.match(/standard output: ENOSPC/);
    expect(full.code).to.equal(3);
  });

  describe('from a header source', () => {
    let reply: (response: ServerResponse) => void;
    const server = createServer((_request, response) => reply(response));
    let url: string;
    before(async () => {
      await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
      url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/v2`;
    });
    after(() => {
      server.closeAllConnections();
      server.close();
    });
    const write = (response: ServerResponse) => {
      const part = new Uint8Array(1 << 20);
      const next = (error?: Error | null) => void (error || response.destroyed || response.write(part, next));
      next();
    };
    // prettier-ignore
    const sources: { name: string; reply: (response: ServerResponse) => void; code: number; says: RegExp }[] = [
      { name: 'never ends its response', reply: write, code: 3, says: /unusable: .*longer than/ },
      { name: 'breaks off', reply: (r) => void (r.write('abc'), setTimeout(() => r.destroy(), 50)), code: 3, says: /unusable/ },
      { name: 'does not speak HTTP', reply: (r) => void r.socket!.end('nonsense\r\n\r\n'), code: 3, says: /unusable/ },
      { name: 'redirects forever', reply: (r) => void r.writeHead(302, { location: '/' }).end(), code: 3, says: /unusable/ },
      { name: 'returns JSON of the wrong kind', reply: (r) => void r.writeHead(200, { 'content-type': 'application/json' }).end('null'), code: 3, says: /unusable/ },
    ];
    for (const { name, reply: served, code, says } of sources) {
      it(`that ${name}: exit ${code}`, async () => {
        reply = served;
        const result = await run(['bundle.json', '--headers-url', url]);
        expect(result.stdout).to.match(says);
        expect(result.code).to.equal(code);
      });
    }

    it('that never responds or never ends: exit 3 after 15 seconds', async () => {
      let asked = 0;
      reply = (response) => {
        asked += 1;
        if (asked > 1) setInterval(() => response.write('a'), 1000).unref();
      };
      for (const { stdout, code } of await Promise.all([1, 2].map(() => run(['bundle.json', '--headers-url', url])))) {
        expect(stdout).to.match(/unusable: .*timeout/);
        expect(code).to.equal(3);
      }
      expect(asked).to.equal(2);
    });

    it('that tries to control the terminal: exit 3 with escapes', async () => {
      reply = (r) => void r.writeHead(200, { 'content-type': 'application/json' }).end('\u001b]0;changed\u0007');
      const written = await run(['headers', '--headers-url', url, '--from', '1']);
      expect(written.code).to.equal(3);
      expect(written.stderr)
        .to.include('\\u{1b}]0;changed')
        .and.not.match(/[^\P{Cc}\n]/u);
      const verified = await run(['bundle.json', '--headers-url', url]);
      expect(verified.stdout)
        .to.include('\\u{1b}]0;changed')
        .and.not.match(/[^\P{Cc}\n]/u);
    });

    it('writes no partial headers file', async () => {
      reply = (response) => response.end(fromHex(first.header));
      const args = ['headers', '--headers-url', url, '--from', String(first.height), '--count', '1'];
      expect((await run(args)).code).to.equal(0);
      expect((await run(args, { closeStdout: true })).code).to.equal(3);
    });
  });
});
