import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { KubernetesError, type KubernetesObject, type Resource } from '@kellet/kubernetes';
import { expect } from 'chai';
import { EventRecorder } from './events.ts';
import { createLogger } from './logger.ts';
import { createMetrics } from './metrics.ts';
import { TestClock } from './testing/test-clock.ts';

setFlagsFromString('--expose-gc');
const collectGarbage = runInNewContext('gc') as () => void;

function makeRecorder(options: { pending?: number; remembered?: number } = {}) {
  const clock = new TestClock();
  const created: (KubernetesObject & { count: number; reason: string })[] = [];
  const patched: { name: string; count: number }[] = [];
  const forgotten = new Set<string>();
  const beforeCreate: { wait?: Promise<void> } = {};
  const client = {
    async create<T extends KubernetesObject>(_resource: Resource, object: T): Promise<T> {
      await beforeCreate.wait;
      created.push(object as unknown as (typeof created)[number]);
      return object;
    },
    async mergePatch<T extends KubernetesObject>(_r: Resource, _ns: string, name: string, patch: object): Promise<T> {
      if (forgotten.has(name)) throw new KubernetesError(404, { reason: 'NotFound' });
      patched.push({ name, count: (patch as { count: number }).count });
      return patch as T;
    },
  };
  const recorder = new EventRecorder({
    client,
    clock,
    logger: createLogger('silent'),
    metrics: createMetrics(),
    component: 'kellet-operator',
    instance: 'test',
    ...options,
  });
  return { clock, created, patched, forgotten, beforeCreate, recorder };
}

const object = (uid: string, namespace?: string): KubernetesObject => ({
  apiVersion: 'kellet.dev/v1alpha1',
  kind: 'OtaRollout',
  metadata: { name: `rollout-${uid}`, uid, ...(namespace && { namespace }) },
});
const paused = { type: 'Warning', reason: 'Paused', message: '3 of 10 failed' } as const;

describe('EventRecorder', () => {
  it('increments the count of a repeated event', async () => {
    const { created, patched, recorder } = makeRecorder();
    for (let index = 0; index < 3; index += 1) recorder.record(object('1', 'ns'), paused);
    recorder.record(object('2', 'ns'), paused);
    recorder.record(object('1', 'ns'), { ...paused, message: 'other' });
    await recorder.flush();
    expect(created).to.have.length(3);
    expect(patched.map((patch) => patch.count)).to.deep.equal([2, 3]);
    expect(created[0]!.metadata.namespace).to.equal('ns');
  });

  it('holds no object while its events wait, because it may be large', async () => {
    const { recorder, created, beforeCreate } = makeRecorder();
    const recordOne = (uid: string): WeakRef<object> => {
      const recorded = object(uid, 'ns');
      recorder.record(recorded, paused);
      return new WeakRef(recorded);
    };
    const writing = Promise.withResolvers<void>();
    beforeCreate.wait = writing.promise;
    recordOne('0');
    const waiting = recordOne('1');
    await new Promise((resolve) => setTimeout(resolve, 0));
    collectGarbage();
    expect(waiting.deref()).to.equal(undefined);
    writing.resolve();
    await recorder.flush();
    expect(created.map(({ metadata }) => metadata.name.split('.')[0])).to.deep.equal(['rollout-0', 'rollout-1']);
  });

  it('creates an event again after the server has deleted it', async () => {
    const { created, forgotten, recorder } = makeRecorder();
    recorder.record(object('1', 'ns'), paused);
    await recorder.flush();
    forgotten.add(created[0]!.metadata.name);
    recorder.record(object('1', 'ns'), paused);
    await recorder.flush();
    expect(created).to.have.length(2);
  });

  it('rate-limits events per object', async () => {
    const { clock, created, recorder } = makeRecorder();
    for (let index = 0; index < 100; index += 1) recorder.record(object('1', 'ns'), { ...paused, message: `${index}` });
    recorder.record(object('2', 'ns'), paused);
    await recorder.flush();
    expect(created).to.have.length(26);
    await clock.advance(300_000);
    recorder.record(object('1', 'ns'), { ...paused, message: 'later' });
    await recorder.flush();
    expect(created).to.have.length(27);
  });

  it('drops events beyond the queue limit', async () => {
    const { created, recorder } = makeRecorder({ pending: 2 });
    for (let index = 0; index < 5; index += 1) recorder.record(object(`${index}`, 'ns'), paused);
    await recorder.flush();
    expect(created).to.have.length(2);
  });

  it('leaves room for those of other namespaces, which take turns', async () => {
    const { created, recorder } = makeRecorder({ pending: 40 });
    for (let index = 0; index < 100; index += 1) recorder.record(object(`${index}`, 'loud'), paused);
    recorder.record(object('q', 'quiet'), paused);
    await recorder.flush();
    expect(created.map(({ metadata }) => metadata.namespace).indexOf('quiet')).to.be.within(1, 2);
    expect(created).to.have.length(12);
  });

  it('limits the time flush waits for an unresponsive server', async () => {
    const clock = new TestClock();
    const never = (): Promise<never> => new Promise(() => undefined);
    const recorder = new EventRecorder({
      ...{ client: { create: never, mergePatch: never }, clock, logger: createLogger('silent') },
      ...{ metrics: createMetrics(), component: 'kellet-operator', instance: 'test' },
    });
    recorder.record(object('1', 'ns'), paused);
    const flushed = recorder.flush();
    await clock.advance(5000);
    await flushed;
    expect(clock.pending()).to.deep.equal([]);
  });

  it('writes events about cluster-scoped objects to the default namespace', async () => {
    const { created, recorder } = makeRecorder();
    recorder.record(object('1'), paused);
    await recorder.flush();
    expect(created[0]!.metadata.namespace).to.equal('default');
  });
});
