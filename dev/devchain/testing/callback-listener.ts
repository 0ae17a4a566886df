// An HTTP server that records callbacks.
import { createServer, type IncomingHttpHeaders } from 'node:http';
import type { AddressInfo } from 'node:net';

export interface ReceivedCallback {
  readonly path: string;
  readonly headers: IncomingHttpHeaders;
  /** The unparsed body, for the signature. */
  readonly text: string;
  readonly body: Record<string, unknown>;
  /** Milliseconds of the clock. */
  readonly at: number;
}

export interface CallbackListener {
  readonly url: string;
  readonly received: ReceivedCallback[];
  /** The statuses of the next responses, one each; then 200. */
  readonly statuses: number[];
  close(): Promise<void>;
}

export async function listenForCallbacks(): Promise<CallbackListener> {
  const received: ReceivedCallback[] = [];
  const statuses: number[] = [];
  const server = createServer((request, response) => {
    const chunks: Buffer[] = [];
    request.on('data', (chunk: Buffer) => chunks.push(chunk));
    request.on('end', () => {
      const text = Buffer.concat(chunks).toString('utf8');
      const body = JSON.parse(text) as Record<string, unknown>;
      received.push({ path: request.url ?? '', headers: request.headers, text, body, at: Date.now() });
      response.writeHead(statuses.shift() ?? 200).end();
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    received,
    statuses,
    close: () => new Promise((resolve) => server.close(() => resolve())),
  };
}
