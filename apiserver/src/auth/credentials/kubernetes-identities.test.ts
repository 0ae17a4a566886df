// How many reviews a process asks of the cluster. With a real API server: e2e/tests/kubernetes-identities.test.ts.
import { expect } from 'chai';
import { exportJWK, generateKeyPair, SignJWT } from 'jose';
import { sleep } from '../../platform/clock.ts';
import type { Database } from '../../platform/database/database.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { outcomeOf } from '../../platform/testing/refusals.ts';
import { MovableClock } from '../testing/test-platform.ts';
import { KubernetesIdentities } from './kubernetes-identities.ts';
import { readKubernetesToken } from './kubernetes-token.ts';

describe('reviews of Kubernetes tokens', () => {
  it('take turns by namespace, so that one that asks all the time does not keep others from being reviewed', async () => {
    const { privateKey, publicKey } = await generateKeyPair('ES256');
    let [running, most] = [0, 0];
    const api = {
      signingKeys: async () => ({ keys: [{ ...(await exportJWK(publicKey)), alg: 'ES256' }] }),
      review: async <Status>() => {
        most = Math.max(most, (running += 1));
        await sleep(5);
        running -= 1;
        const user = { username: 'system:serviceaccount:a:b' };
        return { authenticated: true, audiences: ['kellet'], user } as Status;
      },
    };
    const clock = new MovableClock();
    // Without a permission no tenant is looked up.
    const identities = new KubernetesIdentities({} as Database, clock, createLogger('silent'), api);
    const use = async (namespace: string, address: string): Promise<string> => {
      const token = await new SignJWT({ 'kubernetes.io': { namespace } })
        .setProtectedHeader({ alg: 'ES256' })
        .setAudience('kellet')
        .setExpirationTime(Math.floor(clock.now() / 1000) + 600)
        .sign(privateKey);
      const asked = { namespace: '', permission: '' };
      return outcomeOf(identities.authenticate(token, readKubernetesToken(token)!, asked, address));
    };
    let isOver = false;
    const crowd = Array.from({ length: 320 }, async (_, index) => {
      while (!isOver) await use('busy', `192.0.2.${index % 10}`);
    });
    await sleep(100);
    for (let time = 0; time < 5; time += 1) expect(await use('other', '198.51.100.1')).to.equal('OK');
    isOver = true;
    await Promise.all(crowd);
    expect(most).to.be.at.most(4);
  });

  it('are not asked for tokens that the cluster did not sign, and believed only for our audience', async () => {
    const [cluster, forger] = await Promise.all([generateKeyPair('ES256'), generateKeyPair('ES256')]);
    let reviews = 0;
    let audiences: string[] | undefined = ['kellet'];
    const api = {
      signingKeys: async () => ({ keys: [{ ...(await exportJWK(cluster.publicKey)), alg: 'ES256' }] }),
      review: async <Status>() => {
        reviews += 1;
        return { authenticated: true, audiences, user: { username: 'system:serviceaccount:a:b' } } as Status;
      },
    };
    const clock = new MovableClock();
    const identities = new KubernetesIdentities({} as Database, clock, createLogger('silent'), api);
    const isValid = async (key: (typeof cluster)['privateKey']): Promise<boolean> => {
      const token = await new SignJWT({ 'kubernetes.io': { namespace: 'a' } })
        .setProtectedHeader({ alg: 'ES256' })
        .setAudience('kellet')
        .setExpirationTime(Math.floor(clock.now() / 1000) + 600)
        .sign(key);
      const asked = { namespace: '', permission: '' };
      return (await identities.authenticate(token, readKubernetesToken(token)!, asked, '192.0.2.1')).valid;
    };
    expect(await isValid(forger.privateKey)).to.equal(false);
    expect(reviews).to.equal(0);
    expect(await isValid(cluster.privateKey)).to.equal(true);
    audiences = undefined;
    expect(await isValid(cluster.privateKey)).to.equal(false);
    expect(reviews).to.equal(2);
  });
});
