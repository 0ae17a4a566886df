// Checks the library against the published vectors, whose hashes were computed by other code.
import { readFileSync } from 'node:fs';
import { expect } from 'chai';
import { verifyBundle } from './bundle.ts';
import { fromHex, toHex } from './bytes.ts';
import { checkChainPath, segmentHead, segmentPath } from './chain-mode.ts';
import { canonicalPayload, dataHash, leafPreimage, parsePayload } from './leaf-hash.ts';
import { checkMerklePath, merkleLevels, merklePath, merkleRoot, type MerkleStep } from './merkle.ts';
import { parseCheckpoint } from './pins.ts';
import type { VerdictName } from './verdict.ts';

type JsonPath = { hash: string; is_right: boolean }[];

function read<T>(name: string): T {
  return JSON.parse(readFileSync(new URL(`../vectors/${name}`, import.meta.url), 'utf8')) as T;
}

const pathOf = (path: JsonPath): MerkleStep[] =>
  path.map((step) => ({ hash: fromHex(step.hash), isRight: step.is_right }));
const jsonOf = (path: MerkleStep[]): JsonPath =>
  path.map((step) => ({ hash: toHex(step.hash), is_right: step.isRight }));

describe('vectors: leaf hash', () => {
  const { vectors } = read<{
    vectors: {
      name: string;
      tenant_id: string;
      device_id: string;
      timestamp: number;
      numeric_values: Record<string, number>;
      string_values: Record<string, string>;
      payload: string;
      preimage: string;
      data_hash: string;
    }[];
  }>('leaf-hash-1.json');
  for (const vector of vectors) {
    it(vector.name, () => {
      const payload = canonicalPayload(vector.numeric_values, vector.string_values);
      expect(payload).to.equal(vector.payload);
      expect(parsePayload(payload).stringValues.size).to.equal(Object.keys(vector.string_values).length);
      const inputs = {
        tenantId: vector.tenant_id,
        deviceId: vector.device_id,
        timestampSeconds: vector.timestamp,
        payload,
      };
      expect(toHex(leafPreimage(inputs))).to.equal(vector.preimage);
      expect(dataHash(inputs)).to.equal(vector.data_hash);
    });
  }
});

describe('vectors: Merkle trees', () => {
  const { vectors } = read<{ vectors: { name: string; leaves: string[]; merkle_root: string; paths: JsonPath[] }[] }>(
    'merkle-1.json',
  );
  for (const vector of vectors) {
    it(vector.name, () => {
      const leaves = vector.leaves.map(fromHex);
      expect(toHex(merkleRoot(leaves))).to.equal(vector.merkle_root);
      for (const [i, path] of vector.paths.entries()) {
        expect(jsonOf(merklePath(merkleLevels(leaves), i))).to.deep.equal(path);
        expect(toHex(checkMerklePath(leaves[i]!, pathOf(path), leaves.length, i))).to.equal(vector.merkle_root);
      }
    });
  }
});

describe('vectors: chain mode', () => {
  const { vectors } = read<{
    vectors: {
      name: string;
      previous_head: string;
      leaves: string[];
      heads: string[];
      batch_heads: string[];
      leaf_index: number;
      count: number;
      merkle_root: string;
      paths: JsonPath[];
    }[];
  }>('chain-mode-1.json');
  for (const vector of vectors) {
    it(vector.name, () => {
      const previousHead = fromHex(vector.previous_head);
      const leaves = vector.leaves.map(fromHex);
      const heads = leaves.map((_, i) => toHex(segmentHead(previousHead, leaves.slice(0, i + 1))));
      expect(heads).to.deep.equal(vector.heads);
      const levels = merkleLevels(vector.batch_heads.map(fromHex));
      const headPath = merklePath(levels, vector.leaf_index);
      for (const [i, path] of vector.paths.entries()) {
        expect(jsonOf([...segmentPath(previousHead, leaves, i), ...headPath])).to.deep.equal(path);
        const root = checkChainPath(leaves[i]!, pathOf(path), vector.count, vector.leaf_index);
        expect(toHex(root)).to.equal(vector.merkle_root);
      }
    });
  }
});

describe('vectors: bundle', () => {
  const bundle = read<unknown>('bundle-1.0.json');
  const { checkpoint, mutations } = read<{
    checkpoint: string;
    mutations: { name: string; path: string; value: unknown; verdict: VerdictName; step: string }[];
  }>('bundle-changes-1.0.json');
  const pins = [parseCheckpoint(checkpoint)];

  it('is proven under its checkpoint', () => expect(verifyBundle(bundle, { pins }).verdict).to.equal('proven'));

  for (const { name, path, value, verdict, step } of mutations) {
    it(`${name}: ${verdict} at ${step}`, () => {
      const result = verifyBundle(withValue(bundle, path, value), { pins });
      expect(result.verdict).to.equal(verdict);
      expect(result.steps.at(-1)).to.include({ step, passed: false });
    });
  }
});

/** Returns a copy of `document` with `value` at the JSON pointer `pointer`. */
function withValue(document: unknown, pointer: string, value: unknown): unknown {
  const copy = structuredClone(document);
  const keys = pointer.split('/').slice(1);
  let parent = copy as Record<string, unknown>;
  for (const key of keys.slice(0, -1)) parent = parent[key] as Record<string, unknown>;
  parent[keys.at(-1)!] = value;
  return copy;
}
