// Secrets of the local stack: generated on first use, stored in files of mode 0600, and passed to processes by file
// name, never on a command line.
import { generateKeyPairSync, randomBytes } from 'node:crypto';
import { readFile, rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { makePrivateFolder } from './paths.ts';

/** A secret and its file. */
export interface Secret {
  value: string;
  path: string;
}

/** Returns a secret by name, generating it if necessary. */
export type Secrets = (name: string, make?: () => string) => Promise<Secret>;

/** 144 random bits that need no escaping in a URL. */
export const randomPassword = (): string => randomBytes(18).toString('base64url');

/** 256 random bits in hexadecimal. */
export const randomHexKey = (): string => randomBytes(32).toString('hex');

/** An Ed25519 private key, PKCS#8 PEM. */
export const ed25519PrivateKey = (): string =>
  generateKeyPairSync('ed25519').privateKey.export({ type: 'pkcs8', format: 'pem' }).toString();

/** Opens the secrets kept in `folder`. */
export async function openSecrets(folder: string): Promise<Secrets> {
  await makePrivateFolder(folder);
  return async (name, make = randomPassword) => {
    const path = join(folder, name);
    try {
      return { value: (await readFile(path, 'utf8')).trim(), path };
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
    }
    const value = make().trim();
    await writeFile(`${path}.new`, `${value}\n`, { mode: 0o600 });
    await rename(`${path}.new`, path);
    return { value, path };
  };
}
