// The namespace of an installation, and its Secret with the addresses of the dependencies and keys of its own.
import { randomBytes } from 'node:crypto';
import { systemNamespace } from '../../../dev/stack/cluster/resources.ts';
import type { NodeCluster } from '../../../dev/stack/node/node.ts';
import { ed25519PrivateKey, randomHexKey } from '../../../dev/stack/secrets.ts';
import type { Dependencies } from './dependencies.ts';

/** Creates the namespace, under the restricted Pod Security Standard, and the Secret `kellet`. */
export async function createInstallationSecret({ kubectl }: NodeCluster, dependencies: Dependencies): Promise<void> {
  const own = kubectl.in(systemNamespace);
  await own.run(['create', 'namespace', systemNamespace]);
  await own.run(['label', 'namespace', systemNamespace, 'pod-security.kubernetes.io/enforce=restricted']);
  const stringData = {
    databaseUrl: dependencies.databaseUrl,
    natsUrl: dependencies.natsUrl,
    controlSecret: randomHexKey(),
    jwtPrivateKey: ed25519PrivateKey(),
    callbackHmacSecret: dependencies.callbackSecret,
    walletKey: randomHexKey(),
    platformAdminPassword: randomBytes(18).toString('base64url'),
  };
  const metadata = { name: 'kellet', namespace: systemNamespace };
  await own.apply({ apiVersion: 'v1', kind: 'Secret', metadata, stringData });
}
