import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { expect } from 'chai';
import { DeviceError, unavailable } from '../errors.ts';
import type { Identity } from '../messages.ts';
import type { Protocol } from '../transports/transport.ts';
import { identityOf } from './claim.ts';
import { FileKeyStore } from './file-key-store.ts';
import { MemoryKeyStore } from './key-store.ts';

const identity = { device_id: 'd-1', api_key: 'sk_live_1' };

describe('the identity of a device', () => {
  let folder: string;
  let file: string;
  beforeEach(() => {
    folder = fs.mkdtempSync(path.join(os.tmpdir(), 'kellet-identity-'));
    file = path.join(folder, 'state', 'identity.json');
  });
  afterEach(() => fs.rmSync(folder, { recursive: true }));

  it('is kept in a file that only its owner may read', async () => {
    const store = new FileKeyStore(file);
    expect(await store.load()).to.equal(undefined);
    await store.save(identity);
    expect(fs.statSync(file).mode & 0o777).to.equal(0o600);
    expect(await new FileKeyStore(file).load()).to.deep.equal(identity);
  });

  const damages: [string, () => void, RegExp][] = [
    ['may be read by others', () => fs.chmodSync(file, 0o644), /set its mode to 0600/],
    ['is empty', () => fs.writeFileSync(file, ''), /does not contain an identity/],
    ['is something else', () => fs.writeFileSync(file, '{"secret":"s3cret"}'), /does not contain an identity/],
  ];
  for (const [what, damage, expected] of damages) {
    it(`is refused if the file ${what}`, async () => {
      await new FileKeyStore(file).save(identity);
      damage();
      const message = await new FileKeyStore(file).load().catch((error: Error) => error.message);
      expect(message).to.match(expected).and.not.include('s3cret');
    });
  }

  const claim = { provision_key: 'pk', hardware_id: 'pump-3' };
  const claims: [string, (Identity | Error)[], string, number][] = [
    ['is claimed once', [identity], 'd-1', 1],
    [
      'is claimed again until the platform can be reached',
      [unavailable('away'), unavailable('away'), identity],
      'd-1',
      3,
    ],
    ['is not claimed again with a refused key', [new DeviceError('PERMISSION_DENIED', 'no')], 'UNAUTHENTICATED', 1],
    ['is not returned if its key is lost', [{ device_id: 'd-1', api_key: '' }], 'ALREADY_EXISTS', 1],
  ];
  for (const [what, responses, expected, attempts] of claims) {
    it(what, async () => {
      let count = 0;
      const protocol = {
        claim: () => {
          const response = responses[count++]!;
          return response instanceof Error ? Promise.reject(response) : Promise.resolve(response);
        },
      } as unknown as Protocol;
      const backoff = { firstMilliseconds: 1, longestMilliseconds: 1 };
      const insisting = { backoff, signal: new AbortController().signal };
      const store = new MemoryKeyStore();
      const result = await identityOf(store, protocol, claim, insisting).then(
        ({ device_id }) => device_id,
        (error: DeviceError) => error.code,
      );
      expect([result, count]).to.deep.equal([expected, attempts]);
      if (result === 'd-1') await identityOf(store, protocol, claim, insisting);
      expect(count, 'a stored identity needs no claim').to.equal(attempts);
    });
  }
});
