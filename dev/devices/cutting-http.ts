// Sends requests and breaks the connection in the middle of some downloads, as bad networks do.
import { request as sendRequest } from 'node:http';
import { nodeHttp, type SendHttp } from '@kellet/device';

/**
 * Sends a request over sockets that all devices of the process share. Fetch takes several times as long for each, and so many long
 * polls of a large fleet that a busy machine falls behind for good.
 */
export const sendShared: SendHttp = nodeHttp().send;

/**
 * Returns a function that sends requests for chunks with `sendChunk` and others with `sendShared`, and destroys the socket during the
 * chunk that contains one of these bytes of an artifact, once per number.
 */
export function cuttingHttp(cutAfterBytes: readonly number[], sendChunk: SendHttp): SendHttp {
  const cuts = [...cutAfterBytes].sort((a, b) => a - b);
  return (request) => {
    if (!request.url.includes('/ota/chunk?')) return sendShared(request);
    if (cuts[0] === undefined) return sendChunk(request);
    const { searchParams } = new URL(request.url);
    const end = Number(searchParams.get('offset')) + Number(searchParams.get('length'));
    if (cuts[0] >= end) return sendChunk(request);
    cuts.shift();
    return new Promise((_resolve, reject) => {
      const { headers, signal } = request;
      const call = sendRequest(request.url, { headers, signal }, (response) => {
        response.on('error', reject);
        response.once('data', () => {
          reject(new Error('the connection was cut'));
          // Without an error: the socket may no longer be this request's, and then nobody listens for its errors.
          call.destroy();
        });
      });
      call.on('error', reject);
      call.end();
    });
  };
}
