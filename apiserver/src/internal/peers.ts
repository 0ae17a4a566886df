// The other processes that take points, which know more about devices than the database: each writes what follows from
// its points only every half a minute, and is asked for the rest over its internal port.
import { type NetworkInterfaceInfo, networkInterfaces } from 'node:os';
import { create, type DescMethod, type MessageInitShape, type MessageShape } from '@bufbuild/protobuf';
import type { Clock } from '../platform/clock.ts';
import type { Logger } from '../platform/observability/logger.ts';
import { internalContext, publicCaller } from '../platform/rpc.ts';
import type { ControlTlsFiles } from './control-tls.ts';
import { RemoteInvoker } from './remote-invoker.ts';

/** A process that does not respond within this time is left out. */
const askMilliseconds = 1000;
/** Interval of looking for other processes; new ones also announce themselves (writerChannel). */
const refreshMilliseconds = 5000;

/**
 * Returns host:port at which other processes reach the internal port of this one: the address it listens on, or the
 * machine's first one if it listens on all. Empty if the port is not known beforehand.
 */
export function ownAddress(
  host: string,
  port: number,
  interfaces: NodeJS.Dict<NetworkInterfaceInfo[]> = networkInterfaces(),
): string {
  if (port === 0) return '';
  const isAny = host === '' || host === '0.0.0.0' || host === '::';
  const outward = Object.values(interfaces).flatMap((list) => list?.filter(({ internal }) => !internal) ?? []);
  const first = outward.find(({ family }) => family === 'IPv4') ?? outward[0];
  const chosen = isAny ? (first?.address ?? '127.0.0.1') : host;
  return chosen.includes(':') ? `[${chosen}]:${port}` : `${chosen}:${port}`;
}

/** Asks the other processes. */
export class Peers {
  /** Address of this process. */
  readonly address: string;
  private readonly addresses: () => Promise<readonly string[]>;
  private readonly clock: Clock;
  private readonly logger: Logger;
  private readonly access: { readonly secret: string; readonly tls?: ControlTlsFiles | undefined };
  private readonly others = new Map<string, RemoteInvoker>();
  private timer: NodeJS.Timeout | undefined;

  /** `addresses` returns those of all processes that take points. */
  constructor(
    { clock, logger }: { readonly clock: Clock; readonly logger: Logger },
    address: string,
    access: { readonly secret: string; readonly tls?: ControlTlsFiles | undefined },
    addresses: () => Promise<readonly string[]>,
  ) {
    this.addresses = addresses;
    this.clock = clock;
    this.logger = logger;
    this.address = address;
    this.access = access;
  }

  async start(): Promise<void> {
    this.timer = setInterval(() => void this.refresh(), refreshMilliseconds);
    await this.refresh();
  }

  async stop(): Promise<void> {
    clearInterval(this.timer);
    this.timer = undefined;
    for (const remote of this.others.values()) remote.close();
    this.others.clear();
  }

  /** Looks for the other processes again. */
  async refresh(): Promise<void> {
    try {
      await this.look();
    } catch (error) {
      this.logger.debug({ err: error }, 'failed to look for other processes');
    }
  }

  /**
   * Asks every other process on behalf of a tenant and returns the responses. One that fails is left out: it is dead,
   * and its points are about to be read again (telemetry/read/hot-tails.ts).
   */
  async ask<M extends DescMethod>(
    tenantId: string,
    method: M,
    request: MessageInitShape<M['input']>,
  ): Promise<MessageShape<M['output']>[]> {
    if (this.others.size === 0) return [];
    const caller = { ...publicCaller, kind: 'service' as const, tenantId };
    const context = () => internalContext(caller, { deadline: this.clock.now() + askMilliseconds });
    const message = create(method.input, request) as MessageShape<M['input']>;
    const responses = await Promise.allSettled(
      [...this.others.values()].map((remote) => remote.unary(method, message, context())),
    );
    return responses.flatMap((response) => {
      if (response.status === 'fulfilled') return [response.value];
      this.logger.debug({ err: response.reason as unknown, method: method.name }, 'another process did not respond');
      return [];
    });
  }

  private async look(): Promise<void> {
    const addresses = await this.addresses();
    if (!this.timer) return;
    const found = new Set(addresses.filter((address) => address !== this.address));
    for (const [address, remote] of this.others) {
      if (found.has(address)) continue;
      remote.close();
      this.others.delete(address);
    }
    for (const address of found) {
      if (!this.others.has(address))
        this.others.set(address, new RemoteInvoker('telemetry', address, this.access.secret, this.access.tls));
    }
  }
}
