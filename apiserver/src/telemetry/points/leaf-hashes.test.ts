import * as verify from '@kellet/verify';
import { expect } from 'chai';
import { randomText, seededRandom } from '../testing/test-values.ts';
import { hashBytes, leafHash, leafHashInPlace, merkleRoot, splitHashes, toHex } from './leaf-hashes.ts';

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

describe('leafHashInPlace', () => {
  it('equals leafHash and changes nothing but the bytes before the payload', () => {
    const random = seededRandom(8);
    for (let round = 0; round < 500; round += 1) {
      const payload = randomText(random).repeat(Math.ceil(random() * (round % 97 === 0 ? 1000 : 10)));
      const tenantId = 't'.repeat(Math.ceil(random() * 63));
      const deviceId = 'd'.repeat(Math.ceil(random() * 300));
      const seconds = Math.floor(random() * 2 ** 36);
      const headBytes = 13 + tenantId.length + deviceId.length;
      const payloadStart = headBytes + 5;
      const bytes = Buffer.alloc(payloadStart + Buffer.byteLength(payload) + 5, 0xaa);
      const payloadEnd = payloadStart + bytes.write(payload, payloadStart, 'utf8');
      const before = Buffer.from(bytes);
      const place = { bytes, payloadStart, payloadEnd };
      expect(leafHashInPlace(tenantId, deviceId, seconds, place)).to.equal(
        leafHash(tenantId, deviceId, seconds, payload),
      );
      expect(bytes.subarray(0, 5).equals(before.subarray(0, 5))).to.equal(true);
      expect(bytes.subarray(payloadStart).equals(before.subarray(payloadStart))).to.equal(true);
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
