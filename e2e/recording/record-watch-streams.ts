// Records the responses of a real API server to lists and watches, byte for byte, for the reflector's tests:
//
//   node e2e/recording/record-watch-streams.ts
//
// Starts a separate cluster and writes operator/src/runtime/testing/watch-streams.json. Run again when the version of
// Kubernetes changes; the tests read names and values from the recording.
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { writeFile } from 'node:fs/promises';
import type { IncomingMessage } from 'node:http';
import { request, type RequestOptions } from 'node:https';
import { join } from 'node:path';
import { KubeConfig } from '@kubernetes/client-node';
import { startKubernetes } from '../../dev/stack/stack.ts';

interface Result {
  status: number;
  contentType: string;
  body: string;
}

const namespace = 'default';
const selector = 'kellet.dev/recorded=yes';
const path = `/api/v1/configmaps`;
const stack = await startKubernetes({ fresh: true, report: (line) => console.error(line) });
try {
  const config = new KubeConfig();
  config.loadFromFile(stack.kubeconfig);

  /** Sends a request; `until` ends a stream once it returns true for the received lines. */
  const send = async (
    method: string,
    target: string,
    options: { body?: object; until?: (body: string) => boolean; credential?: string } = {},
  ): Promise<Result> => {
    const { body, until, credential } = options;
    const tls: RequestOptions = {};
    await config.applyToHTTPSOptions(tls);
    const headers: Record<string, string> = { ...(body && { 'content-type': 'application/json' }) };
    if (credential !== undefined) {
      headers['authorization'] = `Bearer ${credential}`;
      delete tls.cert;
      delete tls.key;
    }
    const outgoing = request(new URL(target, config.getCurrentCluster()!.server), {
      ...tls,
      method,
      headers,
      agent: false,
    });
    outgoing.end(body && JSON.stringify(body));
    const [response] = (await once(outgoing, 'response')) as [IncomingMessage];
    let text = '';
    response.setEncoding('utf8');
    for await (const chunk of response) {
      text += chunk as string;
      if (text.endsWith('\n') && until?.(text)) break;
    }
    outgoing.destroy();
    return { status: response.statusCode!, contentType: response.headers['content-type'] ?? '', body: text };
  };
  const query = (parameters: Record<string, string>): string =>
    `${path}?${new URLSearchParams({ labelSelector: selector, ...parameters }).toString()}`;
  const object = (name: string, value: string) => ({
    apiVersion: 'v1',
    kind: 'ConfigMap',
    metadata: { name, labels: { 'kellet.dev/recorded': 'yes' } },
    data: { value },
  });
  const collection = `/api/v1/namespaces/${namespace}/configmaps`;
  const change = {
    create: (name: string, value: string) => send('POST', collection, { body: object(name, value) }),
    replace: (name: string, value: string) => send('PUT', `${collection}/${name}`, { body: object(name, value) }),
    delete: (name: string) => send('DELETE', `${collection}/${name}`),
  };
  const versionOf = (list: Result): string =>
    (JSON.parse(list.body) as { metadata: { resourceVersion: string } }).metadata.resourceVersion;

  for (const name of ['a', 'b', 'c']) await change.create(name, '1');
  const first = await send('GET', query({ limit: '2' }));
  const token = (JSON.parse(first.body) as { metadata: { continue: string } }).metadata.continue;
  const second = await send('GET', query({ limit: '2', continue: token }));
  const watchQuery = { watch: 'true', allowWatchBookmarks: 'true', resourceVersion: versionOf(second) };
  // Two parts, as after a reconnect; the first ends with a bookmark, which arrives about once a minute.
  const stretches: Result[] = [];
  const bookmarked = send('GET', query({ ...watchQuery, timeoutSeconds: '300' }), {
    until: (body) => body.includes('"BOOKMARK"'),
  });
  await change.replace('a', '2 – ein Wert in UTF-8: Ω🛰');
  await change.delete('b');
  await change.create('d', randomBytes(3000).toString('base64'));
  await change.delete('c');
  await change.create('c', 'made again');
  console.error('waiting for a bookmark, about a minute');
  stretches.push(await bookmarked);
  const bookmark = JSON.parse(stretches[0]!.body.trim().split('\n').at(-1)!) as {
    object: { metadata: { resourceVersion: string } };
  };
  const rest = send('GET', query({ ...watchQuery, resourceVersion: bookmark.object.metadata.resourceVersion }), {
    until: (body) => body.includes('"DELETED"'),
  });
  await change.replace('a', '3');
  await change.delete('d');
  stretches.push(await rest);
  const listAgain = await send('GET', query({ limit: '500' }));

  // A restarted server has no history.
  await stack.supervisor.kill('kube-apiserver');
  await stack.supervisor.waitReady('kube-apiserver');
  const recording = {
    version: (JSON.parse((await send('GET', '/version')).body) as { gitVersion: string }).gitVersion,
    pages: [first, second],
    stretches,
    listAgain,
    /** A watch from an expired version. */
    expired: await send('GET', query({ watch: 'true', resourceVersion: '1' }), {
      until: () => true,
    }),
    unauthorized: await send('GET', query({}), { credential: 'expired' }),
    notFound: await send('GET', `${collection}/nothing`),
  };
  const file = join(import.meta.dirname, '../../operator/src/runtime/testing/watch-streams.json');
  await writeFile(file, `${JSON.stringify(recording, null, 2)}\n`);
  console.error(`wrote ${file}`);
} finally {
  await stack.stop();
}
