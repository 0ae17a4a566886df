import * as verify from '@kellet/verify';
import { expect } from 'chai';
import { hashBytes, leafHash, merkleRoot, splitHashes, toHex } from './leaf-hashes.ts';
import { randomText, seededRandom } from '../testing/test-values.ts';

describe('leafHash', () => {
  it("equals the verifier's hash for generated payloads of every size", () => {
    const random = seededRandom(7);
    for (let round = 0; round < 2000; round += 1) {
      const payload = randomText(random).repeat(round % 997 === 0 ? 5000 : Math.ceil(random() * 50));
      const timestampSeconds = Math.floor(random() * (round % 2 === 0 ? 2 ** 31 : 2 ** 36));
      const deviceId = 'd'.repeat(Math.ceil(random() * 40));
      expect(toHex(leafHash('acme', deviceId, timestampSeconds, payload))).to.equal(
        verify.dataHash({ tenantId: 'acme', deviceId, timestampSeconds, payload }),
      );
    }
  });
});

describe('merkleRoot', () => {
  it("equals the verifier's root for 1 to 257 leaves and for 1,000", () => {
    const leaves = Array.from({ length: 1000 }, (_, index) => leafHash('acme', 'device', index, ''));
    for (const count of [...Array.from({ length: 257 }, (_, index) => index + 1), 1000]) {
      const some = leaves.slice(0, count);
      const expected = verify.merkleRoot(some.map((leaf) => Buffer.from(leaf, 'latin1')));
      expect(toHex(merkleRoot(some))).to.equal(Buffer.from(expected).toString('hex'));
    }
  });
});

describe('hashBytes', () => {
  it('is reversed by splitHashes', () => {
    const leaves = Array.from({ length: 5 }, (_, index) => leafHash('acme', 'device', index, '{}'));
    expect(splitHashes(hashBytes(leaves))).to.deep.equal(leaves);
  });
});
