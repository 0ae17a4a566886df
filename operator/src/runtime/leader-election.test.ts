import { KubernetesError, type KubernetesObject, type Resource } from '@kellet/kubernetes';
import { expect } from 'chai';
import { decideLease, LeaderElection, type Lease, type LeaseDecision } from './leader-election.ts';
import { createLogger } from './logger.ts';
import { createMetrics } from './metrics.ts';
import { TestClock } from './testing/test-clock.ts';

describe('decideLease', () => {
  const held = (holderIdentity: string): Lease => ({
    metadata: { name: 'lease' },
    spec: { holderIdentity, leaseDurationSeconds: 15, renewTime: '1970-01-01T00:00:00.000000Z' },
  });
  const cases: [string, Lease, number, LeaseDecision][] = [
    ["the candidate's own", held('me'), 0, 'renew'],
    ["the candidate's own, not renewed for long", held('me'), 100_000, 'renew'],
    ['released', held(''), 0, 'acquire'],
    ['empty', { metadata: { name: 'lease' } }, 0, 'acquire'],
    ["another's, just observed although its timestamps are old", held('other'), 0, 'wait'],
    ["another's, unchanged for slightly less than its duration", held('other'), 14_999, 'wait'],
    ["another's, unchanged for its duration", held('other'), 15_000, 'acquire'],
  ];
  for (const [name, lease, silence, want] of cases) {
    it(`${name}: ${want}`, () => expect(decideLease(lease, 'me', 1000, 1000 + silence)).to.equal(want));
  }
});

/** Fake Lease API for one object: it can be created once, and patched only with the current version. */
class LeaseApi {
  lease: Lease | undefined;
  down = false;
  reads = 0;

  private respond<T extends KubernetesObject>(): T {
    return structuredClone(this.lease) as unknown as T;
  }

  async get<T extends KubernetesObject>(_resource: Resource, _namespace: string, _name: string): Promise<T> {
    this.reads += 1;
    if (this.down) throw new Error('connection refused');
    if (!this.lease) throw new KubernetesError(404, { reason: 'NotFound' });
    return this.respond();
  }

  async create<T extends KubernetesObject>(_resource: Resource, object: T): Promise<T> {
    if (this.lease) throw new KubernetesError(409, { reason: 'AlreadyExists' });
    this.lease = structuredClone(object);
    this.lease.metadata.resourceVersion = '1';
    return this.respond();
  }

  async mergePatch<T extends KubernetesObject>(_r: Resource, _ns: string, _name: string, patch: object): Promise<T> {
    if (this.down) throw new Error('connection refused');
    const { metadata, spec } = patch as Lease;
    if (metadata.resourceVersion !== this.lease?.metadata.resourceVersion) {
      throw new KubernetesError(409, { reason: 'Conflict' });
    }
    this.lease!.spec = { ...this.lease!.spec, ...spec };
    this.lease!.metadata.resourceVersion = String(Number(metadata.resourceVersion) + 1);
    return this.respond();
  }
}

function candidate(api: LeaseApi, clock: TestClock, identity: string) {
  const election = new LeaderElection({
    client: api,
    clock,
    logger: createLogger('silent'),
    metrics: createMetrics(),
    namespace: 'kellet',
    name: 'lease',
    identity,
  });
  const stop = new AbortController();
  const state = { leads: false, ended: undefined as boolean | undefined };
  const run = (async () => {
    state.leads = await election.acquire(stop.signal);
    if (state.leads) state.ended = await election.hold(stop.signal);
    state.leads = false;
  })();
  return { state, stop, run };
}

describe('LeaderElection', () => {
  it('elects one leader, and the next one as soon as the lease is released', async () => {
    const api = new LeaseApi();
    const clock = new TestClock();
    const a = candidate(api, clock, 'a');
    await clock.advance(1);
    const b = candidate(api, clock, 'b');
    await clock.advance(120_000);
    expect([a.state.leads, b.state.leads]).to.deep.equal([true, false]);
    a.stop.abort();
    await a.run;
    expect(a.state.ended).to.equal(true);
    await clock.advance(3000);
    expect(b.state.leads).to.equal(true);
    expect(api.lease?.spec?.leaseTransitions).to.equal(1);
    b.stop.abort();
    await b.run;
  });

  it('renews without reading the lease, unless something has changed it', async () => {
    const api = new LeaseApi();
    const clock = new TestClock();
    const a = candidate(api, clock, 'a');
    await clock.advance(1);
    const { reads } = api;
    await clock.advance(60_000);
    expect(a.state.leads).to.equal(true);
    expect(api.reads).to.equal(reads);
    expect(Number(api.lease!.metadata.resourceVersion)).to.be.greaterThan(20);
    api.lease!.metadata.resourceVersion = '1000';
    await clock.advance(60_000);
    expect(a.state.leads).to.equal(true);
    expect(api.reads).to.equal(reads + 1);
    a.stop.abort();
    await a.run;
  });

  it('replaces a silent leader only after its lease has expired', async () => {
    const api = new LeaseApi();
    const clock = new TestClock();
    api.lease = {
      metadata: { name: 'lease', resourceVersion: '9' },
      spec: { holderIdentity: 'dead', leaseDurationSeconds: 15 },
    };
    const b = candidate(api, clock, 'b');
    await clock.advance(14_000);
    expect(b.state.leads).to.equal(false);
    await clock.advance(4000);
    expect(b.state.leads).to.equal(true);
    b.stop.abort();
    await b.run;
  });

  it('stops leading after ten seconds without renewal, before another candidate may start', async () => {
    const api = new LeaseApi();
    const clock = new TestClock();
    const a = candidate(api, clock, 'a');
    await clock.advance(5000);
    expect(a.state.leads).to.equal(true);
    api.down = true;
    await clock.advance(13_000);
    expect(a.state.ended).to.equal(false);
    await a.run;
  });

  it('is unaffected by clock changes and clock skew', async () => {
    const api = new LeaseApi();
    const clocks = [new TestClock(), new TestClock()] as const;
    clocks[1].setWallClock(86_400_000);
    const advance = async (milliseconds: number): Promise<void> => {
      for (let passed = 0; passed < milliseconds; passed += 500) for (const clock of clocks) await clock.advance(500);
    };
    const a = candidate(api, clocks[0], 'a');
    await advance(500);
    const b = candidate(api, clocks[1], 'b');
    for (const change of [3_600_000, -7_200_000]) {
      for (const clock of clocks) clock.setWallClock(change);
      await advance(60_000);
      expect([a.state.leads, b.state.leads]).to.deep.equal([true, false]);
    }
    expect(api.lease?.spec?.leaseTransitions).to.equal(0);
    for (const { stop } of [a, b]) stop.abort();
    await Promise.all([a.run, b.run]);
  });

  it('renews with a second attempt if the first one hangs', async () => {
    const api = new LeaseApi();
    const clock = new TestClock();
    const a = candidate(api, clock, 'a');
    await clock.advance(5000);
    const patch = api.mergePatch.bind(api);
    let hung = 0;
    api.mergePatch = (...args) => (hung++ === 0 ? new Promise(() => undefined) : patch(...args)) as never;
    await clock.advance(60_000);
    expect(hung).to.be.greaterThan(5);
    expect(a.state.leads).to.equal(true);
    a.stop.abort();
    await a.run;
  });

  it('stops leading at once if another candidate holds the lease', async () => {
    const api = new LeaseApi();
    const clock = new TestClock();
    const a = candidate(api, clock, 'a');
    await clock.advance(5000);
    api.lease!.spec!.holderIdentity = 'thief';
    api.lease!.metadata.resourceVersion = '1000';
    await clock.advance(3000);
    expect(a.state.ended).to.equal(false);
    await a.run;
  });
});
