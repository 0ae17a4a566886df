// Waits for the message with which a device opens its stream.
import type { ConnectRequest, ConnectRequest_Hello } from '@kellet/proto/es/kellet/v1/device_link_pb';
import { invalidArgument } from '../../platform/errors.ts';

/** Time from the opening of a stream to its first message. */
const helloMilliseconds = 10_000;

/**
 * Returns the first message, or undefined if the call ends before it arrives. Throws INVALID_ARGUMENT unless it is `hello` and
 * arrives in time.
 */
export async function firstHello(
  messages: AsyncIterator<ConnectRequest, undefined>,
  signal: AbortSignal,
  milliseconds = helloMilliseconds,
): Promise<ConnectRequest_Hello | undefined> {
  const over = Promise.withResolvers<undefined>();
  const end = (): void => over.resolve(undefined);
  const timer = setTimeout(end, milliseconds);
  signal.addEventListener('abort', end, { once: true });
  if (signal.aborted) end();
  const first = messages.next().catch((error: unknown) => {
    // The client has disconnected.
    if (signal.aborted) return undefined;
    throw error;
  });
  const result = await Promise.race([first, over.promise]).finally(() => {
    clearTimeout(timer);
    signal.removeEventListener('abort', end);
  });
  if (signal.aborted) return undefined;
  const event = result?.value?.event;
  if (event?.case === 'hello') return event.value;
  throw invalidArgument(
    result ? 'the first message must be hello' : `hello is required within ${helloMilliseconds / 1000} seconds`,
  );
}
