// Parses requests to the processor: headers and transactions.
import { messageOf } from '@kellet/verify';
import { ArcProblem } from './arc-problem.ts';
import type { Callback } from './devchain.ts';
import type { HttpRequest } from './http.ts';
import { isTransactionStatus, type TransactionStatus } from './status.ts';

/** A request that violates the API description: 400 with `{message}`. */
export class RequestError extends Error {}

/** Headers that affect a submission. */
export interface ArcHeaders {
  readonly callback: Callback | undefined;
  /** X-WaitFor, by default SEEN_ON_NETWORK. */
  readonly waitFor: TransactionStatus;
  /** X-MaxTimeout, by default 5, at most 30. */
  readonly maximumSeconds: number;
}

/**
 * Reads X-CallbackUrl, X-CallbackToken, X-CallbackBatch, X-FullStatusUpdates, X-WaitFor and X-MaxTimeout.
 * Throws RequestError for a value of the wrong type, ArcProblem 400 for an unsupported URL, status or timeout.
 */
export function parseArcHeaders(header: (name: string) => string | undefined): ArcHeaders {
  const maximumSeconds = wholeNumber('X-MaxTimeout', header('x-maxtimeout')) ?? 5;
  const batch = boolean('X-CallbackBatch', header('x-callbackbatch'));
  const full = boolean('X-FullStatusUpdates', header('x-fullstatusupdates'));
  if (maximumSeconds > 30) throw new ArcProblem(400, 'max timeout can not be higher than 30');
  const url = header('x-callbackurl');
  if (url !== undefined) checkCallbackUrl(url);
  const waitFor = header('x-waitfor') ?? 'SEEN_ON_NETWORK';
  if (!isTransactionStatus(waitFor)) throw new ArcProblem(400, `status not supported\nstatus: ${waitFor}`);
  const callback = url === undefined ? undefined : { url, token: header('x-callbacktoken') ?? '', batch, full };
  return { callback, waitFor, maximumSeconds };
}

function wholeNumber(name: string, text: string | undefined): number | undefined {
  if (text === undefined) return undefined;
  if (!/^\d{1,9}$/.test(text)) throw parameterError(name, text, 'an invalid integer: invalid syntax');
  return Number(text);
}

function boolean(name: string, text: string | undefined): boolean {
  if (text === undefined || text === 'false') return false;
  if (text !== 'true') throw parameterError(name, text, 'an invalid boolean: invalid syntax');
  return true;
}

function parameterError(name: string, text: string, reason: string): RequestError {
  return new RequestError(`parameter "${name}" in header has an error: value ${text}: ${reason}`);
}

/** ARC rejects callbacks to `localhost`, but accepts the loopback address. */
function checkCallbackUrl(url: string): void {
  if (!URL.canParse(url) || !/^https?:$/.test(new URL(url).protocol)) {
    throw new ArcProblem(400, `invalid callback URL\nparse ${JSON.stringify(url)}: invalid URI for request`);
  }
  if (url.includes('http://localhost')) throw new ArcProblem(400, 'callback URL not acceptable');
}

/**
 * Returns the bytes of a body given as JSON (`{"rawTx": hex}`, for POST /v1/txs an array of them), as lines of hex, or
 * as raw bytes. Throws RequestError for a body that is not JSON, does not match the schema, or has another content type,
 * ArcProblem 400 for text that is not hex, and for an empty body.
 */
export function parseArcBody(request: HttpRequest, many: boolean): Uint8Array[] {
  const type = request.header('content-type') ?? '';
  const found = bytesOf(type, request.body, many);
  if (found.every((bytes) => bytes.length === 0)) {
    throw new ArcProblem(400, 'error parsing transactions from request: no transaction found - empty request body');
  }
  return found;
}

function bytesOf(type: string, body: Uint8Array, many: boolean): Uint8Array[] {
  const text = () => Buffer.from(body).toString('utf8');
  if (type.includes('application/json')) return parseTransactionJson(text(), many).map(decodeHex);
  if (type.includes('text/plain')) {
    return (
      many
        ? text()
            .split(/\r?\n/)
            .filter((line) => line !== '')
        : [text()]
    ).map(decodeHex);
  }
  if (type.includes('application/octet-stream')) return [body];
  throw new RequestError(`request body has an error: header Content-Type has unexpected value ${JSON.stringify(type)}`);
}

function parseTransactionJson(text: string, many: boolean): string[] {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new RequestError(`request body has an error: failed to decode request body: ${messageOf(error)}`);
  }
  if (!many) return [rawTransaction(value, '')];
  if (!Array.isArray(value))
    throw new RequestError("request body has an error: doesn't match schema: value must be an array");
  return value.map((item, index) => rawTransaction(item, `/${index}`));
}

function rawTransaction(value: unknown, path: string): string {
  const schema = "request body has an error: doesn't match schema #/components/schemas/TransactionRequest: ";
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new RequestError(`${schema}value must be an object`);
  }
  if (!('rawTx' in value)) throw new RequestError(`${schema}Error at "${path}/rawTx": property "rawTx" is missing`);
  if (typeof value.rawTx !== 'string')
    throw new RequestError(`${schema}Error at "${path}/rawTx": value must be a string`);
  return value.rawTx;
}

function decodeHex(text: string): Uint8Array {
  const wrong = /[^0-9a-f]/iu.exec(text)?.[0];
  if (wrong !== undefined) {
    const code = wrong.codePointAt(0)!.toString(16).toUpperCase().padStart(4, '0');
    throw new ArcProblem(
      400,
      `error parsing transactions from request: encoding/hex: invalid byte: U+${code} '${wrong}'`,
    );
  }
  if (text.length % 2 === 1) {
    throw new ArcProblem(400, 'error parsing transactions from request: encoding/hex: odd length hex string');
  }
  return Buffer.from(text, 'hex');
}
