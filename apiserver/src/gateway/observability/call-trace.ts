// The trace of a request on either public port: started from its headers, named after its route, ended by its response.
// Attributes follow OpenTelemetry's semantic conventions for HTTP and RPC servers.
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { DescMethod } from '@bufbuild/protobuf';
import type { Metadata } from '@grpc/grpc-js';
import { codes, type ErrorCode } from '../../platform/errors.ts';
import { metadataText } from '../../platform/grpc/grpc-context.ts';
import { readTraceContext } from '../../platform/observability/trace-context.ts';
import {
  beginTrace,
  currentTrace,
  endTrace,
  inTrace,
  rpcAttributes,
  type Trace,
} from '../../platform/observability/tracing.ts';
import type { Route } from '../transcoding/routes.ts';

/** Runs a REST request within its trace. Spans omit the query, which may contain secrets. */
export function traceRequest(request: IncomingMessage, response: ServerResponse, work: () => void): void {
  const { method = '', headers, url = '' } = request;
  const received = readTraceContext(
    headers['traceparent'] as string | undefined,
    headers['tracestate'] as string | undefined,
  );
  const trace = beginTrace(method, 'SERVER', received, () => ({
    'http.request.method': method,
    'url.path': url.split('?', 1)[0]!,
    'url.scheme': 'http',
  }));
  if (trace.span) {
    response.once('close', () => {
      const { statusCode } = response;
      const error = response.writableFinished ? (statusCode >= 500 ? String(statusCode) : undefined) : 'cancelled';
      endTrace(trace, { 'http.response.status_code': statusCode }, error);
    });
  }
  inTrace(trace, work);
}

/** Names the trace after the route, once known. */
export function nameRequest(verb: string, route: Route): void {
  const span = currentTrace()?.span;
  if (!span) return;
  span.updateName(`${verb} ${route.path}`);
  span.setAttributes({ 'http.route': route.path, ...rpcAttributes(route.method) });
}

/** Starts the trace of a gRPC call. */
export function traceCall(method: DescMethod, metadata: Metadata): Trace {
  const received = readTraceContext(metadataText(metadata, 'traceparent'), metadataText(metadata, 'tracestate'));
  return beginTrace(`${method.parent.typeName}/${method.name}`, 'SERVER', received, () => rpcAttributes(method));
}

/** Ends the trace of a gRPC call. */
export function endCall(trace: Trace, code: ErrorCode | 'OK'): void {
  const status = code === 'OK' ? 0 : codes[code].grpc;
  // Server errors (semantic conventions for gRPC).
  const isFault = code !== 'OK' && codes[code].http >= 500;
  endTrace(trace, { 'rpc.grpc.status_code': status }, isFault ? code : undefined);
}
