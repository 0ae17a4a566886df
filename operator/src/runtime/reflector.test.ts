// Tests the reflector with recorded responses of a real API server (e2e/recording/record-watch-streams.ts) and various
// failures.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { KubernetesClient, type KubernetesObject, resourceFor } from '@kellet/kubernetes';
import { expect } from 'chai';
import { ReplayServer, type Reply } from '../../../kubernetes/src/testing/replay-server.ts';
import { type Clock, systemClock } from './clock.ts';
import { createLogger } from './logger.ts';
import { createMetrics } from './metrics.ts';
import { Reflector } from './reflector.ts';

interface Recorded {
  status: number;
  contentType: string;
  body: string;
}
const recording = JSON.parse(readFileSync(new URL('./testing/watch-streams.json', import.meta.url), 'utf8')) as Record<
  'listAgain' | 'expired' | 'unauthorized' | 'notFound',
  Recorded
> & {
  pages: [Recorded, Recorded];
  stretches: [Recorded, Recorded];
};

interface ConfigMap extends KubernetesObject {
  data?: Record<string, string>;
}
interface Event {
  type: string;
  object: ConfigMap;
}

const configMaps = resourceFor('v1', 'ConfigMap');

const eventsOf = ({ body }: Recorded): Event[] =>
  body
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as Event);
const lines = (events: readonly Event[]): string => events.map((event) => `${JSON.stringify(event)}\n`).join('');
const versionOf = ({ metadata }: KubernetesObject): string => metadata.resourceVersion!;
const listVersion = ({ body }: Recorded): string =>
  (JSON.parse(body) as { metadata: { resourceVersion: string } }).metadata.resourceVersion;

const pages: Reply[] = recording.pages.map(({ body }) => ({ body }));
const [first, second] = recording.stretches.map(eventsOf) as [Event[], Event[]];
const bookmark = first.at(-1)!;
const quiet: Reply = { body: '', end: 'hang' };

/** The system clock with timers a hundred times as fast, recording the requested delays. */
function hastyClock(): { clock: Clock; delays: number[] } {
  const delays: number[] = [];
  const schedule: Clock['schedule'] = (callback, milliseconds) => {
    if (milliseconds >= 60_000) return () => undefined;
    delays.push(milliseconds);
    return systemClock.schedule(callback, milliseconds / 100);
  };
  return { clock: { ...systemClock, random: () => 0.5, schedule }, delays };
}

/**
 * Runs a reflector on the responses until `done` returns true. Returns the reported changes in short form and the final
 * cache.
 */
async function replay(
  replies: Reply[],
  done: (state: { server: ReplayServer; received: string[] }) => boolean,
  options: { tokenFile?: string } = {},
) {
  const server = new ReplayServer(replies);
  const client = new KubernetesClient({ config: await server.start(options.tokenFile), userAgent: 'test' });
  const { clock, delays } = hastyClock();
  const received: string[] = [];
  const reflector = new Reflector<ConfigMap>({
    client,
    resource: configMaps,
    clock,
    logger: createLogger('silent'),
    metrics: createMetrics(),
    pageSize: 2,
    onChange: ({ type, object }) =>
      void received.push(`${type} ${object.metadata.name} ${object.data?.['value']?.slice(0, 60)}`),
  });
  const stop = new AbortController();
  const running = reflector.run(stop.signal);
  const deadline = Date.now() + 5000;
  while (!done({ server, received })) {
    if (Date.now() > deadline)
      throw new Error(`received ${JSON.stringify(received)} after ${server.requests.length} requests`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  const held = Object.fromEntries(
    [...reflector.values()].map(({ metadata, data }) => [metadata.name, `${metadata.uid} ${data?.['value']}`]),
  );
  stop.abort();
  await running;
  await client.close();
  await server.stop();
  return { server, received, held, delays };
}

/** Objects at the end of the recording. */
const inTheEnd = Object.fromEntries(
  (JSON.parse(recording.listAgain.body) as { items: ConfigMap[] }).items.map(({ metadata, data }) => [
    metadata.name,
    `${metadata.uid} ${data?.['value']}`,
  ]),
);
/** All events of the recording, each once. */
const everything = 3 + first.length - 1 + second.length;
/** The last event of the recording. */
const isComplete = ({ received }: { received: string[] }): boolean => received.length >= everything;

describe('Reflector on recorded streams', () => {
  it('has a recording with all relevant events', () => {
    expect(bookmark.type).to.equal('BOOKMARK');
    expect(new Set([...first, ...second].map(({ type }) => type))).to.include.members(['ADDED', 'MODIFIED', 'DELETED']);
    expect(recording.expired.body).to.include('"code":410');
    expect(recording.unauthorized.status).to.equal(401);
  });

  for (const chunkBytes of [1, 7, 1000, undefined]) {
    it(`processes the same events in chunks of ${chunkBytes ?? 'one response'}`, async () => {
      const cut = (body: string): Reply => ({ body, ...(chunkBytes && { chunkBytes }) });
      const streams = recording.stretches.map(({ body }) => cut(body));
      const { server, received, held } = await replay([...pages, ...streams, quiet], isComplete);
      expect(received.slice(0, 3)).to.deep.equal(['added a 1', 'added b 1', 'added c 1']);
      expect(received.slice(3)).to.deep.equal(
        [...first.slice(0, -1), ...second].map(({ type, object }) => {
          const name = { ADDED: 'added', MODIFIED: 'updated', DELETED: 'deleted' }[type];
          return `${name} ${object.metadata.name} ${object.data?.['value']?.slice(0, 60)}`;
        }),
      );
      expect(held).to.deep.equal(inTheEnd);
      expect(server.lists).to.have.length(2);
    });
  }

  it('resumes from bookmarks, and requests bookmarks and a random timeout for each watch', async () => {
    const { server } = await replay(
      [...pages, { body: recording.stretches[0].body }, quiet],
      ({ server: { watches } }) => {
        return watches.length >= 2;
      },
    );
    expect(server.watches.map(({ query }) => query.get('resourceVersion'))).to.deep.equal([
      listVersion(recording.pages[1]),
      versionOf(bookmark.object),
    ]);
    for (const { query } of server.watches) {
      expect(query.get('allowWatchBookmarks')).to.equal('true');
      expect(Number(query.get('timeoutSeconds'))).to.be.within(300, 600);
    }
  });

  it('neither loses nor repeats events if the connection breaks at any byte', async () => {
    const bytes = Buffer.from(recording.stretches[0].body);
    for (let at = 1; at < bytes.length; at += 977) {
      const cut: Reply = { body: bytes.subarray(0, at), end: 'reset' };
      const whole = bytes.subarray(0, at).lastIndexOf('\n');
      const seen = whole < 0 ? [] : eventsOf({ ...recording.stretches[0], body: bytes.subarray(0, whole).toString() });
      const rest: Reply = { body: lines(first.slice(seen.length)) };
      const replies = [...pages, cut, rest, { body: recording.stretches[1].body }, quiet];
      const { server, received, held } = await replay(replies, isComplete);
      expect(received, `cut at ${at}`).to.have.length(everything);
      expect(held).to.deep.equal(inTheEnd);
      const resumed = seen.length > 0 ? versionOf(seen.at(-1)!.object) : listVersion(recording.pages[1]);
      expect(server.watches[1]!.query.get('resourceVersion')).to.equal(resumed);
      expect(server.lists).to.have.length(2);
    }
  });

  it('continues from the last valid event after a malformed line', async () => {
    const broken: Reply = {
      body: `${lines(first.slice(0, 2))}{"type":"MODIFIED","obj\u0000${lines(first.slice(2, 3))}`,
    };
    const replies = [...pages, broken, { body: lines(first.slice(2)) }, { body: lines(second) }, quiet];
    const { server, held, received } = await replay(replies, isComplete);
    expect(held).to.deep.equal(inTheEnd);
    expect(received).to.have.length(everything);
    expect(server.watches[1]!.query.get('resourceVersion')).to.equal(versionOf(first[1]!.object));
  });

  it('ignores events that the server repeats', async () => {
    const replies = [...pages, { body: lines(first) + lines(first.slice(0, 1)) + lines(second) }, quiet];
    const { received } = await replay(replies, ({ server }) => server.watches.length >= 2);
    expect(received.filter((line) => line.startsWith('updated a 2'))).to.have.length(1);
  });

  for (const [how, expired] of [
    ['in the stream', { body: recording.expired.body }],
    ['as a status', { status: 410, body: JSON.stringify(eventsOf(recording.expired)[0]!.object) }],
  ] as const) {
    it(`lists again if the version has expired (reported ${how}), and reports missed changes`, async () => {
      const replies = [...pages, expired, { body: recording.listAgain.body }, quiet];
      const { server, received, held } = await replay(replies, (state) => state.server.watches.length >= 2);
      expect(held).to.deep.equal(inTheEnd);
      // `c` was deleted and recreated unobserved: a different object with the same name.
      expect(received.slice(3).toSorted()).to.deep.equal(
        ['added c made again', 'deleted b 1', 'deleted c 1', 'updated a 3'].toSorted(),
      );
      expect(server.watches[1]!.query.get('resourceVersion')).to.equal(listVersion(recording.listAgain));
    });
  }

  it('backs off if the server keeps expiring versions', async () => {
    const again = [{ body: recording.listAgain.body }, { body: recording.expired.body }];
    const replies = [...pages, ...again.slice(1), ...Array.from({ length: 8 }, () => again).flat(), quiet];
    const { delays } = await replay(replies, ({ server }) => server.watches.length >= 8);
    const waits = delays.filter((delay) => delay < 60_000);
    expect(waits.length).to.be.greaterThan(5);
    expect(waits.at(-1)!).to.be.greaterThan(waits[0]! * 10);
  });

  it('lists without paging if the list expires between two pages', async () => {
    const forgotten = { status: 410, body: JSON.stringify(eventsOf(recording.expired)[0]!.object) };
    const replies = [pages[0]!, forgotten, { body: recording.listAgain.body }, quiet];
    const { server, held } = await replay(replies, (state) => state.server.watches.length > 0);
    expect(held).to.deep.equal(inTheEnd);
    expect(server.lists.map(({ query }) => query.get('limit'))).to.deep.equal(['2', '2', null]);
  });

  it('honours Retry-After', async () => {
    const busy: Reply = {
      status: 429,
      headers: { 'retry-after': '7' },
      body: JSON.stringify({ kind: 'Status', code: 429, reason: 'TooManyRequests', message: 'later' }),
    };
    const { delays, server } = await replay([...pages, busy, busy, quiet], (state) => state.server.watches.length >= 3);
    expect(delays.filter((delay) => delay === 7000)).to.have.length(2);
    expect(server.lists).to.have.length(2);
  });

  it('backs off up to fifteen seconds, and resets after a success', async () => {
    const failure: Reply = { status: 500, body: 'etcd failed' };
    const failures = Array.from({ length: 10 }, () => failure);
    const replies = [...pages, ...failures, { body: lines(first) }, failure, quiet];
    const { delays } = await replay(replies, ({ server }) => server.watches.length >= 13);
    // Jitter is fixed at its mean: three quarters of the doubled delay.
    const growing = [187.5, 375, 750, 1500, 3000, 6000, 11_250, 11_250, 11_250, 11_250];
    expect(delays).to.deep.equal([...growing, 187.5]);
  });

  it('backs off if the server ends each watch immediately', async () => {
    const ended: Reply = { body: '' };
    const { delays } = await replay([...pages, ended, ended, ended, quiet], ({ server }) => server.watches.length >= 4);
    expect(delays).to.deep.equal([187.5, 375, 750]);
  });

  it('rereads its token after a 401', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'kellet-token-'));
    const tokenFile = join(folder, 'token');
    writeFileSync(tokenFile, 'old');
    const renew = (): void => writeFileSync(tokenFile, 'new\n');
    const refused: Reply = { status: 401, body: recording.unauthorized.body, before: renew };
    try {
      const { server } = await replay([...pages, refused, quiet], (state) => state.server.watches.length >= 2, {
        tokenFile,
      });
      const tokens = server.requests.map(({ authorization }) => authorization);
      expect(tokens[0]).to.equal('Bearer old');
      expect(tokens.at(-1)).to.equal('Bearer new');
      expect(server.lists).to.have.length(2);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });

  it('processes a flood of events in order with a slow reader', async () => {
    const changed = first.find(({ type }) => type === 'MODIFIED')!;
    const flood = Array.from({ length: 5000 }, (_, index): Event => {
      const resourceVersion = String(Number(versionOf(changed.object)) + index);
      const object = { ...changed.object, metadata: { ...changed.object.metadata, resourceVersion } };
      return { type: 'MODIFIED', object: { ...object, data: { value: `${index}` } } };
    });
    const replies = [...pages, { body: lines(flood), chunkBytes: 60_000 }, quiet];
    const { received } = await replay(replies, (state) => {
      const until = Date.now() + 4;
      while (Date.now() < until);
      return state.received.length >= 5003;
    });
    expect(received.slice(3)).to.deep.equal(flood.map((_, index) => `updated a ${index}`));
  });
});
