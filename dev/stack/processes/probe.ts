// Readiness checks over HTTP and HTTPS.
import { readFile } from 'node:fs/promises';
import { request } from 'node:https';

/** Paths of a client's certificate and its key. */
interface ClientCertificate {
  certificate: string;
  key: string;
}

/**
 * Returns the status of a GET of `url`, whose certificate a private authority issued, optionally with a client
 * certificate.
 */
export async function httpsStatus(url: string, authority: string, client?: ClientCertificate): Promise<number> {
  const options = {
    ca: await readFile(authority),
    ...(client ? { cert: await readFile(client.certificate), key: await readFile(client.key) } : {}),
    agent: false as const,
    timeout: 2_000,
  };
  return new Promise((resolve, reject) => {
    const call = request(url, options, (response) => {
      response.resume();
      resolve(response.statusCode ?? 0);
    });
    call.on('timeout', () => call.destroy(new Error(`${url} did not respond`)));
    call.on('error', reject);
    call.end();
  });
}

/** Returns the status of a GET of a plain HTTP URL. */
export async function httpStatus(url: string): Promise<number> {
  const response = await fetch(url, { signal: AbortSignal.timeout(2_000) });
  await response.body?.cancel();
  return response.status;
}
