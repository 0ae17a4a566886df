// The stream of a device's commands behind its connection: DeviceLinkService.Connect, so that a device has one connection
// whatever the protocol, and commands are delivered as to any other stream.
import { create, type Message } from '@bufbuild/protobuf';
import {
  type ConnectRequest,
  ConnectRequest_OwnCommands as Own,
  ConnectRequestSchema,
  type ConnectResponse,
  DeviceLinkService,
  type RpcRecord,
} from '@kellet/proto/es/kellet/v1/device_link_pb';
import { KelletError, toKelletError } from '../platform/errors.ts';
import { isId, newRequestId } from '../platform/ids.ts';
import type { CallContext, Invoker } from '../platform/rpc.ts';
import type { Publisher } from './device-calls.ts';
import type { Wanted } from './topics.ts';

const ownCommands = { all: Own.own_all, attributeChanges: Own.own_attribute_changes, none: Own.own_none } as const;

/** What a stream reports. */
export interface StreamEvents {
  /** A command; the next one follows when it resolves. */
  readonly command: (command: RpcRecord) => Promise<void>;
  /** The stream has ended before its connection. */
  readonly ended: (error: KelletError) => void;
}

/** One device's stream. Ends with the publisher's signal. */
export class CommandStream {
  /** What is to be wanted from now on; undefined if the service knows it. */
  private latest: ConnectRequest | undefined;
  private rouse: (() => void) | undefined;
  private readonly signal: AbortSignal;

  private constructor(signal: AbortSignal) {
    this.signal = signal;
    signal.addEventListener('abort', () => this.rouse?.(), { once: true });
  }

  /** Opens the stream, which ends the device's older ones. Rejects if it cannot be opened. */
  static async open(
    invoker: Invoker,
    { caller, address, signal }: Publisher,
    wanted: Wanted,
    events: StreamEvents,
  ): Promise<CommandStream> {
    const stream = new CommandStream(signal);
    stream.want(wanted);
    const context: CallContext = {
      ...{ caller, tenantId: caller.tenantId, requestId: newRequestId(), address, signal },
      metadata: new Map(),
      responseMetadata: new Map(),
      afterResponse: () => undefined,
    };
    const replies = invoker.stream(DeviceLinkService.method.connect)(stream.requests(), context);
    await new Promise<void>((resolve, reject) => {
      let isOpen = false;
      const opened = (): void => {
        isOpen = true;
        resolve();
      };
      stream.read(replies as AsyncIterable<Message>, opened, events).then(
        () => reject(new KelletError('UNAVAILABLE', 'the stream of commands has ended')),
        (error: Error) => {
          reject(error);
          if (isOpen && !signal.aborted) events.ended(toKelletError(error));
        },
      );
    });
    return stream;
  }

  /** Changes which commands are wanted. */
  want({ own, children }: Wanted): void {
    // Topics have ids in lower case; a filter with anything else matches none.
    const deviceIds = children === 'all' ? [] : children.filter((id) => isId(id) && id === id.toLowerCase());
    const followChildren = children === 'all' || deviceIds.length > 0;
    const hello = { deviceIds, followChildren, ownCommands: ownCommands[own] };
    // The last one counts, and a device may change its mind faster than the service reads.
    this.latest = create(ConnectRequestSchema, { event: { case: 'hello', value: hello } });
    this.rouse?.();
  }

  private async *requests(): AsyncGenerator<ConnectRequest> {
    while (!this.signal.aborted) {
      const { latest } = this;
      this.latest = undefined;
      if (latest) yield latest;
      else await new Promise<void>((resolve) => (this.rouse = resolve));
    }
  }

  /** Throws once the stream has ended, however it did. */
  private async read(replies: AsyncIterable<Message>, opened: () => void, { command }: StreamEvents): Promise<void> {
    const iterator = (replies as AsyncIterable<ConnectResponse>)[Symbol.asyncIterator]();
    /** Takes the next reply. Apart from the loop, which would keep a command while it waits for room. */
    const takeNext = async (): Promise<boolean> => {
      const next = await iterator.next();
      if (next.done === true) return false;
      const { event } = next.value;
      if (event.case === 'ready') opened();
      return event.case === 'command' ? command(event.value).then(() => true) : true;
    };
    try {
      while (await takeNext());
    } finally {
      await iterator.return?.();
    }
    throw new KelletError('UNAVAILABLE', 'the stream of commands has ended');
  }
}
