import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
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
      headers: undefined,
      arcToken: undefined,
    });
  });

  it('reads headers of 80 bytes', () => {
    const folder = mkdtempSync(join(tmpdir(), 'kellet-devchain-'));
    const KELLET_DEVCHAIN_HEADERS_FILE = join(folder, 'headers');
    writeFileSync(KELLET_DEVCHAIN_HEADERS_FILE, Buffer.from('01'.repeat(80) + '02'.repeat(80), 'hex'));
    const { headers } = readConfig([], { KELLET_DEVCHAIN_HEADERS_FILE });
    expect(headers).to.deep.equal([new Uint8Array(80).fill(1), new Uint8Array(80).fill(2)]);
    writeFileSync(KELLET_DEVCHAIN_HEADERS_FILE, Buffer.alloc(81));
    expect(() => readConfig([], { KELLET_DEVCHAIN_HEADERS_FILE })).to.throw('headers of 80 bytes');
    rmSync(folder, { recursive: true });
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
