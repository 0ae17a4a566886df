// Runs kellet-verify bundles on files of many bundles.
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { zstdCompressSync } from 'node:zlib';
import { expect } from 'chai';
import { soundBundle } from '../testing/sound-bundle.ts';
import { fromHex, toDisplayHex } from './bytes.ts';
import { blockHash } from './headers.ts';

const cli = new URL('cli.ts', import.meta.url).pathname;

describe('kellet-verify bundles', function () {
  this.timeout(60_000);
  let folder: string;
  // In two blocks.
  const early = [3, 5].map((points) => soundBundle({ points, headers: 4, blockHeight: 1000 }));
  const late = [2, 9].map((points) => soundBundle({ points, headers: 2, blockHeight: 2000 }));
  const all = [...early, ...late];
  const lines = all.map((bundle) => JSON.stringify(bundle));
  const pinOf = (bundle: (typeof all)[number]) => {
    const { height, header } = bundle.block_header_chain[0]!;
    return `${height}:${toDisplayHex(blockHash(fromHex(header)))}`;
  };
  const pins = all.flatMap((bundle) => ['--checkpoint', pinOf(bundle)]);
  const refuted = JSON.stringify({ ...early[0]!, leaf_index: early[0]!.leaf_index + 1 });

  const run = (args: string[], input: string | Uint8Array = '', node: string[] = []) =>
    new Promise<{ code: number | null; stdout: string; stderr: string }>((resolve, reject) => {
      const child = spawn(process.execPath, [...node, cli, 'bundles', ...args], { cwd: folder });
      let [stdout, stderr] = ['', ''];
      child.stdout.setEncoding('utf8').on('data', (text: string) => (stdout += text));
      child.stderr.setEncoding('utf8').on('data', (text: string) => (stderr += text));
      child.on('error', reject);
      child.on('close', (code) => resolve({ code, stdout, stderr }));
      child.stdin.on('error', () => undefined);
      child.stdin.end(input);
    });
  const file = (name: string, content: string | Uint8Array) => {
    writeFileSync(join(folder, name), content);
    return name;
  };

  before(() => {
    folder = mkdtempSync(join(tmpdir(), 'kellet-verify-bundles-'));
  });
  after(() => rmSync(folder, { recursive: true }));

  // Each bundle of these has blocks of its own.
  const [one, other] = [early[0]!, late[0]!];
  const both = `${JSON.stringify(one)}\n${JSON.stringify(other)}\n`;
  const ownPins = ['--checkpoint', pinOf(one), '--checkpoint', pinOf(other)];

  it('proves every line of a plain file, of a compressed one and of standard input', async () => {
    const plain = file('plain.ndjson', both);
    const compressed = file('compressed.zst', zstdCompressSync(Buffer.from(both)));
    for (const [args, input] of [
      [[plain], ''],
      [[compressed], ''],
      [['-'], both],
      [['-'], zstdCompressSync(Buffer.from(both))],
      // The last line without a line feed.
      [['-'], both.slice(0, -1)],
    ] as const) {
      const { code, stdout, stderr } = await run([...args, ...ownPins], input);
      expect({ code, stderr }).to.deep.equal({ code: 0, stderr: '' });
      expect(stdout).to.equal('\nproven\n  bundles     2: 2 proven, 0 mined, 0 refuted, 0 malformed\n');
    }
  });

  it('names every line that is not proven, and exits by the worst', async () => {
    const cases: [text: string, args: string[], code: number, shown: RegExp][] = [
      [both, [], 3, new RegExp(`^-    line 1 ${one.data_hash} mined: pin: no trusted block`)],
      [both, ownPins.slice(0, 2), 3, new RegExp(`^-    line 2 ${other.data_hash} mined`)],
      [`${both}{}\n`, [], 2, /\nFAIL line 3 malformed: schema/],
      [`${both}\n`, ownPins, 2, /^FAIL line 3 malformed: schema: not JSON/],
      [`nonsense\n${refuted}\n${both}`, ownPins, 1, new RegExp(`\nFAIL line 2 ${one.data_hash} refuted: merkle_path`)],
      [both, ['--checkpoint', `1000:${'00'.repeat(32)}`], 1, new RegExp(`^FAIL line 1 ${one.data_hash} refuted: pin`)],
      ['', ownPins, 2, /^\nmalformed: no bundles\n/],
      [`${both}${Buffer.from([0xff]).toString('latin1')}\n`, ownPins, 2, /^FAIL line 3 malformed/],
    ];
    for (const [text, args, code, shown] of cases) {
      const run1 = await run(['-', ...args], text);
      expect(run1.stdout).to.match(shown);
      expect(run1.code, run1.stdout).to.equal(code);
    }
    expect((await run(['-', ...ownPins], Buffer.from([...Buffer.from(both), 0xff, 0x0a]))).stdout).to.match(
      /^FAIL line 3 malformed/,
    );
    expect((await run([])).code).to.equal(2);
    expect((await run(['absent'])).code).to.equal(2);
  });

  it('reads headers from a file, and from a source, each time for the blocks of the bundle', async () => {
    const headers = file(
      'headers.txt',
      [one, other]
        .flatMap((bundle) => bundle.block_header_chain)
        .map(({ height, header }) => `${height} ${header}\n`)
        .join(''),
    );
    expect(await run(['-', '--headers', headers], both)).to.include({ code: 0, stderr: '' });
    const asked: string[] = [];
    const server = createServer((request, response) => {
      const query = new URL(request.url!, 'http://localhost').searchParams;
      const [from, count] = [Number(query.get('height')), Number(query.get('count'))];
      asked.push(`${from}+${count}`);
      const found = [one, other]
        .flatMap((bundle) => bundle.block_header_chain)
        .filter(({ height }) => height >= from && height < from + count);
      response
        .writeHead(found.length > 0 ? 200 : 404)
        .end(Buffer.from(found.map(({ header }) => header).join(''), 'hex'));
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    const elsewhere = JSON.stringify(soundBundle({ blockHeight: 3000, headers: 1 }));
    const twice = `${JSON.stringify(one)}\n${elsewhere}\n${JSON.stringify(other)}\n${JSON.stringify(other)}\n`;
    const { code, stdout } = await run(['-', '--headers-url', url, '--json'], twice);
    server.close();
    const [mined, verdict] = stdout
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line) as Record<string, unknown>);
    expect(mined).to.include({ line: 2, verdict: 'mined' });
    expect(verdict).to.deep.equal({
      ...{ verdict: 'mined', counts: { proven: 3, mined: 1, refuted: 0, malformed: 0 } },
      note: 'the header source is unusable: it has no block 3000',
    });
    expect(code).to.equal(3);
    expect(asked).to.deep.equal(['1000+4', '3000+1', '2000+2']);
  });

  it('refutes a bundle that a trusted block among its others contradicts, though the bundle before was proven by one of them', async () => {
    // The same blocks, of which the second bundle shows more.
    const [short] = early;
    const shorter = JSON.stringify({ ...short!, block_header_chain: short!.block_header_chain.slice(0, 2) });
    const wrong = ['--checkpoint', pinOf(short!), '--checkpoint', `1003:${'11'.repeat(32)}`];
    const { code, stdout } = await run(['-', ...wrong], `${shorter}\n${lines[0]}\n`);
    expect(stdout).to.match(/^FAIL line 2 [0-9a-f]{64} refuted: pin/);
    expect(code).to.equal(1);
  });

  it('verifies all that other programs decompress: every frame, and nothing else may follow', async () => {
    const frame = (text: string) => zstdCompressSync(Buffer.from(text));
    const files = (...parts: Uint8Array[]) => run(['-', ...ownPins], Buffer.concat(parts));
    const [first, second] = [`${JSON.stringify(one)}\n`, `${JSON.stringify(other)}\n`];
    const proven = {
      code: 0,
      stderr: '',
      stdout: '\nproven\n  bundles     2: 2 proven, 0 mined, 0 refuted, 0 malformed\n',
    };
    expect(await files(frame(first), frame(second))).to.deep.equal(proven);
    expect(await files(frame(first), frame(''), frame(second.slice(0, 99)), frame(second.slice(99)))).to.deep.equal(
      proven,
    );
    const forged = await files(frame(both), frame(`${refuted}\n`));
    expect(forged.stdout).to.match(/^FAIL line 3 [0-9a-f]{64} refuted/);
    expect(forged.code).to.equal(1);
    // In many pieces.
    const long = Array.from({ length: 60 }, () => `${randomBytes(30_000).toString('base64')}\n`).join('');
    const { stderr: silent, stdout: counted } = await files(frame(long), frame(second));
    expect(silent).to.equal('');
    expect(counted).to.contain('61: 1 proven, 0 mined, 0 refuted, 60 malformed');
    for (const more of [Buffer.from(`${refuted}\n`), Buffer.from([0]), frame(both).subarray(0, -5)]) {
      const { code, stdout, stderr } = await files(frame(both), more);
      expect(stdout).to.match(/\nmalformed\n {2}bundles {5}[23]: [23] proven/);
      expect(stderr).to.match(/^kellet-verify: -: /);
      expect(code).to.equal(2);
    }
  });

  it('reads on after a line that is too long, in bounded memory, and reports what was read before damage', async () => {
    const long = `"${'a'.repeat(17 * 1024 * 1024)}"\n`;
    // 1 GiB of one line after decompression, in frames, so that this process, whose memory counts, never has it.
    const frame = zstdCompressSync(Buffer.alloc(1024 * 1024, 'a'));
    const bomb = Buffer.concat(Array.from({ length: 1024 }, () => frame));
    const { code, stdout } = await run(['-', ...ownPins], `${long}${both}`);
    expect(stdout)
      .to.match(/^FAIL line 1 malformed: longer than 16777216 bytes\n/)
      .and.to.contain('2 proven');
    expect(code).to.equal(2);
    const peak = 'process.on("exit", () => process.stderr.write(`${process.resourceUsage().maxRSS}`))';
    const bombed = await run(['-'], bomb, ['--import', `data:text/javascript,${encodeURIComponent(peak)}`]);
    expect(bombed.stdout).to.match(/^FAIL line 1 malformed: longer than/);
    expect(Number(bombed.stderr.split('\n').at(-1)), 'KiB at the peak').to.be.within(20_000, 600_000);
    const many = Buffer.from(`${refuted}\n`.repeat(2000));
    const cut = zstdCompressSync(many).subarray(0, -20);
    const damaged = await run([file('cut.zst', cut), ...ownPins]);
    expect(damaged.stderr).to.match(/^kellet-verify: cut\.zst: /);
    expect(damaged.code).to.equal(damaged.stdout.includes('refuted at') || damaged.stdout.startsWith('FAIL') ? 1 : 2);
    expect((await run([file('cut.zst', zstdCompressSync(Buffer.from(both)).subarray(0, -20)), ...pins])).code).to.equal(
      2,
    );
  });
});
