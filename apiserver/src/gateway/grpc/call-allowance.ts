// How many calls a connection may have at a time. They can be begun faster than they are looked at, and each takes some twenty kibibytes
// until then: so a connection may have few, and more only as calls of it that have been admitted go on.
import type { ServerHttp2Session } from 'node:http2';
import { Tally } from '../../platform/concurrency/tally.ts';
import type { WireCall } from './wire-call.ts';

/**
 * Calls that a connection may have at a time: at first, and at most. Clients assume a hundred before they know a limit, so a proxy, whose
 * connection has the calls of many clients, may have as many from the beginning, and some connections of each tenant once a call of
 * theirs has been admitted.
 */
export const concurrentCalls = { atFirst: 20, usual: 100, atMost: 1000 } as const;

/** Connections of a tenant, and in all, that may have the usual number of calls. */
export const usualConnections = { ofTenant: 10, total: 40 } as const;

/** The part of the calls of a connection that are admitted below which it may have fewer. */
const smallPart = 1 / 8;

/** Returns how many calls a connection may have at a time that could have `allowed` until now, and of which so many are admitted. */
export function allowance(allowed: number, admitted: number, least: number): number {
  if (admitted * 2 > allowed) return Math.min(concurrentCalls.atMost, allowed * 2);
  return admitted < allowed * smallPart ? Math.max(least, Math.floor(allowed / 2)) : allowed;
}

/** The calls of one connection. */
class Allowance {
  private readonly session: ServerHttp2Session;
  private readonly least: number;
  private allowed: number;
  private admitted = 0;
  private isChanging = false;

  constructor(session: ServerHttp2Session, allowed: number, least: number) {
    this.session = session;
    this.allowed = allowed;
    this.least = least;
  }

  add(calls: 1 | -1): void {
    this.admitted += calls;
    this.change();
  }

  /** One change at a time: a client that does not acknowledge them gets no more. */
  private change(): void {
    const next = allowance(this.allowed, this.admitted, this.least);
    if (next === this.allowed || this.isChanging || this.session.destroyed || this.session.closed) return;
    this.isChanging = true;
    this.allowed = next;
    this.session.settings({ maxConcurrentStreams: next }, () => {
      this.isChanging = false;
      this.change();
    });
  }
}

/** The calls of all connections. */
export class CallAllowances {
  private readonly connections = new WeakMap<ServerHttp2Session, Allowance>();
  private readonly usual = new Tally();
  private usualInAll = 0;
  private readonly isProxy: (address: string) => boolean;

  /** `isProxy` reports whether a peer is a trusted proxy. */
  constructor(isProxy: (address: string) => boolean) {
    this.isProxy = isProxy;
  }

  /** Counts a call of a tenant that has been admitted as one that goes on, until the returned function is called. */
  enter({ stream }: WireCall, tenantId: string): () => void {
    const session = stream?.session as ServerHttp2Session | undefined;
    if (!session || session.destroyed) return () => undefined;
    let known = this.connections.get(session);
    if (!known) {
      const { atFirst, usual } = concurrentCalls;
      known = this.isProxy(session.socket.remoteAddress ?? '')
        ? new Allowance(session, usual, usual)
        : new Allowance(session, atFirst, this.isUsual(session, tenantId) ? usual : atFirst);
      this.connections.set(session, known);
    }
    const connection = known;
    connection.add(1);
    return () => connection.add(-1);
  }

  private isUsual(session: ServerHttp2Session, tenantId: string): boolean {
    const { ofTenant, total } = usualConnections;
    if (this.usual.of(tenantId) >= ofTenant || this.usualInAll >= total) return false;
    const leave = this.usual.enter(tenantId);
    this.usualInAll += 1;
    session.once('close', () => {
      leave();
      this.usualInAll -= 1;
    });
    return true;
  }
}
