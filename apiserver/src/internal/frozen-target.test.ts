import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import path from 'node:path';
import { create } from '@bufbuild/protobuf';
import { DeviceLinkService } from '@kellet/proto/es/kellet/v1/device_link_pb';
import { DeviceRegistryService } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { expect } from 'chai';
import type { KelletError } from '../platform/errors.ts';
import { internalContext, publicCaller } from '../platform/rpc.ts';
import { eventually } from '../platform/testing/eventually.ts';
import { TcpProxy } from '../platform/testing/test-tcp-proxy.ts';
import { RemoteInvoker } from './remote-invoker.ts';

const { getDevice, deleteDevice } = DeviceRegistryService.method;
const { connect } = DeviceLinkService.method;

describe('a process that does not respond', function () {
  this.timeout(40_000);
  let target: ChildProcess;
  let started: string[];
  let proxy: TcpProxy;
  let remote: RemoteInvoker;

  beforeEach(async () => {
    target = fork(path.join(import.meta.dirname, 'testing/target-process.ts'));
    const [port] = (await once(target, 'message')) as [number];
    started = [];
    target.on('message', (deviceId: string) => started.push(deviceId));
    proxy = await TcpProxy.before(`tcp://127.0.0.1:${port}`);
    remote = new RemoteInvoker('device-registry', new URL(proxy.through('tcp://x:1')).host, 'a control secret');
    await get();
  });
  afterEach(async () => {
    remote.close();
    await proxy.close();
    const exit = once(target, 'exit');
    target.kill('SIGKILL');
    await exit;
  });

  const get = (deviceId = 'd1') =>
    remote.unary(getDevice, create(getDevice.input, { deviceId }), internalContext(publicCaller));
  const remove = (deviceId: string) =>
    remote.unary(deleteDevice, create(deleteDevice.input, { deviceId }), internalContext(publicCaller));
  /** Returns the error's code and how long it took. */
  async function refusal(call: Promise<unknown>) {
    const before = performance.now();
    const error = await call.then(
      () => expect.fail('the call succeeded'),
      (thrown: unknown) => thrown as KelletError,
    );
    return { code: error.code, message: error.message, seconds: (performance.now() - before) / 1000 };
  }
  const works = () =>
    get().then(
      () => true,
      () => false,
    );

  for (const [what, stop, resume] of [
    ['frozen', () => target.kill('SIGSTOP'), () => target.kill('SIGCONT')],
    // Connections made meanwhile remain dead, as those whose packets were lost.
    ['behind a network that drops everything', () => proxy.silence(), () => proxy.restoreNew()],
  ] as const) {
    it(`${what}: calls are UNAVAILABLE within seconds, and succeed at once when it is back`, async () => {
      stop();
      for (const [limit, call] of [
        [9, get()],
        [2.5, undefined],
        [2.5, undefined],
      ] as const) {
        const { code, message, seconds } = await refusal(call ?? get());
        expect({ code, message }).to.deep.equal({ code: 'UNAVAILABLE', message: 'device-registry is not available' });
        expect(seconds).to.be.lessThan(limit);
      }
      expect(await refusal(remote.check('kellet.v1.DeviceRegistryService', 900)))
        .to.have.property('seconds')
        .below(1.5);
      resume();
      await eventually(works, 2500);
    });

    it(`${what}: streams end within seconds`, async () => {
      stop();
      const never = (async function* () {
        await new Promise(() => undefined);
        yield create(connect.input);
      })();
      const replies = remote.stream(connect)(never, internalContext(publicCaller)) as AsyncGenerator;
      expect(await refusal(replies.next())).to.include({ code: 'UNAVAILABLE' });
    });
  }

  it('leaves the outcome of a change unknown that it had received, and does not carry it out afterwards', async () => {
    target.kill('SIGSTOP');
    const [first, second] = await Promise.all([refusal(remove('lost')), refusal(get('read'))]);
    expect(first.code).to.equal('DEADLINE_EXCEEDED');
    expect(first.message).to.contain('the outcome of the call is unknown');
    expect(second.code).to.equal('UNAVAILABLE');
    expect((await refusal(remove('never sent'))).code).to.equal('UNAVAILABLE');
    target.kill('SIGCONT');
    await eventually(works, 2500);
    await new Promise((resolve) => setTimeout(resolve, 500));
    expect(started.filter((deviceId) => deviceId !== 'd1')).to.deep.equal([]);
  });

  it('is not assumed frozen while it works on a slow call', async () => {
    expect(await get('slow')).to.include({ deviceId: 'slow' });
  });

  it('costs one connection attempt at a time', async () => {
    proxy.silence();
    await refusal(get());
    for (let round = 0; round < 3; round += 1) await Promise.all(Array.from({ length: 100 }, () => refusal(get())));
    expect(proxy.connections).to.be.lessThan(4);
  });
});
