// leaf-vs-sha256d: leaf hashes of points per second of CPU time, from their values through the canonical text to the hash,
// compared with SHA256d alone over the same bytes, prepared, by the fastest function of node:crypto.
import { hash } from 'node:crypto';
import { dataHash, leafPreimage } from '@kellet/verify';
import { leafHash, toHex } from '../../../apiserver/src/telemetry/points/leaf-hashes.ts';
import { writePayload } from '../../../apiserver/src/telemetry/points/payload.ts';
import type { Benchmark } from '../harness.ts';
import { deviceId } from '../samples/request-bodies.ts';
import { samplePoint } from '../samples/sample-points.ts';
import { perCpuSecond } from './cpu-seconds.ts';

const tenantId = 'bench';
const points = Array.from({ length: 1000 }, (_, n) => {
  const { timestamp, numeric_values: numericValues, string_values: stringValues } = samplePoint(deviceId, n);
  const seconds = Date.parse(timestamp) / 1000;
  const values = { numericValues, stringValues };
  const inputs = { tenantId, deviceId, timestampSeconds: seconds, payload: writePayload(values) };
  return { values, seconds, inputs, preimage: Buffer.from(leafPreimage(inputs)) };
});

const inner = Buffer.alloc(32);

/** 'binary' is Node's alias for latin1, required by its types. */
function doubleHash(data: Buffer): string {
  inner.write(hash('sha256', data, 'binary'), 'latin1');
  return hash('sha256', inner, 'binary');
}

/** The benchmark. */
export const leafVsSha256d: Benchmark = {
  name: 'leaf-vs-sha256d',
  unit: 'leaves/s per core',
  baseline: 'SHA256d of the same bytes',
  rounds: 9,
  prepare: async () => {
    for (const { values, seconds, inputs, preimage } of points) {
      const leaf = toHex(leafHash(tenantId, deviceId, seconds, writePayload(values)));
      const bare = toHex(doubleHash(preimage));
      if (leaf !== dataHash(inputs) || bare !== leaf)
        throw new Error(`different hashes of the same point: ${leaf}, ${bare}`);
    }
    // Keeps the hashes from being optimised away.
    let length = 0;
    return {
      baseline: async () =>
        perCpuSecond(() => {
          for (const { preimage } of points) length += doubleHash(preimage).length;
          return points.length;
        }),
      ours: async () =>
        perCpuSecond(() => {
          for (const { values, seconds } of points)
            length += leafHash(tenantId, deviceId, seconds, writePayload(values)).length;
          return points.length;
        }),
      beside: {
        'without the canonical text': async () =>
          perCpuSecond(() => {
            for (const { seconds, inputs } of points)
              length += leafHash(tenantId, deviceId, seconds, inputs.payload).length;
            return points.length;
          }),
      },
      close: async () => {
        if (length % 32 !== 0) throw new Error('a hash is not 32 bytes long');
      },
    };
  },
};
