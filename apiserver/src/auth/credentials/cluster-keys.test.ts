import { expect } from 'chai';
import { exportJWK, generateKeyPair, type JSONWebKeySet, SignJWT } from 'jose';
import { unavailable } from '../../platform/errors.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { MovableClock } from '../testing/test-platform.ts';
import { ClusterKeys } from './cluster-keys.ts';

describe('ClusterKeys', () => {
  const clock = new MovableClock();
  let reads: number;
  let published: JSONWebKeySet | undefined;
  let keys: ClusterKeys;
  beforeEach(() => {
    reads = 0;
    published = undefined;
    const signingKeys = async () => {
      reads += 1;
      if (!published) throw unavailable('the Kubernetes API is unavailable');
      return published;
    };
    keys = new ClusterKeys({ signingKeys }, clock, createLogger('silent'));
  });

  async function signer(kid?: string) {
    const { privateKey, publicKey } = await generateKeyPair('RS256');
    const sign = (seconds = 600, audience = 'kellet') =>
      new SignJWT({ 'kubernetes.io': {} })
        .setProtectedHeader({ alg: 'RS256', ...(kid !== undefined && { kid }) })
        .setAudience(audience)
        .setExpirationTime(Math.floor(clock.now() / 1000) + seconds)
        .sign(privateKey);
    const jwk = { ...(await exportJWK(publicKey)), alg: 'RS256', ...(kid !== undefined && { kid }) };
    return { sign, jwk };
  }

  it('distinguishes tokens signed by the cluster from others', async () => {
    const [cluster, forger] = [await signer('a'), await signer('a')];
    published = { keys: [cluster.jwk] };
    expect(await keys.judge(await cluster.sign())).to.equal('signed');
    expect(await keys.judge(await forger.sign())).to.equal('forged');
    expect(await keys.judge(await cluster.sign(-1))).to.equal('expired');
    expect(await keys.judge(await cluster.sign(600, 'another'))).to.equal('forged');
    expect(await keys.judge(`${await cluster.sign()}x`)).to.equal('forged');
    expect(reads).to.equal(1);
  });

  it('rejects forgeries without a key id, also when there are several keys', async () => {
    const [first, second, unnamed, forger] = [await signer('a'), await signer('b'), await signer(), await signer()];
    published = { keys: [first.jwk, second.jwk] };
    expect(await keys.judge(await forger.sign())).to.equal('forged');
    expect(await keys.judge(await second.sign())).to.equal('signed');
    published = { keys: [unnamed.jwk, { ...first.jwk }] };
    clock.advance(600_000);
    expect(await keys.judge(await unnamed.sign())).to.equal('signed');
    expect(await keys.judge(await unnamed.sign(-1))).to.equal('expired');
  });

  it('reads the keys again for a new key, but not for every forgery', async () => {
    const [before, after, forger] = [await signer('a'), await signer('b'), await signer('c')];
    published = { keys: [before.jwk] };
    expect(await keys.judge(await before.sign())).to.equal('signed');
    clock.advance(10_000);
    published = { keys: [before.jwk, after.jwk] };
    expect(await keys.judge(await after.sign())).to.equal('signed');
    for (let time = 0; time < 20; time += 1) expect(await keys.judge(await forger.sign())).to.equal('forged');
    expect(reads).to.equal(2);
  });

  it('returns unknown while the keys cannot be read', async () => {
    const cluster = await signer('a');
    const token = await cluster.sign();
    expect(await keys.judge(token)).to.equal('unknown');
    published = { keys: [cluster.jwk] };
    expect(await keys.judge(token)).to.equal('unknown');
    expect(reads).to.equal(1);
    clock.advance(10_000);
    expect(await keys.judge(token)).to.equal('signed');
  });
});
