// REST on port 8080. Handles each request in a fixed order: preflight → route → authenticate → rate limit → authorise →
// call. The rest of this file is HTTP connection handling.
import type { IncomingMessage, ServerResponse } from 'node:http';
import { create, type DescMethod, type Message } from '@bufbuild/protobuf';
import { TelemetryService } from '@kellet/proto/es/kellet/v1/telemetry_pb';
import { addressBlock } from '../../platform/addresses/address-block.ts';
import { codes, unavailable } from '../../platform/errors.ts';
import { newRequestId } from '../../platform/ids.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import { currentTrace, nameTrace } from '../../platform/observability/tracing.ts';
import { RequestBytes } from '../../platform/request-bytes.ts';
import { type Caller, type Invoker, isOpenEnded } from '../../platform/rpc.ts';
import type { Admission } from '../admission/admission-steps.ts';
import { credentialOf } from '../admission/authenticate.ts';
import { plainAddress } from '../admission/authorize.ts';
import { type AddressOf, addressOfRequest } from '../admission/client-address.ts';
import { type ProofOf, proofOfRequest } from '../admission/connection-proof.ts';
import { type OpenCallParts, whileAllowed } from '../admission/open-call.ts';
import type { BodyBounds, BodyMemory } from '../memory/body-memory.ts';
import type { DecodingTurns } from '../memory/decoding-turns.ts';
import type { LargeRequests } from '../memory/large-requests.ts';
import { type AccessEntry, type AccessLog, codeOfStatus } from '../observability/access-log.ts';
import type { CallMetrics } from '../observability/call-metrics.ts';
import { nameRequest, traceRequest } from '../observability/call-trace.ts';
import { type Match, type Route, type RouteTable, streamsRequests, streamsResponses } from '../transcoding/routes.ts';
import {
  bodyMessages,
  decodeRequest,
  encodeResponse,
  encodeResponses,
  type RequestReaders,
} from '../transcoding/transcode.ts';
import { corsHeaders, isPreflight, preflightHeaders } from './cors.ts';
import { timeoutMilliseconds, withinDeadline } from './deadline.ts';
import { notFoundRoute } from './gateway-routes.ts';
import { type HttpLimits, HttpServer, type Refusal } from './http-server.ts';
import { namespaceHeader, requestIdOf } from './metadata.ts';
import { rawChunk, wantsRawChunk } from './raw-chunk.ts';
import { readBody, RestContext, streamBody } from './rest-call.ts';
import { isUnchanged, sendError, sendResponse, sendStream, sendUnchanged } from './rest-response.ts';

/** Maximum body size in bytes, of telemetry requests and of all others. */
const telemetryBodyLimit = 4 * 1024 * 1024;
const bodyLimit = 1024 * 1024;
/** Larger responses count towards the tenant's memory until the client has read them. */
const smallResponse = 64 * 1024;

/** Dependencies of the REST server. */
export interface RestParts extends OpenCallParts {
  readonly routes: RouteTable;
  readonly admission: Admission;
  readonly invoker: Invoker;
  readonly metrics: CallMetrics;
  readonly logger: Logger;
  readonly dashboardOrigin: string;
  readonly addressOf: AddressOf;
  readonly proofOf: ProofOf;
  readonly accessLog: AccessLog;
  readonly limits: Partial<HttpLimits>;
  readonly memory: BodyMemory;
  readonly large: LargeRequests;
  readonly turns: DecodingTurns;
  /** Body readers for methods whose request is only a body. */
  readonly readers?: RequestReaders | undefined;
  /** Handles the few routes that are not calls (health, callbacks). Returns false for any other route. */
  readonly cold: (request: IncomingMessage, response: ServerResponse, path: string) => boolean;
}

/** Creates the server; the caller starts listening. */
export function createRestServer(parts: RestParts): HttpServer {
  const take = (request: IncomingMessage, response: ServerResponse): void => {
    traceRequest(request, response, () => {
      handle(parts, request, response).catch((error: unknown) => {
        // Reached only if the response cannot be written, for example because of an invalid header.
        parts.logger.error({ err: error }, 'response not written');
        response.destroy();
      });
    });
  };
  const refused = ({ code, requestId, socket, request }: Refusal): void => {
    const entry = parts.accessLog.begin('rest', request?.method ?? '', requestId, undefined);
    entry.address = request ? addressOfRequest(parts.addressOf, request) : plainAddress(socket.remoteAddress ?? '');
    entry.code = code;
    entry.status = codes[code].http;
    parts.accessLog.end(entry);
  };
  return new HttpServer(take, { limits: parts.limits, upgrades: isWebSocket, refused });
}

/** The live feed and MQTT are the only upgrade requests that are supported. */
const isWebSocket = ({ url = '', headers }: IncomingMessage): boolean =>
  /^\/(ws|mqtt)(\?|$)/.test(url) && headers.upgrade?.toLowerCase() === 'websocket';

/**
 * Returns path and query of a request target. Clients that use the server as a proxy send a whole URL (RFC 9112,
 * 3.2.2).
 */
const originForm = (target: string): string =>
  target.startsWith('/') ? target : target.replace(/^https?:\/\/[^/?#]*(?=[/?#]|$)/i, '').replace(/^(?!\/)/, '/');

/** Handles one request; anything thrown becomes the response. */
async function handle(parts: RestParts, request: IncomingMessage, response: ServerResponse): Promise<void> {
  const { headers, method = '' } = request;
  const url = (request.url = originForm(request.url ?? ''));
  const requestId = requestIdOf(headers['x-request-id'] as string | undefined) ?? newRequestId();
  response.setHeader('x-request-id', requestId);
  nameTrace(requestId);
  // Shared caches treat responses to `Authorization` specially (RFC 9111, 3.5), but not those to `X-API-Key`: without
  // this they could serve one tenant's response to another.
  response.setHeader('cache-control', 'no-store');
  // What devices and users have sent is never a script or a page, whatever it looks like.
  response.setHeader('x-content-type-options', 'nosniff');
  const extra = new Map<string, string>();
  let called: Match | undefined;
  const address = addressOfRequest(parts.addressOf, request);
  const entry = parts.accessLog.begin(
    'rest',
    method,
    requestId,
    parts.accessLog.isOn ? currentTrace()?.traceparent : undefined,
  );
  entry.address = address;
  if (parts.accessLog.isOn) response.once('close', () => endEntry(parts.accessLog, entry, request, response));
  try {
    const { origin } = headers;
    if (isPreflight(method, headers)) {
      return void response.writeHead(204, preflightHeaders(origin, parts.dashboardOrigin).flat()).end();
    }
    for (const [name, value] of corsHeaders(origin, parts.dashboardOrigin)) response.setHeader(name, value);

    const mark = url.indexOf('?');
    const path = mark < 0 ? url : url.slice(0, mark);
    if (parts.cold(request, response, path)) {
      entry.route = path;
      return;
    }
    const match = (called = parts.routes.match(method, path));
    if (!match) throw notFoundRoute();
    entry.route = match.route.path;
    entry.method = match.route.method;
    entry.variables = match.variables;
    entry.userAgent = headers['user-agent'] ?? '';
    nameRequest(method, match.route);

    const timeout = headers['grpc-timeout'] as string | undefined;
    const deadline = timeout === undefined ? undefined : Date.now() + timeoutMilliseconds(timeout);
    const credential =
      credentialOf(headers.authorization, headers['x-api-key'] as string | undefined) ??
      proofOfRequest(parts.proofOf, request);
    const { route } = match;
    const namespace = headers[namespaceHeader] as string | undefined;
    const admitted = await parts.admission.admit(route.access, credential, address, extra, namespace, entry);

    const streamsBody = streamsRequests(route.method);
    const bounds = boundsOf(parts.memory, route, admitted, address);
    const sent = new RequestBytes(streamsBody ? new Uint8Array() : await readBody(request, bounds));
    entry.bytesIn = sent.length;
    const query = mark < 0 ? '' : url.slice(mark + 1);
    const contents = isIngest(route) ? 'points' : 'others';
    // Polls hold nothing of their bodies, and would keep their places for long.
    const decoded = isOpenEnded(route.method) ? 0 : sent.length;
    const encoded = await parts.large.run(admitted.tenantId, decoded, contents, async () => {
      const turn =
        sent.length > 0 ? parts.turns.enter(admitted.tenantId || addressBlock(address), sent.length) : undefined;
      if (turn) await heldUntil(turn, sent, bounds);
      const message = decodeBody(parts, match, sent, { query, contentType: headers['content-type'] ?? '' });
      const caller = await parts.admission.readmit(route.access, admitted, { credential, namespace }, entry);
      await parts.admission.admitDevice(route.access, route.method, message, caller, entry);

      const context = new RestContext(request, response, {
        ...{ caller, requestId, address, deadline },
        responseMetadata: extra,
      });
      const stream = () => {
        const input = streamsBody ? bodyMessages(route, message, streamBody(request, context.signal)) : message;
        return parts.invoker.stream(route.method)(input, context);
      };
      const call = async (input: Message): Promise<Message> =>
        streamsBody
          ? create(route.method.output, await (stream() as Promise<Message>))
          : parts.invoker.unary(route.method, input, context);
      const respond = async () => {
        if (wantsRawChunk(route, headers)) return rawChunk(message, headers, call);
        if (!streamsResponses(route.method)) return encodeResponse(route, await call(message));
        const messages = createEach(route.method, stream() as AsyncIterable<Message>);
        await sendStream(response, extra, encodeResponses(route, messages));
        return undefined;
      };
      const run = () => whileAllowed(parts, route.method, { credential, namespace }, context, respond);
      return deadline === undefined ? run() : withinDeadline(deadline, () => context.abort(), run);
    });
    if (encoded) {
      for (const [name, value] of encoded.headers ?? []) extra.set(name, value);
      const etag = encoded.status === undefined ? extra.get('etag') : undefined;
      if (etag !== undefined && isUnchanged(headers['if-none-match'], etag)) sendUnchanged(response, extra);
      else {
        if (encoded.body.length > smallResponse)
          parts.memory.holdResponse(admitted.tenantId, response, encoded.body.length);
        // Only single sign-on redirects.
        const status = encoded.status ?? (extra.has('location') ? 302 : 200);
        sendResponse(response, status, extra, encoded.contentType, encoded.body);
      }
    }
    parts.metrics.observe(route.method, 'rest', 'OK', entry.started);
  } catch (thrown) {
    const error = sendError(response, thrown, requestId, extra, parts.logger);
    // A streamed response that is not complete.
    if (!response.writableEnded) response.destroy();
    entry.code = error.code;
    parts.metrics.observe(called?.route.method, 'rest', error.code, entry.started);
  }
}

/** Counts a body as long as it waits for its turn. Throws UNAVAILABLE if memory is short, and it has waited for longer than others. */
async function heldUntil(turn: Promise<void>, sent: RequestBytes, { budget, owner }: BodyBounds): Promise<void> {
  let evict: (error: Error) => void;
  const evicted = new Promise<never>((_resolve, reject) => (evict = reject));
  const hold = budget.hold(owner, () => {
    sent.take();
    evict(unavailable('too many bodies are waiting: try again'));
  });
  hold.set(sent.length);
  try {
    await Promise.race([turn, evicted]);
  } finally {
    hold.release();
  }
}

/** Decodes a body, to which nothing refers while the call waits. */
function decodeBody(
  { readers }: RestParts,
  match: Match,
  sent: RequestBytes,
  { query, contentType }: { readonly query: string; readonly contentType: string },
): Message {
  const body = sent.take()!;
  const decode = () => decodeRequest(match, { query, body, contentType });
  const read = query === '' && isWholeBody(match.route) ? readers?.get(match.route.method) : undefined;
  return read?.(body, decode) ?? decode();
}

async function* createEach(method: DescMethod, messages: AsyncIterable<Message>): AsyncGenerator<Message> {
  for await (const message of messages) yield create(method.output, message);
}

/** Ends the log entry of a request whose response has been read or whose client has disconnected. */
function endEntry(log: AccessLog, entry: AccessEntry, request: IncomingMessage, response: ServerResponse): void {
  const isFinished = response.writableFinished;
  entry.status = isFinished ? response.statusCode : codes.CANCELLED.http;
  if (!isFinished) entry.code = 'CANCELLED';
  else if (entry.code === 'OK') entry.code = codeOfStatus(entry.status);
  entry.bytesIn ||= Number(request.headers['content-length'] ?? 0);
  entry.bytesOut = isFinished && entry.verb !== 'HEAD' ? Number(response.getHeader('content-length') ?? 0) : 0;
  log.end(entry);
}

function boundsOf(memory: BodyMemory, route: Route, caller: Caller, address: string): BodyBounds {
  if (caller.kind === 'public') return memory.ofStranger(address);
  return memory.ofCaller(caller.tenantId, isIngest(route) ? telemetryBodyLimit : bodyLimit);
}

const isWholeBody = ({ body, template }: Route): boolean => body === '*' && template.variables.length === 0;

const isIngest = ({ method }: Route): boolean => method === TelemetryService.method.ingest;
