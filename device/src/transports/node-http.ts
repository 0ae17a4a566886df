// Sends requests with Node's HTTP client: shared sockets, client certificates, and less work per request than fetch.
import http from 'node:http';
import https from 'node:https';
import type { HttpResponse, SendHttp } from './rest.ts';
import type { TlsOptions } from './transport.ts';

/** Returns a function that sends requests over at most so many sockets, and one that closes them. */
export function nodeHttp(tls: TlsOptions = {}, maxSockets = Infinity): { send: SendHttp; close: () => void } {
  const options = { keepAlive: true, maxSockets };
  const plain = new http.Agent(options);
  const secure = new https.Agent({ ...options, ...tls });
  const send: SendHttp = ({ method, url, headers, body, signal }) =>
    new Promise<HttpResponse>((resolve, reject) => {
      signal.throwIfAborted();
      const isSecure = url.startsWith('https:');
      const request = (isSecure ? https : http).request(
        url,
        {
          ...{ method, agent: isSecure ? secure : plain },
          headers: { ...headers, ...(body !== undefined && { 'content-length': Buffer.byteLength(body) }) },
        },
        (response) => {
          const parts: Buffer[] = [];
          response.on('data', (part: Buffer) => parts.push(part));
          response.on('error', reject);
          response.on('end', () =>
            resolve({
              status: response.statusCode ?? 0,
              header: (name) => response.headers[name]?.toString(),
              body: Buffer.concat(parts),
            }),
          );
        },
      );
      request.on('error', reject);
      // Node's own listening to a signal costs as much as the rest of a small request.
      const abort = (): void => void request.destroy(signal.reason as Error);
      signal.addEventListener('abort', abort);
      request.on('close', () => signal.removeEventListener('abort', abort));
      request.end(body);
    });
  const close = (): void => {
    plain.destroy();
    secure.destroy();
  };
  return { send, close };
}
