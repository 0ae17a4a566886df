// For tests: an authority with certificates of both sides of the internal port, in files.
import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { certificateOf, newKeys } from '../../auth/testing/test-certificates.ts';
import type { ControlTlsFiles } from '../control-tls.ts';

/** Writes a certificate of a new authority, its key and the authority to files of a folder, a new one unless given. */
export async function writeControlTls(
  folder = mkdtempSync(path.join(tmpdir(), 'kellet-control-tls-')),
): Promise<ControlTlsFiles & { readonly folder: string }> {
  const [authority, own] = [await newKeys(), await newKeys()];
  const issuer = { keys: authority, name: 'control authority' };
  const files = {
    certFile: path.join(folder, 'tls.crt'),
    keyFile: path.join(folder, 'tls.key'),
    caFile: path.join(folder, 'ca.crt'),
  };
  writeFileSync(files.caFile, await certificateOf(authority, issuer.name, { isAuthority: true }));
  writeFileSync(files.keyFile, own.pem);
  writeFileSync(files.certFile, await certificateOf(own, 'control', { issuer }));
  return { ...files, folder };
}
