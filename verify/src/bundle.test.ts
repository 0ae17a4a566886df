import { Ajv2020 } from 'ajv/dist/2020.js';
import { expect } from 'chai';
import { BATCH_ID, soundBundle } from '../testing/sound-bundle.ts';
import { buildBump, serialiseBump } from './bump.ts';
import { verifyBundle, verifyBundleText } from './bundle.ts';
import { type AnchorMode, PROOF_BUNDLE_SCHEMA, type ProofBundle, readBundleDocument } from './bundle-schema.ts';
import { fromHex, reversed, toDisplayHex, toHex } from './bytes.ts';
import { blockHash } from './headers.ts';
import { violation } from './json-schema.ts';
import { type Pin, pinsOfHeaders } from './pins.ts';
import { sha256d } from './sha256.ts';
import type { StepName, Verdict } from './verdict.ts';

const bundle = soundBundle();

/** Returns pins of a bundle's own headers, starting with the `first`-th. */
function pinsOf(source: ProofBundle, first = 0): Pin[] {
  const headers = source.block_header_chain.map(({ height, header }) => ({ height, raw: fromHex(header) }));
  return pinsOfHeaders(headers.slice(first), 'headers file');
}

/** Returns a modified copy of the sound bundle. */
function changed(change: (copy: ProofBundle) => void, from: ProofBundle = bundle): ProofBundle {
  const copy = structuredClone(from);
  change(copy);
  return copy;
}

const failedStep = (verdict: Verdict): StepName | undefined => verdict.steps.find((step) => !step.passed)?.step;

const zero = '00'.repeat(32);

describe('bundle: sound ones', () => {
  for (const options of [
    {},
    { points: 1 },
    { points: 2 },
    { points: 257 },
    { mode: 'per_event' },
    { mode: 'chain' },
    { mode: 'chain', points: 1, segments: 1 },
    { mode: 'chain', points: 64, segments: 9 },
    { headers: 1, transactions: 1, blockHeight: 0 },
    { headers: 144 },
  ] as const) {
    it(`proves ${JSON.stringify(options)} with a pin and reports it as mined without one`, () => {
      const sound = soundBundle(options);
      const proven = verifyBundleText(JSON.stringify(sound), { pins: pinsOf(sound) });
      expect(proven.reason).to.equal(undefined);
      expect(proven.verdict).to.equal('proven');
      expect(proven.statement).to.include({ batch_id: BATCH_ID, txid: sound.txid, proven_depth: options.headers ?? 3 });
      const mined = verifyBundle(sound);
      expect(mined.verdict).to.equal('mined');
      expect(mined.statement).to.deep.equal(proven.statement);
      expect(mined.statement!.work).to.equal(String(2 * (options.headers ?? 3)));
    });
  }

  it('reports a claimed depth beyond the headers separately from the proven one', () => {
    const verdict = verifyBundle(changed((copy) => (copy.confirmation_depth = 900)));
    expect(verdict.statement).to.include({ claimed_depth: 900, proven_depth: 3 });
  });
});

describe('bundle: refusals name the step', () => {
  const faults: { fault: string; step: StepName; says: RegExp; change: (copy: ProofBundle) => void }[] = [
    { fault: 'a value', step: 'leaf_hash', says: /hash to/, change: (b) => replacePayload(b, '41', '42') },
    {
      fault: 'another tenant',
      step: 'leaf_hash',
      says: /hash to/,
      change: (b) => (b.canonical_hash_inputs.tenant_id = 'acmf'),
    },
    { fault: 'another second', step: 'leaf_hash', says: /hash to/, change: (b) => b.canonical_hash_inputs.timestamp++ },
    {
      fault: 'a payload that is not canonical',
      step: 'leaf_hash',
      says: /canonical/,
      change: (b) => replacePayload(b, ':', ': '),
    },
    { fault: 'another data_hash', step: 'leaf_hash', says: /data_hash/, change: (b) => (b.data_hash = zero) },
    { fault: 'another sibling', step: 'merkle_path', says: /leads to/, change: (b) => (b.merkle_path[3]!.hash = zero) },
    { fault: 'a step too few', step: 'merkle_path', says: /steps/, change: (b) => b.merkle_path.pop() },
    {
      fault: 'a step too many',
      step: 'merkle_path',
      says: /steps/,
      change: (b) => b.merkle_path.push(b.merkle_path[0]!),
    },
    { fault: 'a flipped direction', step: 'merkle_path', says: /direction/, change: (b) => turn(b, 0) },
    { fault: 'an index outside', step: 'merkle_path', says: /does not exist/, change: (b) => (b.leaf_index = 11) },
    { fault: 'another index', step: 'merkle_path', says: /direction/, change: (b) => (b.leaf_index = 8) },
    { fault: 'another mode', step: 'merkle_path', says: /per_event/, change: (b) => (b.anchor_mode = 'per_event') },
    { fault: 'another root', step: 'merkle_path', says: /merkle_root/, change: (b) => (b.merkle_root = zero) },
    { fault: 'another txid', step: 'transaction', says: /txid/, change: (b) => (b.txid = zero) },
    {
      fault: 'a txid in natural order',
      step: 'transaction',
      says: /txid/,
      change: (b) => (b.txid = toHex(reversed(fromHex(b.txid)))),
    },
    { fault: 'a trailing byte in raw_tx', step: 'transaction', says: /trailing/, change: (b) => (b.raw_tx += '00') },
    {
      fault: 'another BUMP in beef_hex',
      step: 'transaction',
      says: /bump_hex/,
      change: (b) => (b.bump_hex = otherHeight(b)),
    },
    {
      fault: 'a BEEF of another bundle',
      step: 'transaction',
      says: /raw_tx/,
      change: (b) => (b.beef_hex = soundBundle({ points: 7 }).beef_hex),
    },
    { fault: 'an invalid BEEF', step: 'transaction', says: /BEEF/, change: (b) => (b.beef_hex = '00'.repeat(99)) },
    { fault: 'another count', step: 'commitment', says: /11 leaves/, change: (b) => (b.count = 12) },
    {
      fault: 'the next block',
      step: 'bump',
      says: /block/,
      change: (b) => b.block_header_chain.forEach((h) => h.height++),
    },
    { fault: 'a missing first header', step: 'bump', says: /block/, change: (b) => b.block_header_chain.shift() },
    {
      fault: 'headers of another block',
      step: 'headers',
      says: /Merkle root/,
      change: (b) => (b.block_header_chain = soundBundle({ points: 7 }).block_header_chain),
    },
    { fault: 'a gap', step: 'headers', says: /comes/, change: (b) => b.block_header_chain.splice(1, 1) },
    { fault: 'a broken link', step: 'headers', says: /follow|proof of work/, change: (b) => breakLink(b) },
    {
      fault: 'fewer confirmations than headers',
      step: 'headers',
      says: /confirmation_depth/,
      change: (b) => (b.confirmation_depth = 2),
    },
  ];
  for (const { fault, step, says, change } of faults) {
    it(`${step}: ${fault}`, () => {
      const verdict = verifyBundle(changed(change), { pins: pinsOf(bundle) });
      expect(verdict.verdict).to.equal('refuted');
      expect(failedStep(verdict)).to.equal(step);
      expect(verdict.reason).to.match(says);
      expect(verdict.statement).to.equal(undefined);
    });
  }

  it('commitment: a root of another batch in its own transaction', () => {
    const other = soundBundle({ points: 7 });
    const verdict = verifyBundle(
      changed((copy) =>
        Object.assign(copy, {
          txid: other.txid,
          raw_tx: other.raw_tx,
          beef_hex: other.beef_hex,
          bump_hex: other.bump_hex,
        }),
      ),
    );
    expect(failedStep(verdict)).to.equal('commitment');
  });

  it('bump: rejects a path of another transaction in a BEEF of the right one when parsing the BEEF', () => {
    const txids = [sha256d(Uint8Array.of(1)), sha256d(Uint8Array.of(2))];
    const bump = toHex(serialiseBump(buildBump(871_203, txids, 0)));
    const swap = (hex: string) => hex.replace(bundle.bump_hex, bump);
    const verdict = verifyBundle(
      changed((copy) => Object.assign(copy, { bump_hex: bump, beef_hex: swap(copy.beef_hex) })),
    );
    expect(failedStep(verdict)).to.equal('transaction');
    expect(verdict.reason).to.match(/not in BUMP/);
  });
});

describe('bundle: pins', () => {
  const own = pinsOf(bundle);
  const before = { ...own[0]! };
  const wrong = (pin: Pin): Pin => ({ ...pin, hash: zero });
  const cases: [string, Pin[], Verdict['verdict']][] = [
    ['none', [], 'mined'],
    ['the block itself', [own[1]!], 'proven'],
    ['a later block', [own[3]!], 'proven'],
    ['the block before only', [before], 'mined'],
    ['blocks elsewhere', [{ height: 5, hash: zero, source: 'checkpoint' }], 'mined'],
    ['another hash for the block', [wrong(own[1]!)], 'refuted'],
    ['another hash for a later block', [wrong(own[3]!)], 'refuted'],
    ['another hash for the block before', [wrong(before)], 'refuted'],
    ['one that agrees and one that contradicts', [own[1]!, wrong(own[2]!)], 'refuted'],
  ];
  for (const [name, pins, verdict] of cases) {
    it(`${name}: ${verdict}`, () => {
      const result = verifyBundle(bundle, { pins });
      expect(result.verdict).to.equal(verdict);
      if (verdict !== 'proven') expect(failedStep(result)).to.equal('pin');
    });
  }

  it('a trusted header that follows the last one shown pins it by its previous hash', () => {
    const longer = soundBundle({ headers: 4 });
    const cut = changed((copy) => copy.block_header_chain.pop(), longer);
    expect(verifyBundle(cut, { pins: pinsOf(longer, 3) }).verdict).to.equal('proven');
  });
});

describe('bundle: documents', () => {
  const malformed: [string, unknown, RegExp][] = [
    ['an array', [], /expected a proof bundle/],
    ['null', null, /expected a proof bundle/],
    ['an empty object', {}, /expected a proof bundle/],
    ['a proof record', { data_hash: bundle.data_hash, beef_hex: bundle.beef_hex }, /include_bundle=true/],
    ['an empty bundle field', { bundle: {} }, /must have the field schema_version/],
    ['a missing field', { ...bundle, txid: undefined }, /\/txid must be of type string/],
    ['an unknown field', { ...bundle, extra: 1 }, /"extra" \(schema #\/additionalProperties\)/],
    ['the field __proto__', JSON.parse(JSON.stringify(bundle).replace('{', '{"__proto__":{},')), /"__proto__"/],
    [
      'an unknown field in a step',
      changed((copy) => Object.assign(copy.merkle_path[2]!, { x: 1 })),
      /\/merkle_path\/2 .*#\/properties\/merkle_path\/items\/additionalProperties/,
    ],
    ['another schema version', { ...bundle, schema_version: '1.1' }, /must be "1.0"/],
    ['upper-case hex', { ...bundle, txid: bundle.txid.toUpperCase() }, /\/txid must match .*#\/\$defs\/hash\/pattern/],
    ['half a byte', { ...bundle, raw_tx: `${bundle.raw_tx}0` }, /\/raw_tx must match/],
    ['a fraction', { ...bundle, count: 10.5 }, /\/count must be of type integer/],
    ['text for a number', { ...bundle, count: '11' }, /\/count must be of type integer/],
    ['no headers', { ...bundle, block_header_chain: [] }, /\/block_header_chain must have at least/],
    ['an unknown mode', { ...bundle, anchor_mode: 'tree' }, /\/anchor_mode must be one of/],
  ];
  for (const [name, value, says] of malformed) {
    it(`reports ${name} as malformed`, () => {
      const verdict = verifyBundle(value);
      expect(verdict.verdict).to.equal('malformed');
      expect(failedStep(verdict)).to.equal('schema');
      expect(verdict.reason).to.match(says);
    });
  }

  it('reports a repeated field as malformed, also nested and however it is escaped', () => {
    const text = JSON.stringify(bundle);
    for (const [from, to] of [
      ['"count":11', '"count":10,"count":11'],
      ['"is_right":true', '"is_right":true,"is_r\\u0069ght":true'],
      ['"version":1', '"version":1,"version":1'],
    ] as const) {
      expect(text).to.include(from);
      const verdict = verifyBundleText(text.replace(from, to));
      expect(verdict.verdict).to.equal('malformed');
      expect(verdict.reason).to.match(/appears twice/);
    }
    expect(verifyBundleText(`${text},`).reason).to.match(/not JSON/);
    expect(verifyBundleText('').reason).to.match(/not JSON/);
  });

  const response = {
    data_hash: bundle.data_hash,
    batch_id: BATCH_ID,
    merkle_path: bundle.merkle_path.map(({ hash, is_right }) => ({ is_right, hash })),
    txid: bundle.txid,
    block_height: 871_203,
    block_hash: toDisplayHex(blockHash(fromHex(bundle.block_header_chain[0]!.header))),
    confirmed_at: '2025-10-09T08:53:50Z',
    tenant_id: 'acme',
    merkle_root: bundle.merkle_root,
    beef_hex: bundle.beef_hex,
    bundle,
  };

  it('accepts the whole verify/hash response', () => {
    const verdict = verifyBundle(response, { pins: pinsOf(bundle) });
    expect(verdict.verdict).to.equal('proven');
    expect(verdict.steps.map(({ step }) => step)).to.include('record');
    expect(readBundleDocument(response).bundle).to.deep.equal(bundle);
  });

  it('accepts no response with a field that nothing would verify', () => {
    for (const addition of [
      { payload: '{}' },
      { timestamp: 1 },
      { numeric_values: { temperature: 99 } },
      { proofs: [] },
    ]) {
      const { verdict, reason } = verifyBundle({ ...response, ...addition }, { pins: pinsOf(bundle) });
      expect(verdict).to.equal('malformed');
      expect(reason).to.contain(`the response must not have the field "${Object.keys(addition)[0]}"`);
    }
  });

  for (const change of [
    { batch_id: BATCH_ID.replace('d30', 'd31') },
    { block_height: 871_204 },
    { block_hash: zero },
    { tenant_id: 'other' },
    { merkle_path: [] },
    { txid: null },
    { canonical_hash_inputs: { payload: '{}' } },
  ]) {
    it(`refutes a response that says ${JSON.stringify(change)} beside its bundle`, () => {
      const verdict = verifyBundle({ ...response, ...change }, { pins: pinsOf(bundle) });
      expect(verdict.verdict).to.equal('refuted');
      expect(failedStep(verdict)).to.equal('record');
    });
  }
});

describe('bundle: mutations', function () {
  this.timeout(120_000);
  const validate = new Ajv2020({ allErrors: false }).compile(PROOF_BUNDLE_SCHEMA);

  it('publishes a schema that a draft 2020-12 validator accepts in strict mode and the sound bundles match', () => {
    for (const mode of ['merkle', 'per_event', 'chain'] satisfies AnchorMode[]) {
      expect(validate(soundBundle({ mode })), JSON.stringify(validate.errors)).to.be.true;
    }
  });

  for (const mode of ['merkle', 'chain'] satisfies AnchorMode[]) {
    it(`never proves the same with one character of a ${mode} bundle changed, dropped or repeated`, () => {
      const sound = { ...soundBundle({ mode }), verification_steps: [] };
      const text = JSON.stringify(sound);
      const pins = pinsOf(sound);
      const { statement } = verifyBundleText(text, { pins });
      const counts = { proven: 0, mined: 0, refuted: 0, malformed: 0 };
      for (const mutant of mutantsOf(text)) {
        const verdict = verifyBundleText(mutant, { pins });
        counts[verdict.verdict]++;
        expect(verdict.statement ?? {}, mutant).to.not.deep.equal(statement);
        if (verdict.verdict === 'proven') {
          // With pinned headers, only the depth claimed by the bundle's maker may change.
          expect({ ...verdict.statement, claimed_depth: 3 }, mutant).to.deep.equal(statement);
        }
        const value = parsed(mutant);
        if (value !== undefined) {
          expect(violation(PROOF_BUNDLE_SCHEMA, value) === undefined, mutant).to.equal(validate(value));
        }
      }
      expect(counts.proven).to.be.lessThan(20);
      expect(counts.refuted).to.be.greaterThan(3000);
      expect(counts.malformed).to.be.greaterThan(3000);
    });
  }
});

/** Yields every text that differs from `text` by one character changed, dropped or repeated. */
function* mutantsOf(text: string): Generator<string> {
  for (let i = 0; i < text.length; i++) {
    const character = text[i]!;
    const others = /[0-9]/.test(character) ? [String((Number(character) + 1) % 10), 'a'] : ['0', 'x', '"'];
    for (const other of ['', ...others, character + character]) {
      if (other !== character) yield text.slice(0, i) + other + text.slice(i + 1);
    }
  }
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function replacePayload(copy: ProofBundle, from: string, to: string): void {
  copy.canonical_hash_inputs.payload = copy.canonical_hash_inputs.payload.replace(from, to);
}

function turn(copy: ProofBundle, step: number): void {
  copy.merkle_path[step]!.is_right = !copy.merkle_path[step]!.is_right;
}

function otherHeight(copy: ProofBundle): string {
  return copy.bump_hex.replace(/^fe..../, 'fe0000');
}

function breakLink(copy: ProofBundle): void {
  const last = copy.block_header_chain.at(-1)!;
  last.header = last.header.slice(0, 8) + zero + last.header.slice(72);
}
