import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect } from 'chai';
import { readConfig } from './config.ts';

describe('devchain configuration', () => {
  it('has defaults', () => {
    expect(readConfig([], {})).to.deep.equal({
      port: 0,
      directory: '.kellet/devchain',
      blockMilliseconds: 2000,
      callbackMilliseconds: 250,
      callbackSecret: undefined,
      arcToken: undefined,
    });
  });

  it('gives flags precedence over the environment', () => {
    const config = readConfig(['--port', '7001', '--dir', '/a'], {
      KELLET_DEVCHAIN_PORT: '7002',
      KELLET_DEVCHAIN_DIR: '/b',
      KELLET_DEVCHAIN_BLOCK_MS: '500',
    });
    expect(config).to.include({ port: 7001, directory: '/a', blockMilliseconds: 500 });
  });

  it('reads a secret from the environment or a file', () => {
    const file = join(mkdtempSync(join(tmpdir(), 'devchain-')), 'secret');
    writeFileSync(file, 'from the file\n');
    expect(readConfig([], { KELLET_CALLBACK_HMAC_SECRET_FILE: file }).callbackSecret).to.equal('from the file');
    expect(readConfig([], { KELLET_DEVCHAIN_ARC_TOKEN: 'plain' }).arcToken).to.equal('plain');
  });

  for (const [name, value] of [
    ['KELLET_DEVCHAIN_PORT', '65536'],
    ['KELLET_DEVCHAIN_PORT', '-1'],
    ['KELLET_DEVCHAIN_BLOCK_MS', '2s'],
    ['KELLET_DEVCHAIN_BLOCK_MS', '1'],
  ] as const) {
    it(`rejects ${name}=${value}, naming it`, () => {
      expect(() => readConfig([], { [name]: value })).to.throw(name);
    });
  }
});
