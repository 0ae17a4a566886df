import { expect } from 'chai';
import { KubernetesClient } from './client.ts';
import { listPages } from './list-pages.ts';
import { type KubernetesObject, secrets } from './resource.ts';
import { ReplayServer, type Reply } from './testing/replay-server.ts';

/** Returns a page of objects of so many bytes each. */
const page = (names: readonly string[], next: string, bytes = 10): Reply => {
  const items = names.map((name) => ({ metadata: { name, annotations: { a: 'x'.repeat(bytes) } } }));
  return { body: JSON.stringify({ metadata: { resourceVersion: '1', continue: next }, items }) };
};

const cases: [what: string, objects: number | undefined, replies: Reply[], asked: string[], names: string][] = [
  ['has the pages that were asked for', 2, [page(['a', 'b'], 'n'), page(['c'], '')], ['2 null', '2 n'], 'a b, c'],
  [
    'has fewer objects in a page where they are large, and more again afterwards',
    4,
    [page(['a', 'b'], 'n', 500), page(['x'], '', 2000), page(['c'], 'm', 900), page(['d'], 'o'), page(['e'], '')],
    ['4 null', '4 n', '2 n', '3 m', '4 o'],
    'a b, c, d, e',
  ],
  [
    'has pages if it is too large to be read without them',
    undefined,
    [page(['x'], '', 2000), page(['a'], '')],
    ['null null', '500 null'],
    'a',
  ],
];

describe('the list of a collection', () => {
  for (const [what, objects, replies, asked, names] of cases) {
    it(what, async () => {
      const server = new ReplayServer(replies);
      const client = new KubernetesClient({ config: await server.start(), userAgent: 'test' });
      const found: string[] = [];
      try {
        const options = { namespace: 'ns', objects, bytes: 1500 };
        for await (const { items } of listPages<KubernetesObject>(client, secrets, options)) {
          found.push(items.map(({ metadata }) => metadata.name).join(' '));
        }
      } finally {
        await client.close();
        await server.stop();
      }
      expect(found.join(', ')).to.equal(names);
      expect(server.lists.map(({ query }) => `${query.get('limit')} ${query.get('continue')}`)).to.deep.equal(asked);
    });
  }

  it('fails if a single object is too large', async () => {
    const server = new ReplayServer([page(['x'], '', 2000)]);
    const client = new KubernetesClient({ config: await server.start(), userAgent: 'test' });
    try {
      const pages = listPages<KubernetesObject>(client, secrets, { namespace: 'ns', objects: 2, bytes: 1500 });
      const error = await pages.next().catch((thrown: unknown) => thrown);
      expect(error).to.include({ failure: 'tooLarge', message: 'the response is larger than 1500 bytes' });
    } finally {
      await client.close();
      await server.stop();
    }
  });
});
