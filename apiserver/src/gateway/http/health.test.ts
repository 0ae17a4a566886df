import { expect } from 'chai';
import { unavailable } from '../../platform/errors.ts';
import { excludedNames, Health } from './health.ts';

describe('readiness', () => {
  const healthy = async () => undefined;
  const failing = (error: Error) => async () => {
    throw error;
  };

  for (const [what, checks, excluded, isReady, body] of [
    ['no dependency', {}, '', true, {}],
    ['healthy ones', { postgres: healthy, nats: healthy }, '', true, { postgres: 'healthy', nats: 'healthy' }],
    [
      'one that fails',
      { postgres: healthy, nats: failing(new Error('not connected')) },
      '',
      false,
      { postgres: 'healthy', nats: 'unhealthy: not connected' },
    ],
    [
      'one that fails, excluded',
      { postgres: healthy, nats: failing(new Error('x')) },
      'exclude=nats',
      true,
      { postgres: 'healthy' },
    ],
    [
      'one that fails for a reason with a code',
      {
        postgres: failing(
          unavailable('away', Object.assign(new Error('connect 10.0.0.1:5432'), { code: 'ECONNREFUSED' })),
        ),
      },
      '',
      false,
      { postgres: 'unhealthy: ECONNREFUSED' },
    ],
    [
      'one whose reason contains secrets',
      { postgres: failing(new Error('cannot reach postgres://user:secret@db.internal:5432/kellet at 10.0.0.1:5432')) },
      '',
      false,
      { postgres: 'unhealthy: cannot reach … at …' },
    ],
    [
      'one that hangs',
      { nats: () => new Promise(() => undefined) },
      '',
      false,
      { nats: 'unhealthy: no response within 50 ms' },
    ],
  ] as const) {
    it(what, async () => {
      const readiness = await new Health(checks, { timeoutMilliseconds: 50 }).readiness(excludedNames(excluded));
      expect(readiness).to.deep.equal({ isReady, body });
    });
  }

  it('is lost once the process drains', async () => {
    const health = new Health({ postgres: healthy });
    health.drain();
    expect(await health.readiness()).to.deep.equal({
      isReady: false,
      body: { postgres: 'healthy', gateway: 'unhealthy: draining' },
    });
  });

  it('checks each dependency once for concurrent requests, and again when the result is stale', async () => {
    let questions = 0;
    let isAway = false;
    const check = async () => {
      questions += 1;
      await new Promise((resolve) => setTimeout(resolve, 20));
      if (isAway) throw new Error('away');
    };
    const health = new Health({ postgres: check }, { freshnessMilliseconds: 1000 });
    const replies = await Promise.all(Array.from({ length: 1000 }, () => health.readiness()));
    expect(replies.every(({ isReady }) => isReady)).to.equal(true);
    expect(questions).to.equal(1);
    isAway = true;
    expect((await health.readiness()).isReady).to.equal(true);
    await new Promise((resolve) => setTimeout(resolve, 1050));
    expect((await health.readiness()).body).to.deep.equal({ postgres: 'unhealthy: away' });
    expect(questions).to.equal(2);
  });

  it('does not recheck a hanging dependency until its timeout is over', async () => {
    let questions = 0;
    const hang = () => {
      questions += 1;
      return new Promise(() => undefined);
    };
    const health = new Health({ nats: hang }, { timeoutMilliseconds: 20, hangTimeoutMilliseconds: 200 });
    for (let count = 0; count < 4; count += 1) {
      expect((await health.readiness()).body).to.deep.equal({ nats: 'unhealthy: no response within 20 ms' });
    }
    expect(questions).to.equal(1);
    await new Promise((resolve) => setTimeout(resolve, 150));
    await health.readiness();
    expect(questions).to.equal(2);
  });

  it('excludes several names', () => {
    expect([...excludedNames('exclude=nats,postgres&exclude=arc')]).to.deep.equal(['nats', 'postgres', 'arc']);
  });
});
