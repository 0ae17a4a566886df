import { KubernetesError } from '@kellet/kubernetes';
import { expect } from 'chai';
import { pino } from 'pino';
import { Controller, judge, type Reconcile, TerminalError, type Verdict } from './controller.ts';
import { createLogger } from './logger.ts';
import { createMetrics } from './metrics.ts';
import { settle, TestClock } from './testing/test-clock.ts';

const conflict = new KubernetesError(409, { reason: 'Conflict' });
const exists = new KubernetesError(409, { reason: 'AlreadyExists' });

describe('judge', () => {
  const cases: [string, Parameters<typeof judge>[0], Verdict][] = [
    ['done', { outcome: {} }, { result: 'success', requeue: 'never' }],
    [
      'requeue',
      { outcome: { requeueAfterMilliseconds: 7 } },
      { result: 'requeue_after', requeue: 'after', milliseconds: 7 },
    ],
    ['conflict', { error: conflict }, { result: 'requeue', requeue: 'rate-limited' }],
    ['already exists', { error: exists }, { result: 'error', requeue: 'rate-limited', kind: 'failure' }],
    ['failure', { error: new Error('x') }, { result: 'error', requeue: 'rate-limited', kind: 'failure' }],
    ['not an Error', { error: 'x' }, { result: 'error', requeue: 'rate-limited', kind: 'failure' }],
    ['terminal', { error: new TerminalError('x') }, { result: 'error', requeue: 'never', kind: 'terminal' }],
    ['panic', { error: new TypeError('x') }, { result: 'error', requeue: 'rate-limited', kind: 'panic' }],
  ];
  for (const [name, ending, want] of cases) it(name, () => expect(judge(ending)).to.deep.equal(want));
});

function makeController(reconcile: Reconcile, concurrency = 1, logger = createLogger('silent')) {
  const clock = new TestClock();
  const metrics = createMetrics();
  const controller = new Controller({
    name: 'test',
    reconcile,
    clock,
    metrics,
    logger,
    concurrency,
  });
  const stop = new AbortController();
  controller.start(stop.signal);
  return { clock, controller, stop, metrics };
}

describe('Controller', () => {
  it('retries failing keys with growing delays while processing others', async () => {
    const calls: string[] = [];
    const { clock, controller, stop, metrics } = makeController(async ({ namespace, name }) => {
      calls.push(`${namespace}/${name}`);
      if (name === 'bad') throw new Error('no');
      return {};
    });
    controller.queue.add('ns/bad');
    controller.queue.add('ns/good');
    await clock.advance(0);
    await clock.advance(0);
    expect(calls).to.deep.equal(['ns/bad', 'ns/good']);
    await clock.advance(5);
    await clock.advance(10);
    expect(calls.filter((call) => call === 'ns/bad')).to.have.length(3);
    const text = await metrics.registry.metrics();
    expect(text).to.match(/controller_runtime_reconcile_total\{controller="test",result="error"\} 3/);
    expect(text).to.match(/controller_runtime_reconcile_total\{controller="test",result="success"\} 1/);
    expect(text).to.match(/controller_runtime_reconcile_errors_total\{controller="test"\} 3/);
    stop.abort();
    await controller.stopped();
  });

  it('never reconciles a key concurrently', async () => {
    let running = 0;
    let most = 0;
    let total = 0;
    const gate = Promise.withResolvers<void>();
    const { controller, stop } = makeController(async () => {
      running += 1;
      total += 1;
      most = Math.max(most, running);
      await gate.promise;
      running -= 1;
      return {};
    }, 4);
    controller.queue.add('/a');
    await settle();
    controller.queue.add('/a');
    await settle();
    expect(total).to.equal(1);
    gate.resolve();
    await settle();
    await settle();
    expect([most, total]).to.deep.equal([1, 2]);
    stop.abort();
    await controller.stopped();
  });

  it('limits the number of concurrent reconciles', async () => {
    let running = 0;
    let most = 0;
    const { clock, controller, stop, metrics } = makeController(async () => {
      running += 1;
      most = Math.max(most, running);
      await settle();
      running -= 1;
      return {};
    }, 3);
    for (let index = 0; index < 20; index += 1) controller.queue.add(`/${index}`);
    while (controller.queue.length > 0) await clock.advance(1);
    expect(most).to.equal(3);
    expect(await metrics.registry.metrics()).to.match(/max_concurrent_reconciles\{controller="test"\} 3/);
    stop.abort();
    await controller.stopped();
  });

  it('leaves workers for other namespaces, however long the reconciles of one take', async () => {
    const reconciled: string[] = [];
    const ending = Promise.withResolvers<void>();
    const { controller, stop } = makeController(async ({ namespace, name }) => {
      reconciled.push(`${namespace}/${name}`);
      if (namespace === 'slow') await ending.promise;
      return {};
    }, 8);
    for (let index = 0; index < 20; index += 1) controller.queue.add(`slow/${index}`);
    await settle();
    for (const name of ['a', 'b', 'c']) controller.queue.add(`quick/${name}`);
    await settle();
    await settle();
    expect(reconciled.slice(-3)).to.have.members(['quick/a', 'quick/b', 'quick/c']);
    expect(reconciled.filter((key) => key.startsWith('slow/'))).to.have.length(6);
    ending.resolve();
    while (controller.queue.length > 0) await settle();
    expect(reconciled).to.have.length(23);
    stop.abort();
    await controller.stopped();
  });

  it('lets other things happen between reconciles that wait for nothing', async () => {
    let reconciled = 0;
    const { controller, stop } = makeController(async () => {
      reconciled += 1;
      return {};
    }, 8);
    for (let index = 0; index < 1000; index += 1) controller.queue.add(`ns/${index}`);
    await settle();
    expect(reconciled).to.be.below(20);
    while (controller.queue.length > 0) await settle();
    stop.abort();
    await controller.stopped();
  });

  it('logs the object, result and retry of each reconcile at an appropriate level', async () => {
    const lines: Record<string, unknown>[] = [];
    const logger = pino({ level: 'debug' }, { write: (line: string) => void lines.push(JSON.parse(line) as never) });
    const endings: (() => never)[] = [
      () => {
        throw conflict;
      },
      () => {
        throw new Error('etcd is unavailable');
      },
      () => {
        throw new TerminalError('never');
      },
    ];
    const { clock, controller, stop } = makeController(async () => endings.shift()?.() ?? {}, 1, logger);
    controller.queue.add('acme/pump');
    await clock.advance(5);
    await clock.advance(10);
    await clock.advance(2_000_000);
    controller.queue.add('acme/pump');
    await clock.advance(0);
    expect(
      lines.map(({ level, kind, retryMilliseconds, msg }) => ({ level, kind, retryMilliseconds, msg })),
    ).to.deep.equal([
      { level: 30, kind: undefined, retryMilliseconds: 5, msg: 'the object changed during the reconcile: retrying' },
      { level: 50, kind: 'failure', retryMilliseconds: 10, msg: 'reconcile failed' },
      { level: 50, kind: 'terminal', retryMilliseconds: undefined, msg: 'reconcile failed' },
      { level: 20, kind: undefined, retryMilliseconds: undefined, msg: 'reconciled' },
    ]);
    for (const line of lines) expect(line).to.include({ controller: 'test', namespace: 'acme', name: 'pump' });
    expect(new Set(lines.map(({ reconcileID }) => reconcileID)).size, 'each has a unique id').to.equal(4);
    stop.abort();
    await controller.stopped();
  });

  it('requeues after the requested delay', async () => {
    let calls = 0;
    const { clock, controller, stop } = makeController(async () => ({
      requeueAfterMilliseconds: ++calls < 3 ? 1000 : undefined,
    }));
    controller.queue.add('/a');
    await clock.advance(999);
    expect(calls).to.equal(1);
    await clock.advance(1);
    expect(calls).to.equal(2);
    await clock.advance(10_000);
    expect(calls).to.equal(3);
    stop.abort();
    await controller.stopped();
  });

  it('finishes running work at shutdown and starts no more', async () => {
    const gate = Promise.withResolvers<void>();
    let finished = 0;
    const { controller, stop } = makeController(async () => {
      await gate.promise;
      finished += 1;
      return {};
    });
    controller.queue.add('/a');
    controller.queue.add('/b');
    await settle();
    stop.abort();
    gate.resolve();
    await controller.stopped();
    expect(finished).to.equal(1);
  });
});
