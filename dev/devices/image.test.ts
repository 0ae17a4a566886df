import { createHash, generateKeyPairSync, sign } from 'node:crypto';
import { expect } from 'chai';
import { refuseImage } from './image.ts';

describe('check of an image by a device', () => {
  const image = Buffer.from('firmware');
  const digest = createHash('sha256').update(image).digest();
  const sha256 = digest.toString('hex');
  const keys = generateKeyPairSync('ed25519');
  const others = generateKeyPairSync('ed25519');
  const key = keys.publicKey.export({ type: 'spki', format: 'pem' }).toString();
  const otherKey = others.publicKey.export({ type: 'spki', format: 'pem' }).toString();
  const signature = sign(null, digest, keys.privateKey).toString('base64');
  const promise = { sha256, signature, size_bytes: image.length };

  const cases: [string, Uint8Array, typeof promise, string | undefined, string | undefined][] = [
    ['takes the image as promised', image, promise, key, undefined],
    ['takes an unsigned image when it has no key', image, { ...promise, signature: '' }, undefined, undefined],
    ['refuses another image', Buffer.from('firmwarf'), promise, key, 'checksum mismatch'],
    ['refuses a shorter image', image.subarray(1), promise, key, 'size 7 instead of 8'],
    ['refuses an unsigned image when it has a key', image, { ...promise, signature: '' }, key, 'signature missing'],
    ['refuses the signature of another key', image, promise, otherKey, 'signature mismatch'],
    ['refuses a garbled signature', image, { ...promise, signature: 'AAAA' }, key, 'signature mismatch'],
  ];
  for (const [what, bytes, promised, signingKey, expected] of cases) {
    it(what, () => expect(refuseImage(bytes, promised, signingKey)).to.equal(expected));
  }
});
