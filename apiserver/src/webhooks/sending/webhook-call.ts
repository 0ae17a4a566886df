// Sends an event to a webhook: signed, in bounded time, to allowed addresses only.
import { createHmac } from 'node:crypto';
import {
  BlockedAddressError,
  certificateErrorCode,
  type OutboundGuard,
  type UrlProblem,
} from '../../platform/outbound/outbound-guard.ts';
import { traceRequestTo } from '../../platform/outbound/outgoing-call.ts';

/** A webhook did not accept an event. The message is shown to the owner of the webhook. */
export class WebhookError extends Error {
  /** HTTP status of the response; 0 if there was none. */
  readonly status: number;

  constructor(message: string, { status = 0, cause }: { status?: number; cause?: unknown } = {}) {
    super(message, { cause });
    this.name = 'WebhookError';
    this.status = status;
  }
}

/** What is wrong with the URL of a webhook. */
export const urlProblems: Readonly<Record<UrlProblem, string>> = {
  malformed: 'must be a URL',
  scheme: 'must be an https URL',
  user: 'must not carry a user or a password',
  address: 'leads to no address that may be called',
};

/** A request to a webhook. */
export interface WebhookCall {
  readonly tenantId: string;
  readonly url: string;
  readonly secret: string;
  /** The CloudEvent as JSON. */
  readonly body: string;
}

const defaultTimeoutMilliseconds = 10_000;

/** Returns the value of X-Kellet-Signature. */
const signatureOf = (secret: string, body: string): string =>
  `sha256=${createHmac('sha256', secret).update(body).digest('hex')}`;

/**
 * Returns the status of the response once the server has responded with 2xx; redirects are not followed. Throws
 * WebhookError.
 */
export async function callWebhook(
  { tenantId, url: text, secret, body }: WebhookCall,
  guard: OutboundGuard,
  signal: AbortSignal,
  timeoutMilliseconds = defaultTimeoutMilliseconds,
): Promise<number> {
  // The list of allowed hosts may have changed since the webhook was made.
  const problem = guard.problemOf(text);
  if (problem) throw new WebhookError(`the URL ${urlProblems[problem]}`);
  const url = new URL(text);
  const limit = AbortSignal.any([signal, AbortSignal.timeout(timeoutMilliseconds)]);
  // The server may be anyone's, so the request carries no trace context.
  const status = await traceRequestTo({ method: 'POST', url }, async (setStatus) => {
    const sent = send(url, { tenantId, body, signature: signatureOf(secret, body) }, guard, limit);
    const received = await sent.catch((error: unknown) => {
      throw describe(error, signal, timeoutMilliseconds);
    });
    setStatus(received);
    return received;
  });
  if (status < 200 || status >= 300) throw new WebhookError(`the server responded with ${status}`, { status });
  return status;
}

function send(
  url: URL,
  { tenantId, body, signature }: { tenantId: string; body: string; signature: string },
  guard: OutboundGuard,
  signal: AbortSignal,
): Promise<number> {
  return new Promise((resolve, reject) => {
    const headers = {
      'content-type': 'application/cloudevents+json',
      'content-length': Buffer.byteLength(body),
      'user-agent': 'kellet',
      'x-kellet-signature': signature,
    };
    const request = guard.request(url, { method: 'POST', headers, signal }, tenantId);
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
  return new WebhookError('the server cannot be reached', { cause: error });
}
