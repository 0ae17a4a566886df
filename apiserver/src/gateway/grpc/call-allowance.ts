// How many calls a connection may have at a time. They can be begun faster than they are looked at, and each takes some twenty kibibytes
// until then: so a connection may have few, and more only as calls of it that have been admitted go on.
import type { ServerHttp2Session } from 'node:http2';
import type { WireCall } from './wire-call.ts';

/**
 * Calls that a connection may have at a time: at first, and at most. A proxy, whose connection has the calls of many clients, may have as
 * many as clients assume before they know a limit from the beginning.
 */
export const concurrentCalls = { atFirst: 20, ofProxies: 100, atMost: 1000 } as const;

/** The part of the calls of a connection that are admitted below which it may have fewer. */
const smallPart = 1 / 8;

/** Returns how many calls a connection may have at a time that could have `allowed` until now, and of which so many are admitted. */
export function allowance(allowed: number, admitted: number, atFirst: number): number {
  if (admitted * 2 > allowed) return Math.min(concurrentCalls.atMost, allowed * 2);
  return admitted < allowed * smallPart ? Math.max(atFirst, Math.floor(allowed / 2)) : allowed;
}

/** The calls of one connection. */
class Allowance {
  private readonly session: ServerHttp2Session;
  private readonly atFirst: number;
  private allowed: number;
  private admitted = 0;
  private isChanging = false;

  constructor(session: ServerHttp2Session, atFirst: number) {
    this.session = session;
    this.atFirst = atFirst;
    this.allowed = atFirst;
  }

  add(calls: 1 | -1): void {
    this.admitted += calls;
    this.change();
  }

  /** One change at a time: a client that does not acknowledge them gets no more. */
  private change(): void {
    const next = allowance(this.allowed, this.admitted, this.atFirst);
    if (next === this.allowed || this.isChanging || this.session.destroyed || this.session.closed) return;
    this.isChanging = true;
    this.allowed = next;
    this.session.settings({ maxConcurrentStreams: next }, () => {
      this.isChanging = false;
      this.change();
    });
  }
}

const allowances = new WeakMap<object, Allowance>();

/** Counts a call that has been admitted as one that goes on, until the returned function is called. */
export function countAdmitted({ stream }: WireCall, isProxy: (address: string) => boolean): () => void {
  const session = stream?.session as ServerHttp2Session | undefined;
  if (!session || session.destroyed) return () => undefined;
  let known = allowances.get(session);
  if (!known) {
    const { atFirst, ofProxies } = concurrentCalls;
    known = new Allowance(session, isProxy(session.socket.remoteAddress ?? '') ? ofProxies : atFirst);
    allowances.set(session, known);
  }
  const connection = known;
  connection.add(1);
  return () => connection.add(-1);
}
