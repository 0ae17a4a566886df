// Represents a gRPC call as a call of the data plane, on the public and the internal port alike.
import { Metadata } from '@grpc/grpc-js';
import type { CallContext, Caller } from '../rpc.ts';

/** The members used of a grpc-js call of any of the four kinds. */
export interface GrpcCall {
  readonly metadata: Metadata;
  readonly cancelled: boolean;
  getPeer(): string;
  getDeadline(): Date | number;
  on(event: 'cancelled', listener: () => void): unknown;
}

/** What is known about a call when it starts. */
export interface CallFacts extends Pick<CallContext, 'caller' | 'requestId' | 'address' | 'responseMetadata'> {
  /** Returns the metadata as handlers see it; called once it is read, because few handlers read it. */
  readonly metadataOf: () => ReadonlyMap<string, string>;
}

/** The context of a call; `finish` is called when the response has been sent. */
export class GrpcContext implements CallContext {
  readonly caller: Caller;
  readonly tenantId: string;
  readonly requestId: string;
  readonly address: string;
  readonly responseMetadata: Map<string, string>;
  readonly deadline: number | undefined;
  private readonly controller = new AbortController();
  private readonly metadataOf: () => ReadonlyMap<string, string>;
  private readMetadata: ReadonlyMap<string, string> | undefined;
  private readonly afterwards: (() => void)[] = [];
  private isFinished = false;

  constructor(call: GrpcCall, facts: CallFacts) {
    this.caller = facts.caller;
    this.tenantId = facts.caller.tenantId;
    this.requestId = facts.requestId;
    this.address = facts.address;
    this.metadataOf = facts.metadataOf;
    this.responseMetadata = facts.responseMetadata;
    const deadline = Number(call.getDeadline());
    this.deadline = Number.isFinite(deadline) ? deadline : undefined;
    call.on('cancelled', () => this.controller.abort());
    if (call.cancelled) this.controller.abort();
  }

  get metadata(): ReadonlyMap<string, string> {
    return (this.readMetadata ??= this.metadataOf());
  }

  get signal(): AbortSignal {
    return this.controller.signal;
  }

  /** Cancels the call from outside, because its credential was revoked or the server is stopping. */
  abort(): void {
    this.controller.abort();
  }

  afterResponse(run: () => void): void {
    if (this.isFinished) run();
    else this.afterwards.push(run);
  }

  finish(): void {
    this.isFinished = true;
    for (const run of this.afterwards.splice(0)) run();
  }
}

/** Returns the first value of a metadata key as text, or undefined. */
export function metadataText(metadata: Metadata, name: string): string | undefined {
  const value = metadata.get(name)[0];
  return value === undefined ? undefined : value.toString();
}

/**
 * Returns every entry as text: multiple values are joined by commas, those of a `-bin` key are base64 (as on the wire).
 */
export function metadataEntries(metadata: Metadata): [string, string][] {
  return Object.keys(metadata.getMap()).map((name) => [
    name,
    metadata
      .get(name)
      .map((value) => (typeof value === 'string' ? value : value.toString('base64')))
      .join(name.endsWith('-bin') ? ',' : ', '),
  ]);
}

/** Converts headers to grpc-js metadata; values of a `-bin` key are base64, multiple ones separated by commas. */
export function toMetadata(headers: Iterable<readonly [string, string]>): Metadata {
  const metadata = new Metadata();
  for (const [name, value] of headers) {
    if (!name.endsWith('-bin')) metadata.set(name, value);
    else for (const part of value.split(',')) metadata.add(name, Buffer.from(part, 'base64'));
  }
  return metadata;
}
