// Sends an event to a webhook: signed, in bounded time, to allowed addresses only.
import { createHmac } from 'node:crypto';
import {
  BlockedAddressError,
  certificateErrorCode,
  type OutboundGuard,
} from '../../platform/outbound/outbound-guard.ts';
import { traceRequestTo } from '../../platform/outbound/outgoing-call.ts';
import { urlProblems } from '../rules/rule-fields.ts';

/** A webhook did not take an event; the message is for the author of the rule. */
export class WebhookError extends Error {
  constructor(message: string, cause?: unknown) {
    super(message, { cause });
    this.name = 'WebhookError';
  }
}

/** A request to a webhook. */
export interface WebhookCall {
  readonly url: string;
  readonly secret: string;
  /** The CloudEvent as JSON. */
  readonly body: string;
}

const defaultTimeoutMilliseconds = 10_000;

/** Returns the value of X-Kellet-Signature. */
export const signatureOf = (secret: string, body: string): string =>
  `sha256=${createHmac('sha256', secret).update(body).digest('hex')}`;

/** Resolves when the server has responded with a status of 2xx; redirects are not followed. Throws WebhookError. */
export async function callWebhook(
  { url: text, secret, body }: WebhookCall,
  guard: OutboundGuard,
  signal: AbortSignal,
  timeoutMilliseconds = defaultTimeoutMilliseconds,
): Promise<void> {
  // The list of allowed hosts may have changed since the rule was made.
  const problem = guard.problemOf(text);
  if (problem) throw new WebhookError(`the URL ${urlProblems[problem]}`);
  const url = new URL(text);
  const limit = AbortSignal.any([signal, AbortSignal.timeout(timeoutMilliseconds)]);
  // The server may be anyone's, so the request carries no trace context.
  const status = await traceRequestTo({ method: 'POST', url }, async (setStatus) => {
    const sent = send(url, { body, signature: signatureOf(secret, body) }, guard, limit);
    const received = await sent.catch((error: unknown) => {
      throw describe(error, signal, timeoutMilliseconds);
    });
    setStatus(received);
    return received;
  });
  if (status < 200 || status >= 300) throw new WebhookError(`the server responded with ${status}`);
}

function send(
  url: URL,
  { body, signature }: { body: string; signature: string },
  guard: OutboundGuard,
  signal: AbortSignal,
): Promise<number> {
  return new Promise((resolve, reject) => {
    const request = guard.request(url, {
      method: 'POST',
      headers: {
        'content-type': 'application/cloudevents+json',
        'content-length': Buffer.byteLength(body),
        'user-agent': 'kellet',
        'x-kellet-signature': signature,
      },
      signal,
    });
    request.once('response', (response) => {
      // The body is not needed, and may be endless.
      response.destroy();
      resolve(response.statusCode ?? 0);
    });
    request.on('error', reject);
    request.end(body);
  });
}

/** Describes why there is no response, without revealing the network around the data plane. */
function describe(error: unknown, signal: AbortSignal, milliseconds: number): unknown {
  if (signal.aborted) return error;
  if (error instanceof BlockedAddressError) return new WebhookError('the URL leads to no address that may be called');
  const name = error instanceof Error ? error.name : '';
  if (name === 'AbortError' || name === 'TimeoutError')
    return new WebhookError(`the server did not respond within ${milliseconds / 1000} s`);
  const code = certificateErrorCode(error);
  if (code !== undefined) return new WebhookError(`the server has no valid certificate (${code})`);
  return new WebhookError('the server cannot be reached', error);
}
