import { apiVersion, type DeviceProfile } from '@kellet/crds';
import type { KubernetesObject } from '@kellet/kubernetes';
import { expect } from 'chai';
import { TestClock } from './runtime/testing/test-clock.ts';
import { StatusWriter, withoutEmpty } from './status-writer.ts';

describe('withoutEmpty', () => {
  it('drops only empty values', () => {
    expect(
      withoutEmpty({ a: undefined, b: [], c: { d: {} }, e: 0, f: '', g: false, h: [{ i: undefined, j: 1 }] }),
    ).to.deep.equal({
      e: 0,
      f: '',
      g: false,
      h: [{ j: 1 }],
    });
  });
});

describe('StatusWriter', () => {
  const makeProfile = (resourceVersion: string, status?: DeviceProfile['status']): DeviceProfile => ({
    apiVersion,
    kind: 'DeviceProfile',
    metadata: { name: 'p', namespace: 'ns', uid: 'u', resourceVersion },
    spec: {},
    status,
  });

  function makeWriter() {
    const clock = new TestClock();
    const applied: KubernetesObject[] = [];
    const patches: object[] = [];
    let version = 10;
    const versioned = <T extends KubernetesObject>(object: T): T => {
      version += 1;
      return { ...object, metadata: { ...object.metadata, resourceVersion: `${version}` } };
    };
    const client = {
      /** Fields of other managers, which an apply keeps. */
      foreign: {},
      async apply<T extends KubernetesObject>(_resource: object, object: T): Promise<T> {
        applied.push(object);
        return versioned({ ...object, status: { ...client.foreign, ...(object as { status?: object }).status } });
      },
      async mergePatch<T extends KubernetesObject>(_resource: object, _in: string, name: string, patch: object) {
        patches.push(patch);
        return versioned({ metadata: { name } } as T);
      },
    };
    return { clock, applied, patches, client, writer: new StatusWriter(client, clock) };
  }

  it('does not write an unchanged status', async () => {
    const { applied, writer } = makeWriter();
    expect(await writer.write(makeProfile('1', { devices: 2, conditions: [] }), { devices: 2 })).to.equal('unchanged');
    expect(applied).to.deep.equal([]);
  });

  it('writes at most one status per second', async () => {
    const { clock, applied, writer } = makeWriter();
    expect(await writer.write(makeProfile('1'), { devices: 1 })).to.equal('written');
    await clock.advance(400);
    expect(await writer.write(makeProfile('11', { devices: 1 }), { devices: 2 })).to.deep.equal({
      deferMilliseconds: 600,
    });
    await clock.advance(600);
    expect(await writer.write(makeProfile('11', { devices: 1 }), { devices: 2 })).to.equal('written');
    expect(applied).to.have.length(2);
    expect(applied[0]!.metadata).to.deep.equal({ name: 'p', namespace: 'ns', uid: 'u' });
  });

  it('removes fields that another client has added', async () => {
    const { client, patches, writer } = makeWriter();
    client.foreign = { outcome: 'Succeeded', conditions: [] };
    const held = makeProfile('1', { devices: 1, outcome: 'Succeeded' } as DeviceProfile['status']);
    expect(await writer.write(held, { devices: 1, conditions: [] })).to.equal('written');
    expect(patches).to.deep.equal([{ metadata: { uid: 'u' }, status: { outcome: null, conditions: null } }]);
    expect(writer.isOwnWrite(makeProfile('12'))).to.equal(true);
  });

  it('recognises stale copies and its own writes', async () => {
    const { writer } = makeWriter();
    expect(writer.staleFor(makeProfile('1'))).to.equal(undefined);
    await writer.write(makeProfile('1'), { devices: 1 });
    expect(writer.staleFor(makeProfile('1'))).to.equal(50);
    expect(writer.staleFor(makeProfile('11'))).to.equal(undefined);
    expect(writer.isOwnWrite(makeProfile('11'))).to.equal(true);
    expect(writer.isOwnWrite(makeProfile('12'))).to.equal(false);
    writer.forget(makeProfile('11'));
    expect(writer.staleFor(makeProfile('1'))).to.equal(undefined);
  });

  it('backs off on a stale copy, and finally accepts it', async () => {
    const { clock, writer } = makeWriter();
    await writer.write(makeProfile('1'), { devices: 1 });
    await clock.advance(800);
    expect(writer.staleFor(makeProfile('1'))).to.equal(800);
    await clock.advance(100_000);
    expect(writer.staleFor(makeProfile('1'))).to.equal(10_000);
    await clock.advance(200_000);
    expect(writer.staleFor(makeProfile('1'))).to.equal(undefined);
  });

  it('is not delayed when the clock is set back', async () => {
    const { clock, writer } = makeWriter();
    await writer.write(makeProfile('1'), { devices: 1 });
    clock.setWallClock(-3_600_000);
    await clock.advance(1000);
    expect(await writer.write(makeProfile('11', { devices: 1 }), { devices: 2 })).to.equal('written');
  });

  it('recognises its own write even before the response', async () => {
    const { writer } = makeWriter();
    const response = Promise.withResolvers<DeviceProfile>();
    const tracked = writer.track('u', response.promise);
    expect(writer.isOwnWrite(makeProfile('11'))).to.equal(true);
    response.resolve(makeProfile('11'));
    await tracked;
    expect(writer.isOwnWrite(makeProfile('12'))).to.equal(false);
  });
});
