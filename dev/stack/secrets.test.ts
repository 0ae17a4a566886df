import { createPrivateKey } from 'node:crypto';
import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import { expect } from 'chai';
import { ed25519PrivateKey, openSecrets, randomHexKey } from './secrets.ts';
import { withFolder } from './testing/scratch.ts';

describe('stack: secrets', () => {
  it('are created once, kept, and readable only by their owner', async () => {
    await withFolder(async (folder) => {
      const first = await (await openSecrets(join(folder, 'secrets')))('key', randomHexKey);
      const again = await (await openSecrets(join(folder, 'secrets')))('key', randomHexKey);
      expect(first.value).to.match(/^[0-9a-f]{64}$/);
      expect(again).to.deep.equal(first);
      expect((await stat(first.path)).mode & 0o777).to.equal(0o600);
      expect((await stat(join(folder, 'secrets'))).mode & 0o777).to.equal(0o700);
    });
  });

  it('differ from one another', async () => {
    await withFolder(async (folder) => {
      const secret = await openSecrets(folder);
      expect((await secret('a')).value).to.not.equal((await secret('b')).value);
    });
  });

  it('include a valid Ed25519 key', async () => {
    await withFolder(async (folder) => {
      const { value } = await (await openSecrets(folder))('key.pem', ed25519PrivateKey);
      expect(createPrivateKey(value).asymmetricKeyType).to.equal('ed25519');
    });
  });
});
