// kubeconfig files of the local cluster.
import { readFile, rename, writeFile } from 'node:fs/promises';
import { stringify } from 'yaml';
import type { CertificateFiles } from './certificates.ts';

/** Content of a kubeconfig. */
export interface KubeconfigOptions {
  /** The API server's URL. */
  server: string;
  /** Path of the authority's certificate. */
  authority: string;
  user: string;
  credential: CertificateFiles;
}

const base64 = async (path: string) => (await readFile(path)).toString('base64');

/** Writes a self-contained kubeconfig, readable only by its owner. */
export async function writeKubeconfig(path: string, options: KubeconfigOptions): Promise<void> {
  const content = stringify({
    apiVersion: 'v1',
    kind: 'Config',
    'current-context': 'kellet',
    clusters: [
      {
        name: 'kellet',
        cluster: { server: options.server, 'certificate-authority-data': await base64(options.authority) },
      },
    ],
    users: [
      {
        name: options.user,
        user: {
          'client-certificate-data': await base64(options.credential.certificate),
          'client-key-data': await base64(options.credential.key),
        },
      },
    ],
    contexts: [{ name: 'kellet', context: { cluster: 'kellet', user: options.user } }],
  });
  await writeFile(`${path}.new`, content, { mode: 0o600 });
  await rename(`${path}.new`, path);
}
