import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import type { Kind } from '@kellet/crds';
import {
  AdvanceRolloutRequest,
  AdvanceRolloutResponse,
  ApplyRequest,
  ApplyResponse,
  Kind as ControlKind,
  RemoveRequest,
  RemoveResponse,
} from '@kellet/proto/ts/kellet/control/v1/control';
import { expect } from 'chai';
import type { DataPlane } from './data-plane.ts';
import { DriftCheck, orphanTurns } from './drift.ts';

setFlagsFromString('--expose-gc');
const collectGarbage = runInNewContext('gc') as () => void;
const heapUsed = (): number => {
  collectGarbage();
  return process.memoryUsage().heapUsed;
};

describe('DriftCheck', () => {
  const meta = (name: string) => ({ tenant_id: 'acme', namespace: 'ns', name });
  const copy = (name: string, digest: bigint, kind: ControlKind = ControlKind.KIND_DEVICE_PROFILE) => ({
    ...meta(name),
    kind,
    digest,
  });
  const everything = (): boolean => true;
  const nothing = (): boolean => false;

  /** Creates a check, and calls that return this digest. */
  function makeCheck() {
    const check = new DriftCheck();
    const response = { digest: 1n, phase: '', refused: false };
    const dataPlane = check.following({
      apply: async ({ meta: of, kind }) =>
        ApplyResponse.fromPartial({
          id: of?.name ?? '',
          digest: response.digest,
          ...(kind === ControlKind.KIND_OTA_ROLLOUT && { ota_rollout: { phase: response.phase } }),
        }),
      remove: async () => RemoveResponse.fromPartial(response.refused ? { refusal: { reason: 'InUse' } } : {}),
      advanceRollout: async () =>
        AdvanceRolloutResponse.fromPartial({ applied: true, observed: { phase: 'completed' } }),
    } satisfies DataPlane);
    const apply = (name: string, digest: bigint): Promise<unknown> => {
      response.digest = digest;
      return dataPlane.apply(ApplyRequest.fromPartial({ meta: meta(name), kind: ControlKind.KIND_DEVICE_PROFILE }));
    };
    let isFirst = true;
    const comparePage = (
      copies: ReturnType<typeof copy>[],
      nextPageToken: string,
      exists: (kind: Kind, key: string) => boolean = everything,
    ) => {
      check.begin(isFirst);
      isFirst = nextPageToken === '';
      return check.compare({ copies, nextPageToken }, exists);
    };
    const compare = (copies: ReturnType<typeof copy>[], exists?: (kind: Kind, key: string) => boolean) =>
      comparePage(copies, '', exists);
    return { check, dataPlane, response, apply, compare, comparePage };
  }

  it('reports changed and missing working copies once', async () => {
    const { apply, compare } = makeCheck();
    for (const name of ['same', 'written', 'lost', 'deleted']) await apply(name, 7n);
    const copies = [copy('same', 7n), copy('written', 8n), copy('foreign', 9n)];
    expect(compare(copies, (_kind, key) => key !== 'ns/deleted')).to.deep.equal({
      changed: [{ kind: 'DeviceProfile', key: 'ns/written' }],
      missing: [{ kind: 'DeviceProfile', key: 'ns/lost' }],
      orphans: [],
      abandoned: [],
    });
    await apply('written', 8n);
    expect(compare(copies)).to.deep.equal({ changed: [], missing: [], orphans: [], abandoned: [] });
  });

  it('holds nothing of rollouts that are gone', async () => {
    const { dataPlane, response } = makeCheck();
    response.digest = 1n;
    const pass = async (rounds: number): Promise<void> => {
      for (let n = 0; n < rounds; n += 1) {
        const request = { meta: meta(`r${n}`), kind: ControlKind.KIND_OTA_ROLLOUT };
        await dataPlane.apply(ApplyRequest.fromPartial(request));
        await dataPlane.remove(RemoveRequest.fromPartial(request));
      }
    };
    await pass(100);
    const before = heapUsed();
    await pass(20_000);
    expect(heapUsed() - before).to.be.below(1024 * 1024);
  });

  it('ignores what was applied while the working copies were being read', async () => {
    const { check, apply } = makeCheck();
    await apply('early', 7n);
    check.begin(true);
    await apply('late', 7n);
    await apply('early', 8n);
    expect(check.compare({ copies: [copy('early', 7n)], nextPageToken: '' }, everything)).to.deep.equal({
      changed: [],
      missing: [],
      orphans: [],
      abandoned: [],
    });
  });

  it('does not compare what was removed, refused or completed', async () => {
    const { dataPlane, response, apply, compare } = makeCheck();
    for (const name of ['removed', 'in-use', 'refused']) await apply(name, 7n);
    const remove = (name: string) =>
      dataPlane.remove(RemoveRequest.fromPartial({ meta: meta(name), kind: ControlKind.KIND_DEVICE_PROFILE }));
    await remove('removed');
    response.refused = true;
    await remove('in-use');
    await apply('refused', 0n);
    for (const phase of ['active', 'completed']) {
      Object.assign(response, { digest: 7n, phase });
      await dataPlane.apply(ApplyRequest.fromPartial({ meta: meta('rollout'), kind: ControlKind.KIND_OTA_ROLLOUT }));
    }
    // A rollout completed by the operator is no longer listed either.
    Object.assign(response, { digest: 7n, phase: 'active' });
    await dataPlane.apply(ApplyRequest.fromPartial({ meta: meta('driven'), kind: ControlKind.KIND_OTA_ROLLOUT }));
    await dataPlane.advanceRollout(AdvanceRolloutRequest.fromPartial({ rollout_id: 'driven', complete: {} }));
    expect(compare([]).missing).to.deep.equal([{ kind: 'DeviceProfile', key: 'ns/in-use' }]);
  });

  it('reports persistent orphans, and tenants among them as abandoned', () => {
    const { compare } = makeCheck();
    const copies = [copy('left', 1n, ControlKind.KIND_OTA_ROLLOUT), copy('', 1n, ControlKind.KIND_TENANT)];
    const orphan = { kind: 'OtaRollout', tenantId: 'acme', namespace: 'ns', name: 'left' };
    for (let round = 1; round < orphanTurns; round += 1) {
      expect(compare(copies, nothing).orphans).to.deep.equal([]);
    }
    expect(compare(copies, everything).orphans, 'its resource is there after all').to.deep.equal([]);
    for (let round = 1; round < orphanTurns; round += 1) {
      expect(compare(copies, nothing).orphans).to.deep.equal([]);
    }
    expect(compare(copies, nothing)).to.deep.include({ orphans: [orphan], abandoned: ['acme'] });
    expect(compare(copies, nothing), 'not in every comparison').to.deep.include({ orphans: [], abandoned: [] });
  });

  const none = { changed: [], missing: [], orphans: [], abandoned: [] };

  it('compares page by page, and knows what is missing with the last page of a turn', async () => {
    const { apply, comparePage } = makeCheck();
    for (const name of ['a', 'b', 'c', 'lost']) await apply(name, 7n);
    expect(comparePage([copy('a', 7n), copy('b', 8n)], 'b').changed).to.deep.equal([
      { kind: 'DeviceProfile', key: 'ns/b' },
    ]);
    await apply('b', 8n);
    // Made and deleted after its page was read.
    await apply('aa', 7n);
    expect(comparePage([copy('c', 7n)], '')).to.deep.equal({
      ...none,
      missing: [{ kind: 'DeviceProfile', key: 'ns/lost' }],
    });
    expect(comparePage([copy('a', 7n), copy('b', 8n)], 'b')).to.deep.equal(none);
    expect(comparePage([copy('c', 7n)], '').missing).to.deep.equal([{ kind: 'DeviceProfile', key: 'ns/aa' }]);
  });

  it('compares what was applied while an earlier page was being read', async () => {
    const { apply, comparePage } = makeCheck();
    comparePage([], 'a');
    await apply('b', 7n);
    expect(comparePage([copy('b', 8n)], '').changed).to.deep.equal([{ kind: 'DeviceProfile', key: 'ns/b' }]);
  });

  it('reports nothing as missing because a turn was broken off', async () => {
    const { check, apply, comparePage } = makeCheck();
    for (const name of ['a', 'b']) await apply(name, 7n);
    comparePage([copy('a', 7n)], 'a');
    // Reading the second page fails, and another turn begins.
    check.begin(false);
    check.begin(true);
    const page = { copies: [copy('a', 7n)], nextPageToken: 'a' };
    expect(check.compare(page, everything)).to.deep.equal(none);
    expect(comparePage([copy('b', 7n)], '')).to.deep.equal(none);
  });

  it('counts the turns of an orphan, not its pages', () => {
    const { comparePage } = makeCheck();
    const turn = () => [
      ...comparePage([copy('left', 1n)], 'left', nothing).orphans,
      ...comparePage([], 'z', nothing).orphans,
      ...comparePage([], '', nothing).orphans,
    ];
    for (let round = 1; round < orphanTurns; round += 1) expect(turn()).to.deep.equal([]);
    expect(turn()).to.have.length(1);
    // Gone for a turn, it counts from the beginning.
    for (let round = 1; round < orphanTurns; round += 1) expect(turn()).to.deep.equal([]);
    comparePage([], '', nothing);
    expect(turn()).to.deep.equal([]);
  });
});
