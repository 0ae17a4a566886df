import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect } from 'chai';
import { soundBundle } from '../testing/sound-bundle.ts';
import { concatBytes, fromHex, toDisplayHex, toHex } from './bytes.ts';
import { blockHash } from './headers.ts';
import type { Verdict } from './verdict.ts';

interface Run {
  code: number;
  stdout: string;
  stderr: string;
}

const cli = new URL('cli.ts', import.meta.url).pathname;

/** Runs the command as a separate process. */
function run(args: string[], input = ''): Promise<Run> {
  return new Promise((resolve) => {
    const child = execFile(process.execPath, [cli, ...args], { cwd: folder }, (error, stdout, stderr) => {
      resolve({ code: error === null ? 0 : Number(error.code), stdout, stderr });
    });
    child.stdin!.end(input);
  });
}

let folder: string;
const bundle = soundBundle({ headers: 4 });
const raws = bundle.block_header_chain.map(({ header }) => fromHex(header));
const hashes = raws.map((raw) => toDisplayHex(blockHash(raw)));
const first = bundle.block_header_chain[0]!.height;
const line = (i: number, raw = raws[i]!) => `${first + i} ${toHex(raw)}\n`;
const foreign = soundBundle({ points: 3, headers: 4 }).block_header_chain.map(({ header }) => fromHex(header));

/** A header source's response to `/headers`. */
type Result = (from: number, count: number) => { status?: number; type?: string; body: Uint8Array | string };
const chainFrom =
  (chain: Uint8Array[]): Result =>
  (from, count) => ({
    body: concatBytes(...chain.slice(Math.max(0, from - first), Math.max(0, from - first + count))),
  });

describe('kellet-verify', function () {
  this.timeout(60_000);
  let server: Server;
  let url: string;
  let reply: Result = chainFrom(raws);

  before(async () => {
    folder = mkdtempSync(join(tmpdir(), 'kellet-verify-'));
    const files: Record<string, string> = {
      'bundle.json': JSON.stringify(bundle, undefined, 2),
      'response.json': JSON.stringify({ data_hash: bundle.data_hash, txid: bundle.txid, bundle }),
      'changed.json': JSON.stringify({ ...bundle, leaf_index: bundle.leaf_index - 1 }),
      'unknown.json': JSON.stringify({ ...bundle, note: 'x' }),
      'twice.json': JSON.stringify(bundle).replace('"count":', '"count":1,"count":'),
      'text.json': 'not json',
      'binary.json': '',
      'headers.txt': line(0) + line(1),
      'late.txt': line(3),
      'other.txt': line(0, foreign[0]),
      'elsewhere.txt': `5 ${toHex(raws[0]!)}\n`,
      'broken.txt': `${line(0)}101\n`,
      'steer.json': JSON.stringify({ bundle, txid: '\u001b[2J\u202e' }),
    };
    for (const [name, text] of Object.entries(files)) writeFileSync(join(folder, name), text);
    writeFileSync(join(folder, 'binary.json'), Uint8Array.of(0x22, 0xff, 0x22));
    server = createServer((request, response) => {
      const { pathname, searchParams } = new URL(request.url!, 'http://localhost');
      if (pathname !== '/v2/headers') return void response.writeHead(500).end('no such route');
      const {
        status = 200,
        type = 'application/octet-stream',
        body,
      } = reply(Number(searchParams.get('height')), Number(searchParams.get('count')));
      response.writeHead(status, { 'content-type': type }).end(body);
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/v2`;
  });

  after(() => {
    server.close();
    rmSync(folder, { recursive: true });
  });

  const checkpoint = (i: number, hash = hashes[i]!) => ['--checkpoint', `${first + i}:${hash}`];
  const wrong = 'ab'.repeat(32);
  const cases: { name: string; args: string[]; code: number; says: RegExp }[] = [
    { name: 'no pin', args: ['bundle.json'], code: 3, says: /^mined, not proven: .*\n[^]*work +8 hashes/m },
    { name: 'a headers file', args: ['bundle.json', '--headers', 'headers.txt'], code: 0, says: /^proven$/m },
    {
      name: 'a headers file of a later block',
      args: ['bundle.json', '--headers', 'late.txt'],
      code: 0,
      says: /^proven$/m,
    },
    { name: 'a checkpoint', args: ['bundle.json', ...checkpoint(0)], code: 0, says: /^proven$/m },
    {
      name: 'a checkpoint before the bundle',
      args: ['--checkpoint=0:' + wrong, 'bundle.json'],
      code: 3,
      says: /^mined/m,
    },
    { name: 'two checkpoints', args: ['bundle.json', ...checkpoint(0), ...checkpoint(3)], code: 0, says: /^proven$/m },
    { name: 'the whole response', args: ['response.json', ...checkpoint(0)], code: 0, says: /^ok +record/m },
    { name: 'headers of other heights', args: ['bundle.json', '--headers', 'elsewhere.txt'], code: 3, says: /^mined/m },
    {
      name: 'a contradicting checkpoint',
      args: ['bundle.json', ...checkpoint(2, wrong)],
      code: 1,
      says: /^FAIL pin/m,
    },
    {
      name: 'one of two checkpoints that contradicts',
      args: ['bundle.json', ...checkpoint(0), ...checkpoint(1, wrong)],
      code: 1,
      says: /^FAIL pin/m,
    },
    { name: 'contradicting headers', args: ['bundle.json', '--headers', 'other.txt'], code: 1, says: /^FAIL pin/m },
    { name: 'a changed bundle', args: ['changed.json', ...checkpoint(0)], code: 1, says: /^FAIL merkle_path/m },
    { name: 'an unknown field', args: ['unknown.json'], code: 2, says: /^FAIL schema .*#\/additionalProperties/m },
    { name: 'a repeated field', args: ['twice.json'], code: 2, says: /"count" appears twice/ },
    { name: 'invalid JSON', args: ['text.json'], code: 2, says: /not JSON/ },
    { name: 'ill-formed UTF-8', args: ['binary.json'], code: 2, says: /binary\.json/ },
    { name: 'a missing file', args: ['nowhere.json'], code: 2, says: /nowhere\.json: ENOENT/ },
    { name: 'a folder', args: ['.'], code: 2, says: /EISDIR/ },
    {
      name: 'a missing headers file',
      args: ['bundle.json', '--headers', 'nowhere.txt'],
      code: 2,
      says: /nowhere\.txt: ENOENT/,
    },
    {
      name: 'a broken headers file',
      args: ['bundle.json', '--headers', 'broken.txt'],
      code: 2,
      says: /broken\.txt: line 2/,
    },
    { name: 'a broken checkpoint', args: ['bundle.json', '--checkpoint', '12'], code: 2, says: /HEIGHT:HASH, not 12/ },
    { name: 'an unknown option', args: ['bundle.json', '--quick'], code: 2, says: /--quick/ },
    { name: 'nothing', args: [], code: 2, says: /expected one bundle/ },
    { name: 'two bundles', args: ['bundle.json', 'bundle.json'], code: 2, says: /expected one bundle/ },
    { name: '--help', args: ['--help'], code: 0, says: /^Usage:/ },
  ];
  for (const { name, args, code, says } of cases) {
    it(`${name}: exit ${code}`, async () => {
      const result = await run(args);
      expect(result.stdout + result.stderr).to.match(says);
      expect(result.code).to.equal(code);
    });
  }

  it('prints what the README shows', async () => {
    const readme = readFileSync(new URL('../README.md', import.meta.url), 'utf8');
    const shown = [...readme.matchAll(/^```console\n\$ kellet-verify (.*)\n([^]*?)^```/gm)];
    expect(shown).to.have.length(2);
    for (const [, args, output] of shown) {
      const [file, ...options] = args!.split(' ');
      expect((await run([new URL(`../${file}`, import.meta.url).pathname, ...options])).stdout).to.equal(output);
    }
  });

  it('reads a bundle from standard input', async () => {
    expect((await run(['-', ...checkpoint(0)], JSON.stringify(bundle))).code).to.equal(0);
  });

  it('prints the verdict as JSON', async () => {
    const proven = await run(['bundle.json', '--json', ...checkpoint(0)]);
    const verdict = JSON.parse(proven.stdout) as Verdict;
    expect(verdict.verdict).to.equal('proven');
    expect(verdict.steps.map(({ step }) => step)).to.deep.equal([
      'schema',
      'leaf_hash',
      'merkle_path',
      'transaction',
      'commitment',
      'bump',
      'headers',
      'pin',
    ]);
    expect(verdict.statement).to.include({ block_height: first, block_hash: hashes[0], claimed_depth: 4, work: '8' });
    const refuted = JSON.parse((await run(['changed.json', '--json'])).stdout) as Verdict;
    expect(refuted).to.include({ verdict: 'refuted' });
    expect(refuted.reason).to.match(/^merkle_path: /);
    expect(JSON.parse((await run(['text.json', '--json'])).stdout)).to.include({ verdict: 'malformed' });
  });

  it('does not let a bundle control the terminal', async () => {
    const { stdout, code } = await run(['steer.json']);
    expect(code).to.equal(1);
    expect(stdout).to.include('\\u001b[2J');
    for (const character of ['\u001b', '\u202e']) expect(stdout).to.not.include(character);
  });

  const hexJson =
    (chain: Uint8Array[]): Result =>
    (from, count) => ({
      type: 'application/json',
      body: JSON.stringify({ status: 'success', value: toHex(chainFrom(chain)(from, count).body as Uint8Array) }),
    });
  const sources: { name: string; reply: Result; code: number; says: RegExp }[] = [
    { name: 'has the headers', reply: chainFrom(raws), code: 0, says: /block \d+ matches the header source/ },
    { name: 'has them in hex', reply: hexJson(raws), code: 0, says: /^proven$/m },
    { name: 'lags behind the bundle', reply: chainFrom(raws.slice(0, 1)), code: 0, says: /^proven$/m },
    { name: 'has not reached the block', reply: chainFrom([]), code: 3, says: /note: .*it has no block/ },
    { name: 'does not know the block', reply: () => ({ status: 404, body: '{}' }), code: 3, says: /it has no block/ },
    { name: 'has another chain', reply: chainFrom(foreign), code: 1, says: /^FAIL pin/m },
    { name: 'fails', reply: () => ({ status: 503, body: 'busy' }), code: 3, says: /returned 503/ },
    { name: 'returns half a header', reply: () => ({ body: new Uint8Array(40) }), code: 3, says: /40 bytes/ },
    { name: 'returns inconsistent headers', reply: () => ({ body: new Uint8Array(80) }), code: 3, says: /unusable/ },
    {
      name: 'returns JSON of another kind',
      reply: () => ({ type: 'application/json', body: '{}' }),
      code: 3,
      says: /unusable/,
    },
  ];
  for (const { name, reply: served, code, says } of sources) {
    it(`a header source that ${name}: exit ${code}`, async () => {
      reply = served;
      const result = await run(['bundle.json', '--headers-url', `${url}/`]);
      expect(result.stdout).to.match(says);
      expect(result.code).to.equal(code);
    });
  }

  it('a header source that is unavailable: exit 3, and 0 with another pin', async () => {
    const closed = createServer().listen(0, '127.0.0.1');
    await once(closed, 'listening');
    const { port } = closed.address() as AddressInfo;
    closed.close();
    const away = ['bundle.json', '--headers-url', `http://127.0.0.1:${port}/v2`];
    const { code, stdout } = await run(away);
    expect(stdout).to.match(/note: the header source is unusable: .*ECONNREFUSED/);
    expect(code).to.equal(3);
    expect((await run([...away, ...checkpoint(0)])).code).to.equal(0);
  });

  describe('headers', () => {
    const headers = (...args: string[]) => run(['headers', '--headers-url', url, '--from', ...args]);

    it('writes a headers file that pins a bundle', async () => {
      reply = chainFrom(raws);
      const whole = await headers(String(first));
      expect(whole).to.deep.equal({ code: 0, stdout: raws.map((_, i) => line(i)).join(''), stderr: '' });
      expect((await headers(String(first), '--count', '2')).stdout).to.equal(line(0) + line(1));
      expect((await headers(String(first + 1), '--to', String(first + 2))).stdout).to.equal(line(1) + line(2));
      writeFileSync(join(folder, 'written.txt'), whole.stdout);
      expect((await run(['bundle.json', '--headers', 'written.txt'])).code).to.equal(0);
    });

    it('fetches page by page', async () => {
      const asked: number[] = [];
      reply = (from, count) => {
        asked.push(from);
        return chainFrom(raws)(from, Math.min(count, 3));
      };
      expect((await headers(String(first))).stdout).to.equal(raws.map((_, i) => line(i)).join(''));
      expect(asked).to.deep.equal([first, first + 3, first + 4]);
    });

    const refused: { name: string; args: string[]; code: number; says: RegExp; reply?: Result }[] = [
      { name: 'more headers than exist', args: [String(first), '--count', '5'], code: 3, says: /no block/ },
      { name: 'no existing headers', args: [String(first + 9)], code: 3, says: /no block/ },
      {
        name: 'inconsistent headers',
        args: [String(first)],
        code: 1,
        says: /does not follow/,
        reply: chainFrom([raws[0]!, raws[2]!]),
      },
      {
        name: 'a source that fails',
        args: [String(first)],
        code: 3,
        says: /returned 503/,
        reply: () => ({ status: 503, body: '' }),
      },
      { name: 'both bounds', args: ['1', '--count', '1', '--to', '2'], code: 2, says: /mutually exclusive/ },
      { name: 'a bound below the start', args: ['5', '--to', '4'], code: 2, says: /no headers/ },
      { name: 'not a number', args: ['x'], code: 2, says: /not a whole number/ },
      { name: 'a bundle as well', args: ['1', 'bundle.json'], code: 2, says: /bundle\.json/ },
    ];
    for (const { name, args, code, says, reply: served } of refused) {
      it(`${name}: exit ${code}, nothing written`, async () => {
        reply = served ?? chainFrom(raws);
        const result = await headers(...args);
        expect(result.stderr).to.match(says);
        expect(result).to.include({ code, stdout: '' });
        expect(result.stderr.includes('--help'), 'how to use the command').to.equal(code === 2);
      });
    }

    it('requires a source and a start', async () => {
      expect((await run(['headers'])).code).to.equal(2);
      expect((await run(['headers', '--headers-url', url])).code).to.equal(2);
      expect((await run(['headers', '--help'])).code).to.equal(0);
    });
  });
});
