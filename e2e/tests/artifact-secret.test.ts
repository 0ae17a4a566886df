// A package whose source is private: the operator reads the credentials from a Secret, once there is one of the right type.
import { expect } from 'chai';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { kubectl, makeArtifact, unique } from '../testing/fixtures.ts';

interface Package {
  status?: { conditions?: { type: string; status: string; reason: string; message: string }[] };
}

describe('packages of private sources', () => {
  it('wait for their Secret, refuse one of another type, and are verified with the credentials', async () => {
    const cluster = await kubectl();
    const { namespace, artifacts } = stack().info;
    const { uri, sha256 } = await makeArtifact();
    const [name, secretName] = [unique('private'), unique('credentials')];
    await cluster.apply({
      apiVersion: 'kellet.dev/v1alpha1',
      kind: 'OtaPackage',
      metadata: { name, namespace },
      spec: { type: 'Firmware', version: '1.0.0', artifact: { uri, sha256 }, artifactSecretRef: { name: secretName } },
    });
    const verified = (reason: string) =>
      waitUntil(
        async () => {
          const { status } = await cluster.json<Package>(['get', 'otapackage', name]);
          const found = status?.conditions?.find(({ type }) => type === 'Verified');
          return found?.reason === reason ? found : undefined;
        },
        { what: `Verified to be ${reason}`, timeoutMilliseconds: 30_000 },
      );
    expect(await verified('SecretNotFound')).to.include({ message: `Secret ${secretName} does not exist` });
    const secret = (type: string) => ({
      apiVersion: 'v1',
      kind: 'Secret',
      metadata: { name: secretName, namespace },
      type,
      stringData: { prefix: `${artifacts.replace(/\/$/, '')}/`, token: 'a-token' },
    });
    await cluster.apply(secret('Opaque'));
    expect((await verified('SecretUnusable')).message).to.match(/must be of type kellet.dev\/artifact-credentials/);
    // The type of a Secret is immutable.
    await cluster.run(['delete', 'secret', secretName]);
    await cluster.apply(secret('kellet.dev/artifact-credentials'));
    expect(await verified('ChecksumVerified')).to.include({ status: 'True' });
  });
});
