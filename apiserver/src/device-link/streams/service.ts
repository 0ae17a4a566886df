// DeviceLinkService.Connect: the stream that delivers commands to a device and carries its responses.
import {
  type ConnectRequest,
  type ConnectRequest_Hello,
  ConnectRequest_OwnCommands as Own,
  type ConnectResponse,
  DeviceLinkService,
} from '@kellet/proto/es/kellet/v1/device_link_pb';
import type { Platform, ServiceModule } from '../../config/module.ts';
import type { Liveness } from '../../device-registry/liveness/liveness.ts';
import { sleep } from '../../platform/clock.ts';
import { invalidArgument, permissionDenied, toKelletError } from '../../platform/errors.ts';
import { isId } from '../../platform/ids.ts';
import { Gauge } from '../../platform/observability/metrics.ts';
import type { CallContext, ServiceRegistry } from '../../platform/rpc.ts';
import type { CommandFeed } from '../commands/command-feed.ts';
import type { Delivery } from '../rpc/delivery.ts';
import { recordResponse } from '../rpc/responses.ts';
import { firstHello } from './first-hello.ts';
import { MessagePace } from './message-pace.ts';
import { maxChildren, StreamHub } from './stream-hub.ts';
import { StreamSession } from './stream-session.ts';

/** Messages that a device may send a second. */
const messagesPerSecond = 100;

const ownCommands: Partial<Record<Own, StreamSession['own']>> = {
  [Own.own_attribute_changes]: 'attributeChanges',
  [Own.own_none]: 'none',
};

/** Dependencies of the service. */
export interface StreamParts {
  readonly platform: Pick<Platform, 'database' | 'clock' | 'logger' | 'metrics'>;
  readonly feed: CommandFeed;
  readonly delivery: Delivery;
  readonly liveness: Pick<Liveness, 'seen' | 'streamOpened' | 'streamClosed'>;
}

/** Creates the service. */
export function createStreams({ platform, feed, delivery, liveness }: StreamParts): ServiceModule {
  const { database, clock, logger, metrics } = platform;
  const hub = new StreamHub(database, liveness, clock, logger);
  new Gauge({
    name: 'kellet_device_streams',
    help: 'Streams of devices that are open in this process.',
    registers: [metrics],
    collect() {
      this.set(hub.size);
    },
  });
  const failed = (error: unknown): void =>
    logger.debug({ err: error }, 'commands of a stream could not be read; retrying');

  /** Has the stream carry the children that `hello` lists. Throws PERMISSION_DENIED if one is not a child. */
  const carry = async (session: StreamSession, hello: ConnectRequest_Hello): Promise<void> => {
    const deviceIds = checkedIds(hello);
    session.own = ownCommands[hello.ownCommands ?? Own.own_all] ?? 'all';
    session.following = !hello.followChildren ? undefined : deviceIds.length === 0 ? 'all' : deviceIds;
    const isAlone = deviceIds.length === 0 && !session.following;
    const children = isAlone
      ? new Set<string>()
      : await (session.following ? hub.followedBy(session) : hub.childrenOf(session, deviceIds));
    const foreign = session.following ? undefined : deviceIds.find((deviceId) => !children.has(deviceId));
    if (foreign !== undefined) {
      throw permissionDenied(`hello.device_ids: ${JSON.stringify(foreign)} is not a child of this gateway`);
    }
    hub.carry(session, children);
    await session.ready();
  };

  const respond = async (session: StreamSession, given: Parameters<typeof recordResponse>[3]): Promise<void> => {
    const { correlationId } = given;
    try {
      await recordResponse(database, session.tenantId, session.deviceId, given);
      await session.acknowledge({ correlationId, code: '', message: '' });
    } catch (thrown) {
      const { code, message } = toKelletError(thrown);
      if (code === 'INTERNAL') throw thrown;
      await session.acknowledge({ correlationId, code, message });
    }
  };

  /** Processes the device's messages until it sends no more. */
  const read = async (
    session: StreamSession,
    requests: AsyncIterator<ConnectRequest, undefined>,
    signal: AbortSignal,
  ): Promise<void> => {
    const pace = new MessagePace(messagesPerSecond, performance.now());
    for (;;) {
      const next = await requests.next();
      if (next.done === true || signal.aborted) return;
      const { event } = next.value;
      hub.alive(session);
      if (event.case === 'response') await respond(session, event.value);
      else if (event.case === 'hello') await carry(session, event.value);
      else if (event.case !== 'heartbeat') throw invalidArgument('a message must have hello, response or heartbeat');
      const wait = pace.take(performance.now());
      if (wait > 0) await sleep(wait, signal);
    }
  };

  async function* connect(
    requests: AsyncIterable<ConnectRequest>,
    context: CallContext,
  ): AsyncGenerator<ConnectResponse> {
    const { caller, tenantId, signal } = context;
    const messages = requests[Symbol.asyncIterator]() as AsyncIterator<ConnectRequest, undefined>;
    const hello = await firstHello(messages, signal);
    // The call is over.
    if (!hello) return;
    const session = new StreamSession(tenantId, caller.deviceId, { feed, delivery, failed });
    const end = (): void => session.end();
    signal.addEventListener('abort', end, { once: true });
    try {
      await hub.add(session);
      await carry(session, hello);
      if (signal.aborted) return;
      read(session, messages, signal).then(end, (error: Error) => session.fail(error));
      for (;;) {
        // Not by a variable, which would keep it while the device does not read.
        if (session.hasNext()) yield session.next()!;
        else if (session.isOver) return;
        else await session.changed();
      }
    } finally {
      signal.removeEventListener('abort', end);
      hub.close(session);
    }
  }

  const register = (registry: ServiceRegistry): void => registry.register(DeviceLinkService, { connect });
  return { register, start: async () => hub.start(), stop: async () => hub.stop() };
}

function checkedIds({ deviceIds }: ConnectRequest_Hello): string[] {
  if (deviceIds.length > maxChildren)
    throw invalidArgument(`hello.device_ids must have at most ${maxChildren} entries`);
  const malformed = deviceIds.find((deviceId) => !isId(deviceId));
  if (malformed !== undefined) {
    throw permissionDenied(`hello.device_ids: ${JSON.stringify(malformed)} is not a child of this gateway`);
  }
  return [...new Set(deviceIds.map((deviceId) => deviceId.toLowerCase()))];
}
