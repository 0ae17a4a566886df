import { createHash, generateKeyPairSync, sign } from 'node:crypto';
import { expect } from 'chai';
import { isSigned, verifyInTurns } from './signature.ts';

describe('signatures of packages', () => {
  it('are verified in turns if they are many, and then known', async () => {
    const pairs = Array.from({ length: 16 }, () => generateKeyPairSync('ed25519'));
    const keys = pairs.map(({ publicKey }) => publicKey.export({ type: 'spki', format: 'pem' }).toString());
    const rows = Array.from({ length: 200 }, (_, n) => {
      const sha256 = createHash('sha256').update(String(n)).digest();
      const signature = sign(null, sha256, pairs.at(-1)!.privateKey).toString('base64');
      return { sha256, signature, checksum_verified: true, trusted_signing_keys: keys };
    });
    let others = 0;
    const other = setInterval(() => (others += 1), 0);
    let began = performance.now();
    await verifyInTurns(rows);
    clearInterval(other);
    const first = performance.now() - began;
    expect(others).to.be.above(10);
    began = performance.now();
    expect(rows.every((row) => isSigned(row))).to.equal(true);
    expect(performance.now() - began).to.be.below(first / 5);
  });
});
