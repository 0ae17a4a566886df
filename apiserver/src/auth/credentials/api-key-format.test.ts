import { crc32 } from 'node:zlib';
import { expect } from 'chai';
import { credentialHash, isWellFormedKey, looksLikeApiKey, mintKey } from './api-key-format.ts';

describe('API key format', () => {
  it('mints keys of the documented form with a CRC-32 at the end', () => {
    const { key, hash, prefix, last4 } = mintKey();
    expect(key).to.match(/^sk_live_[0-9A-Za-z]{38}$/);
    expect(isWellFormedKey(key)).to.equal(true);
    expect(hash.equals(credentialHash(key))).to.equal(true);
    expect(key.startsWith(prefix)).to.equal(true);
    expect(prefix).to.have.length(12);
    expect(key.endsWith(last4)).to.equal(true);
    const alphabet = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';
    const decoded = [...key.slice(-6)].reduce((sum, character) => sum * 62 + alphabet.indexOf(character), 0);
    expect(decoded).to.equal(crc32(key.slice(0, -6)));
  });

  it('is a function of the random bytes, and skips bytes that would bias it', () => {
    const fixed = (bytes: number) => Buffer.from(Array.from({ length: bytes }, (_, index) => (index * 37) % 256));
    expect(mintKey(fixed).key).to.equal(mintKey(fixed).key);
    let calls = 0;
    const unfairFirst = (bytes: number) => Buffer.alloc(bytes, calls++ === 0 ? 255 : 1);
    expect(mintKey(unfairFirst).key).to.match(/^sk_live_1{32}/);
  });

  it('uses every character about equally often', () => {
    const counts = new Map<string, number>();
    for (let index = 0; index < 2000; index += 1) {
      for (const character of mintKey().key.slice(8, 40)) counts.set(character, (counts.get(character) ?? 0) + 1);
    }
    expect(counts.size).to.equal(62);
    // 64,000 draws, 1032 expected each; 200 is six standard deviations.
    for (const count of counts.values()) expect(count).to.be.within(832, 1232);
  });

  const { key } = mintKey();
  const changed = key.slice(0, 20) + (key[20] === 'a' ? 'b' : 'a') + key.slice(21);
  for (const [what, text] of [
    ['nothing', ''],
    ['the scheme alone', 'sk_live_'],
    ['a changed character', changed],
    ['a changed checksum', key.slice(0, -1) + (key.endsWith('a') ? 'b' : 'a')],
    ['a cut key', key.slice(0, -1)],
    ['another scheme', key.replace('live', 'test')],
    ['white space around it', ` ${key}`],
    ['a very long text', key + 'a'.repeat(500)],
  ] as const) {
    it(`rejects ${what}`, () => expect(isWellFormedKey(text)).to.equal(false));
  }

  it('distinguishes a malformed key from another kind of credential', () => {
    expect(looksLikeApiKey(changed)).to.equal(true);
    expect(looksLikeApiKey('eyJhbGciOiJFZERTQSJ9.e30.x')).to.equal(false);
  });
});
