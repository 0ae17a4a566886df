// verify-bundle: proof bundles verified per second of CPU time, from JSON text to the verdict, with SHA-256 of node:crypto as
// in kellet-verify. Compared with the least it takes: JSON.parse, and the same hashes over the same bytes.
import { hash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { parseCheckpoint, useSha256, verifyBundleText } from '@kellet/verify';
import type { Benchmark } from '../harness.ts';
import { perCpuSecond } from './cpu-seconds.ts';

const sha256 = (data: Uint8Array): Uint8Array => hash('sha256', data, 'buffer');
const vectors = join(import.meta.dirname, '../../../verify/vectors');

/** The benchmark. */
export const verifyBundleSpeed: Benchmark = {
  name: 'verify-bundle',
  unit: 'bundles/s per core',
  baseline: 'JSON.parse and its hashes',
  rounds: 9,
  prepare: async () => {
    const read = async (name: string): Promise<unknown> => JSON.parse(await readFile(join(vectors, name), 'utf8'));
    const text = JSON.stringify(await read('bundle-1.0.json'));
    const { checkpoint } = (await read('bundle-changes-1.0.json')) as { checkpoint: string };
    const pins = [parseCheckpoint(checkpoint)];
    const verify = (): number => {
      const { verdict, reason } = verifyBundleText(text, { pins });
      if (verdict !== 'proven') throw new Error(`the bundle is ${verdict}: ${reason}`);
      return 1;
    };
    const hashed: Uint8Array[] = [];
    useSha256((data) => {
      hashed.push(Uint8Array.from(data));
      return sha256(data);
    });
    hashed.length = 0;
    verify();
    const inputs = [...hashed];
    useSha256(sha256);
    return {
      baseline: async () =>
        perCpuSecond(() => {
          JSON.parse(text);
          for (const input of inputs) sha256(input);
          return 1;
        }),
      ours: async () => perCpuSecond(verify),
      remarks: () => ({ 'bundle bytes': text.length, 'SHA-256 per bundle': inputs.length }),
      close: async () => undefined,
    };
  },
};
