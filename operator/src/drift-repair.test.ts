import { ApplyResponse, Kind as ControlKind, type WorkingCopy } from '@kellet/proto/ts/kellet/control/v1/control';
import { expect } from 'chai';
import { DriftCheck, orphanTurns } from './drift.ts';
import { driftPageSize, type DriftRepairOptions, repairDrift } from './drift-repair.ts';
import { createLogger } from './runtime/logger.ts';
import { createMetrics } from './runtime/metrics.ts';
import { settle, TestClock } from './runtime/testing/test-clock.ts';

describe('repairDrift', () => {
  const interval = 60_000;

  /** Runs the check against so many copies. `reads` has the time of each page, in seconds, and where it begins. */
  function run(count: number, tenants: readonly string[] = [], { orphans = false, refuses = false } = {}) {
    const clock = new TestClock();
    const start = clock.monotonic();
    const copies: WorkingCopy[] = Array.from({ length: count }, (_, n) => ({
      ...{ tenant_id: 'acme', namespace: 'ns', name: String(n), kind: ControlKind.KIND_DEVICE_PROFILE, digest: 1n },
    }));
    for (const tenant_id of tenants)
      copies.unshift({ tenant_id, namespace: '', name: tenant_id, kind: ControlKind.KIND_TENANT, digest: 1n });
    const applied: unknown[] = [];
    const state = { isAway: false };
    const reads: [seconds: number, from: number][] = [];
    const ending = new AbortController();
    const options: DriftRepairOptions = {
      client: {
        find: async <T>(_resource: unknown, _namespace: string, name: string) =>
          name === 'unseen' ? ({} as T) : undefined,
      },
      cluster: {
        get: (kind: string) => (kind === 'Tenant' || orphans ? undefined : {}),
        namespace: () => ({ metadata: { creationTimestamp: '1970-01-01T00:00:00Z' } }),
        tenancyOf: () => (orphans ? { tenantId: 'acme' } : { reason: 'none' }),
      } as never,
      dataPlane: {
        apply: async ({ meta, spec }) => {
          applied.push([meta?.tenant_id, spec]);
          if (refuses) throw new Error('unavailable');
          return ApplyResponse.fromPartial({});
        },
        remove: () => Promise.reject(new Error('it cannot be removed')),
        listWorkingCopies: async (token, size) => {
          const from = Number(token);
          reads.push([(clock.monotonic() - start) / 1000, from]);
          if (state.isAway) throw new Error('unavailable');
          const end = from + size;
          return { copies: copies.slice(from, end), nextPageToken: end < copies.length ? String(end) : '' };
        },
      },
      check: new DriftCheck(),
      add: () => undefined,
      ...{ clock, logger: createLogger('silent'), metrics: createMetrics(), intervalMilliseconds: interval },
    };
    const ended = repairDrift(options, ending.signal);
    const stop = async () => {
      ending.abort();
      await settle();
      await ended;
    };
    return { clock, reads, applied, state, stop };
  }

  it('reads one page in an interval if there are no more', async () => {
    const { clock, reads, stop } = run(driftPageSize);
    await clock.advance(3 * interval);
    expect(reads).to.deep.equal([60, 120, 180].map((seconds) => [seconds, 0]));
    await stop();
  });

  it('spreads up to 10,000 copies over an interval', async () => {
    const { clock, reads, stop } = run(10_000);
    await clock.advance(3 * interval - 1);
    expect(reads).to.have.length(2 * 20);
    expect(reads.slice(0, 3)).to.deep.equal([
      [60, 0],
      [63, driftPageSize],
      [66, 2 * driftPageSize],
    ]);
    expect(reads.filter(([, from]) => from === 0).map(([seconds]) => seconds)).to.deep.equal([60, 120]);
    await stop();
  });

  it('never reads more than 10,000 copies in an interval, and takes longer for more', async () => {
    const { clock, reads, stop } = run(25_000);
    await clock.advance(7 * interval - 1);
    expect(reads).to.have.length(6 * 20);
    expect(reads.filter(([, from]) => from === 0).map(([seconds]) => seconds)).to.deep.equal([60, 210, 360]);
    await stop();
  });

  it('takes the namespace from a tenant that has had no resource for ten turns', async () => {
    expect(orphanTurns).to.equal(10);
    const { clock, applied, stop } = run(0, ['left', 'unseen']);
    await clock.advance((orphanTurns - 1) * interval);
    expect(applied).to.deep.equal([]);
    await clock.advance(interval);
    expect(applied).to.deep.equal([['left', { namespace: '' }]]);
    await stop();
  });

  it('goes on to the next page although such a tenant cannot be changed', async () => {
    const { clock, applied, reads, stop } = run(2 * driftPageSize, ['left'], { refuses: true });
    await clock.advance((orphanTurns + 1) * interval - 1);
    expect(applied).to.have.length(1);
    expect(reads.at(-1)![1]).to.be.above(0);
    await stop();
  });

  it('goes on to the next page although orphans cannot be removed', async () => {
    const { clock, reads, stop } = run(2 * driftPageSize, [], { orphans: true });
    clock.setWallClock(1e12);
    await clock.advance(2 * orphanTurns * interval);
    expect(reads.filter(([, from]) => from === driftPageSize).length).to.be.at.least(2 * orphanTurns - 1);
    await stop();
  });

  it('begins another turn after a failure, at its time', async () => {
    const { clock, reads, state, stop } = run(2 * driftPageSize);
    await clock.advance(interval);
    state.isAway = true;
    await clock.advance(2 * interval);
    state.isAway = false;
    await clock.advance(interval + 3000);
    expect(reads).to.deep.equal([
      [60, 0],
      [63, driftPageSize],
      [120, 0],
      [180, 0],
      [240, 0],
      [243, driftPageSize],
    ]);
    await stop();
  });
});
