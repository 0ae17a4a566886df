// Proofs of whole rollouts: what is proven, and that no change of a proof goes unnoticed.
import { execFile } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Ajv2020 } from 'ajv/dist/2020.js';
import { expect } from 'chai';
import { soundRollout } from '../testing/sound-rollout.ts';
import { fromHex, toDisplayHex } from './bytes.ts';
import { blockHash } from './headers.ts';
import { parseCheckpoint } from './pins.ts';
import { type ResultVerdict, RolloutVerifier } from './rollout-proof.ts';
import { ROLLOUT_PROOF_SCHEMA, type RolloutProofPage } from './rollout-schema.ts';

const checkpointOf = (page: RolloutProofPage, index: number): string => {
  const { height, header } = page.block_header_chain[index]!;
  return `${height}:${toDisplayHex(blockHash(fromHex(header)))}`;
};
const text = (pages: readonly unknown[]) => pages.map((page) => `${JSON.stringify(page)}\n`).join('');

function verify(pages: readonly unknown[], checkpoints: readonly string[] = []) {
  const verifier = new RolloutVerifier();
  const results: ResultVerdict[] = pages.flatMap((page) => verifier.add(JSON.stringify(page)));
  return { results, ...verifier.finish(checkpoints.map(parseCheckpoint)) };
}

describe('the proof of a rollout', () => {
  const sound = soundRollout();
  const pin = checkpointOf(sound[2]!, 0);
  /** The sound pages after a change to their copies. */
  const changed = (change: (pages: RolloutProofPage[]) => void): RolloutProofPage[] => {
    const pages = structuredClone(sound);
    change(pages);
    return pages;
  };

  it('proves every result, and says which devices run what', () => {
    const { verdict, reason, results, counts, anchored, devices, batches } = verify(sound, [pin]);
    expect({ verdict, reason }).to.deep.equal({ verdict: 'proven', reason: undefined });
    expect(counts).to.deep.equal({ results: 30, anchored: 30, pending: 0, refuted: 0 });
    expect(anchored).to.deep.equal({ successful: 27, failure: 3 });
    expect({ devices, batches }).to.deep.equal({ devices: 30, batches: 3 });
    expect(results[9]).to.include({
      verdict: 'anchored',
      result: 'failure',
      reported_version: '1.0.0',
      block_height: 900,
    });
  });

  it('is mined, not proven, without a trusted block that covers every batch', () => {
    expect(verify(sound).verdict).to.equal('mined');
    const early = verify(sound, [checkpointOf(sound[1]!, 0)]);
    expect(early.verdict).to.equal('mined');
    expect(early.reason).to.contain('from block 902 on');
    expect(verify(sound, [checkpointOf(sound[2]!, 1)]).verdict).to.equal('proven');
  });

  it('is incomplete while results are pending', () => {
    const pending = verify(soundRollout({ pending: 2 }), [pin]);
    expect(pending).to.include({ verdict: 'incomplete', reason: '2 of 32 results are not anchored yet' });
    expect(pending.results.slice(-2).map(({ verdict }) => verdict)).to.deep.equal(['pending', 'pending']);
  });

  it('is incomplete for a rollout without results', () => {
    const [page] = structuredClone(sound);
    const empty = { ...page, results: [], batches: [], block_header_chain: [], next_page_token: '' };
    expect(verify([empty]).verdict).to.equal('incomplete');
    // With genuine headers, and batches of others, it still says nothing.
    const { block_header_chain, batches } = sound.at(-1)!;
    for (const shown of [{ block_header_chain }, { block_header_chain, batches }]) {
      const verdict = verify([{ ...empty, ...shown }], [checkpointOf(sound.at(-1)!, 1)]);
      expect(verdict).to.include({ verdict: 'incomplete', reason: 'no device has reported a result' });
    }
  });

  it('accepts headers below those of the pages before', () => {
    // The results of the earlier block come last.
    const [first, second, third] = structuredClone(sound) as [RolloutProofPage, RolloutProofPage, RolloutProofPage];
    const pages = [
      { ...second, next_page_token: 'x' },
      { ...first, next_page_token: 'x' },
      { ...third, next_page_token: '' },
    ];
    expect(verify(pages, [pin]).verdict).to.equal('proven');
  });

  it('names the results that are refuted, and proves the others', () => {
    const pages = changed(([page]) => {
      const { canonical_hash_inputs: inputs } = page!.results[4]!;
      inputs.payload = inputs.payload.replace('2.0.0', '2.0.1');
    });
    const { verdict, reason, results } = verify(pages, [pin]);
    expect({ verdict, reason }).to.deep.equal({ verdict: 'refuted', reason: '1 of 30 results are refuted' });
    expect(results.filter((result) => result.verdict === 'refuted').map(({ device_id }) => device_id)).to.deep.equal([
      sound[0]!.results[4]!.canonical_hash_inputs.device_id,
    ]);
  });

  const flip = (hex: string) => `${hex.slice(0, -1)}${hex.endsWith('0') ? '1' : '0'}`;
  const refuted: [string, (pages: RolloutProofPage[]) => void][] = [
    ['a device', ([page]) => (page!.results[0]!.canonical_hash_inputs.device_id = 'another')],
    ['a time', ([page]) => (page!.results[0]!.canonical_hash_inputs.timestamp += 1)],
    ['a tenant', ([page]) => (page!.results[0]!.canonical_hash_inputs.tenant_id = 'other')],
    ['the rollout of all pages', (pages) => pages.forEach((page) => (page.rollout_id = 'another'))],
    ['a data_hash', ([page]) => (page!.results[0]!.data_hash = flip(page!.results[0]!.data_hash))],
    ['a leaf_index', ([page]) => (page!.results[0]!.leaf_index = 2)],
    ['a path', ([page]) => page!.results[0]!.merkle_path.pop()],
    ['a batch_id of a result', (pages) => (pages[0]!.results[0]!.batch_id = pages[1]!.batches[0]!.batch_id)],
    ['a batch_id', ([page]) => (page!.batches[0]!.batch_id = 'another')],
    ['a count', ([page]) => (page!.batches[0]!.count += 1)],
    ['a mode', ([page]) => (page!.batches[0]!.anchor_mode = 'chain')],
    ['a merkle_root', ([page]) => (page!.batches[0]!.merkle_root = flip(page!.batches[0]!.merkle_root))],
    ['a txid', ([page]) => (page!.batches[0]!.txid = flip(page!.batches[0]!.txid))],
    ['a transaction', ([page]) => (page!.batches[0]!.raw_tx = flip(page!.batches[0]!.raw_tx))],
    ['a bump', (pages) => (pages[0]!.batches[0]!.bump_hex = pages[1]!.batches[0]!.bump_hex)],
    ['a block height', ([page]) => (page!.batches[0]!.block_height += 1)],
    ['a header', (pages) => (pages[1]!.block_header_chain[0]!.header = flip(sound[1]!.block_header_chain[0]!.header))],
    ['no header', (pages) => pages[1]!.block_header_chain.pop()],
    ['a header twice', (pages) => pages[1]!.block_header_chain.push(pages[0]!.block_header_chain[0]!)],
    [
      'a batch that differs from page to page',
      (pages) => pages[1]!.batches.push({ ...pages[0]!.batches[0]!, count: 1 }),
    ],
    ['a result twice', ([page]) => page!.results.push(page!.results[0]!)],
    ['no batch', ([page]) => page!.batches.pop()],
  ];
  for (const [what, change] of refuted) {
    it(`is refuted with another value: ${what}`, () => {
      expect(verify(changed(change), [pin]).verdict).to.equal('refuted');
    });
  }

  it('is refuted by a batch that does not hold, also one without results or on a second page', () => {
    for (const other of [{ batch_id: 'made-up', count: 4_000_000_000 }, { raw_tx: sound[1]!.batches[0]!.raw_tx }]) {
      const pages = changed((each) => each[1]!.batches.push({ ...each[0]!.batches[0]!, ...other }));
      expect(verify(pages, [pin]).verdict).to.equal('refuted');
    }
  });

  it('counts only batches with an anchored result, and results whatever they are called', () => {
    const { verdict, batches } = verify(
      changed((pages) => (pages[1]!.results = [])),
      [pin],
    );
    expect({ verdict, batches }).to.deep.equal({ verdict: 'proven', batches: 2 });
    const { anchored } = verify(soundRollout({ failure: '__proto__' }));
    expect(Object.entries(anchored)).to.deep.equal([
      ['successful', 27],
      ['__proto__', 3],
    ]);
  });

  it('names its package only if an anchored result does', () => {
    expect(verify(sound, [pin]).package_id).to.equal(sound[0]!.package_id);
    const other = verify(
      changed((pages) => pages.forEach((page) => (page.package_id = 'another'))),
      [pin],
    );
    expect(other.verdict).to.equal('proven');
    expect(other).not.to.have.property('package_id');
  });

  it('is refuted by a trusted block that contradicts it', () => {
    expect(verify(sound, [`901:${'ab'.repeat(32)}`, pin]).verdict).to.equal('refuted');
    expect(verify(sound, [`899:${'ab'.repeat(32)}`, pin]).verdict).to.equal('refuted');
  });

  const malformed: [string, (pages: RolloutProofPage[]) => unknown[]][] = [
    ['that was cut off', (pages) => pages.slice(0, 2)],
    ['without pages', () => []],
    ['with a page too many', (pages) => [...pages, pages[0]]],
    ['of several rollouts', ([first, ...rest]) => [first, ...rest.map((page) => ({ ...page, rollout_id: 'x' }))]],
    ['of several packages', ([first, ...rest]) => [first, ...rest.map((page) => ({ ...page, package_id: 'x' }))]],
    ['with an unknown field', ([first, ...rest]) => [{ ...first, note: 1 }, ...rest]],
    ['with a page that is no object', ([first, ...rest]) => [first, 7, ...rest]],
  ];
  for (const [what, change] of malformed) {
    it(`is malformed: one ${what}`, () => {
      expect(verify(change(structuredClone(sound)), [pin]).verdict).to.equal('malformed');
    });
  }

  it('has a schema that a draft 2020-12 validator accepts and the sound pages match', () => {
    const validate = new Ajv2020({ strict: true }).compile(ROLLOUT_PROOF_SCHEMA);
    for (const page of soundRollout({ pending: 1 }))
      expect(validate(page), JSON.stringify(validate.errors)).to.equal(true);
    expect(validate({ ...sound[0], note: 1 })).to.equal(false);
  });

  describe('given to kellet-verify', function () {
    this.timeout(60_000);
    let folder: string;
    before(() => (folder = mkdtempSync(join(tmpdir(), 'kellet-rollout-'))));
    after(() => rmSync(folder, { recursive: true }));
    const cli = new URL('cli.ts', import.meta.url).pathname;
    const run = (pages: readonly unknown[], ...args: string[]) =>
      new Promise<{ code: number; stdout: string; stderr: string }>((resolve) => {
        writeFileSync(join(folder, 'proof.ndjson'), text(pages));
        const options = { cwd: folder, maxBuffer: 1 << 28 };
        execFile(process.execPath, [cli, 'proof.ndjson', ...args], options, (error, stdout, stderr) =>
          resolve({ code: error === null ? 0 : Number(error.code), stdout, stderr }),
        );
      });

    it('prints a line per result and the verdict, and exits accordingly', async () => {
      const proven = await run(sound, '--checkpoint', pin);
      expect(proven.code, proven.stderr).to.equal(0);
      const lines = proven.stdout.split('\n');
      const device = sound[0]!.results[0]!.canonical_hash_inputs.device_id;
      expect(lines[0]).to.match(new RegExp(`^ok {3}${device} 20.*Z successful 2.0.0 block 900$`.replace('   ', ' +')));
      expect(lines.filter((line) => line.startsWith('ok '))).to.have.length(30);
      expect(lines).to.include('proven');
      const change = changed(([page]) => (page!.results[3]!.canonical_hash_inputs.timestamp += 1));
      const refutedRun = await run(change, '--checkpoint', pin);
      expect(refutedRun.code).to.equal(1);
      expect(refutedRun.stdout.split('\n').filter((line) => line.startsWith('FAIL'))).to.have.length(1);
      expect((await run(sound)).code).to.equal(3);
      expect((await run(soundRollout({ pending: 1 }), '--checkpoint', pin)).code).to.equal(3);
      expect((await run(sound.slice(0, 2), '--checkpoint', pin)).code).to.equal(2);
      expect((await run([sound[0], 'no page'])).code).to.equal(2);
    });

    it('reads the trusted blocks from a headers file', async () => {
      const headers = sound.flatMap((page) => page.block_header_chain);
      writeFileSync(join(folder, 'headers.txt'), headers.map(({ height, header }) => `${height} ${header}\n`).join(''));
      expect((await run(sound, '--headers', 'headers.txt')).code).to.equal(0);
    });

    it('prints JSON, one object per line', async () => {
      const { stdout } = await run(sound, '--json', '--checkpoint', pin);
      const lines = stdout
        .trimEnd()
        .split('\n')
        .map((line) => JSON.parse(line) as { verdict: string });
      expect(lines).to.have.length(31);
      expect(lines.at(-1)).to.include({ verdict: 'proven', devices: 30 });
    });

    it('does not let a proof control the terminal', async () => {
      const pages = changed(([page]) => (page!.results[0]!.canonical_hash_inputs.device_id = '\u001b[2J'));
      expect((await run(pages)).stdout).to.not.contain('\u001b');
    });

    it('takes memory that does not grow with the file', async () => {
      // Ten times as many results, most of them padded; the whole file would not fit into this heap.
      const pages = soundRollout({ batches: 40, perBatch: 250 });
      const padding = 'x'.repeat(6_000_000);
      for (const page of pages) page.package_id = padding;
      writeFileSync(join(folder, 'large.ndjson'), text(pages));
      const code = await new Promise((resolve) => {
        const args = ['--max-old-space-size=160', cli, 'large.ndjson'];
        execFile(process.execPath, args, { cwd: folder, maxBuffer: 1 << 28 }, (error) => resolve(error?.code ?? 0));
      });
      expect(code).to.equal(3);
    });

    it('takes memory that does not grow with what ids are in it', async () => {
      const [page] = soundRollout({ batches: 1, perBatch: 1 }) as [RolloutProofPage];
      const long = (n: number) => `${n}${'x'.repeat(6_000_000)}`;
      const pages = Array.from({ length: 40 }, (_, n) => {
        const copy = structuredClone(page);
        const { canonical_hash_inputs: inputs } = copy.results[0]!;
        inputs.payload = inputs.payload.replace(/("kellet.ota.result_id":")[^"]*/, `$1${long(n)}`);
        copy.batches.push({ ...copy.batches[0]!, batch_id: long(n) });
        return {
          ...copy,
          block_header_chain: n === 0 ? page.block_header_chain : [],
          next_page_token: n < 39 ? 'x' : '',
        };
      });
      writeFileSync(join(folder, 'ids.ndjson'), text(pages));
      const { code, stdout } = await new Promise<{ code: unknown; stdout: string }>((resolve) => {
        const args = ['--max-old-space-size=200', cli, 'ids.ndjson', '--json'];
        execFile(process.execPath, args, { cwd: folder, maxBuffer: 1 << 28 }, (error, stdout) =>
          resolve({ code: error?.code, stdout }),
        );
      });
      expect(code).to.equal(1);
      expect(stdout).to.contain('"reason":"40 of 40 results are refuted"');
    });
  });
});
