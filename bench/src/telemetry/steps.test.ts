// How samples are attributed to the steps of ingest.
import { expect } from 'chai';
import { type CpuProfile, microsecondsByStep } from './steps.ts';

const frame = (functionName: string, url = '') => ({ functionName, url });
const own = (path: string): string => `file:///kellet/apiserver/src/${path}`;

const profile: CpuProfile = {
  nodes: [
    { id: 1, callFrame: frame('(root)'), children: [2, 3, 4, 9] },
    { id: 2, callFrame: frame('(idle)') },
    { id: 3, callFrame: frame('(garbage collector)') },
    { id: 4, callFrame: frame('handle', own('gateway/http/rest-server.ts')), children: [5, 7] },
    { id: 5, callFrame: frame('hashRange', own('telemetry/points/leaf-hashes.ts')), children: [6] },
    { id: 6, callFrame: frame('hash', 'node:internal/crypto/hash') },
    { id: 7, callFrame: frame('flush', own('telemetry/write/group-commit.ts')), children: [8] },
    { id: 8, callFrame: frame('merkleRoot', own('telemetry/points/leaf-hashes.ts')), children: [10] },
    { id: 9, callFrame: frame('#C', 'file:///kellet/node_modules/lru-cache/index.js') },
    { id: 10, callFrame: frame('hashPair', own('telemetry/points/leaf-hashes.ts')) },
  ],
  startTime: 1000,
  samples: [4, 2, 3, 6, 8, 10, 9, 5],
  timeDeltas: [10, 100, 20, 3, 4, 5, 6, 7],
};

describe('the steps of ingest in a CPU profile', () => {
  it('gives time to the innermost function that belongs to a step, most expensive first, without idle time', () => {
    expect([...microsecondsByStep(profile, 0, Infinity)]).to.deep.equal([
      ['garbage collection', 20],
      ['HTTP and admission', 10],
      ['leaf hashes', 10],
      ['batch trees', 9],
      ['other', 6],
    ]);
  });

  it('counts only the samples between two times', () => {
    expect([...microsecondsByStep(profile, 1111, 1133)]).to.deep.equal([
      ['garbage collection', 20],
      ['leaf hashes', 3],
    ]);
  });
});
