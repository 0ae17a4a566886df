import { createHash, generateKeyPairSync, sign } from 'node:crypto';
import { expect } from 'chai';
import { refuseImage } from './image-check.ts';

describe('refuseImage', () => {
  const image = Buffer.from('firmware');
  const digest = createHash('sha256').update(image).digest();
  const sha256 = digest.toString('hex');
  const keys = generateKeyPairSync('ed25519');
  const others = generateKeyPairSync('ed25519');
  const key = keys.publicKey.export({ type: 'spki', format: 'pem' }).toString();
  const otherKey = others.publicKey.export({ type: 'spki', format: 'pem' }).toString();
  const signature = sign(null, digest, keys.privateKey).toString('base64');
  const promise = { sha256, signature, size_bytes: image.length };

  const digestOf = (bytes: Uint8Array) => ({
    sizeBytes: bytes.length,
    sha256: createHash('sha256').update(bytes).digest(),
  });
  const cases: [string, Uint8Array, typeof promise, string[], string | undefined][] = [
    ['accepts the promised image', image, promise, [key], undefined],
    ['accepts an unsigned image without a key', image, { ...promise, signature: '' }, [], undefined],
    ['rejects another image', Buffer.from('firmwarf'), promise, [key], 'checksum mismatch'],
    ['rejects a shorter image', image.subarray(1), promise, [key], 'size 7 instead of 8'],
    ['rejects an unsigned image with a key', image, { ...promise, signature: '' }, [key], 'signature missing'],
    ['rejects the signature of another key', image, promise, [otherKey], 'signature mismatch'],
    ['accepts a signature of any of the keys', image, promise, [otherKey, key], undefined],
    ['rejects a malformed signature', image, { ...promise, signature: 'AAAA' }, [key], 'signature mismatch'],
  ];
  for (const [what, bytes, promised, signingKeys, expected] of cases) {
    it(what, () => expect(refuseImage(digestOf(bytes), promised, signingKeys)).to.equal(expected));
  }
});
