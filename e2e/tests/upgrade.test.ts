// Objects stored in a real API server under the definitions of each release can be read and written after an upgrade.
import { readdirSync } from 'node:fs';
import { readdir, readFile } from 'node:fs/promises';
import path from 'node:path';
import { expect } from 'chai';
import { parse, parseAllDocuments } from 'yaml';
import { waitUntil } from '../../dev/stack/wait.ts';
import { kubectl } from '../testing/fixtures.ts';

const definitions = path.resolve(import.meta.dirname, '../../crds');
const releases = path.join(definitions, 'released');

interface Stored {
  apiVersion: string;
  kind: string;
  metadata: { name: string; resourceVersion?: string; generation?: number };
  spec: object;
  status: object;
}

interface Definition {
  metadata: { name: string };
  spec: { names: object };
}

/** Loads the definitions of a folder with a separate API group, so that no operator processes the objects. */
async function definitionsOf(folder: string, group: string): Promise<Definition[]> {
  const files = (await readdir(folder)).filter((name) => name.endsWith('.yaml') && name !== 'objects.yaml');
  return Promise.all(
    files.map(async (name) => {
      const text = await readFile(path.join(folder, name), 'utf8');
      const definition = parse(text.replaceAll(/\bkellet\.dev\b(?!\/)/g, group)) as Definition;
      definition.spec.names = { ...definition.spec.names, shortNames: [], categories: [] };
      return definition;
    }),
  );
}

describe('an upgrade of the definitions', () => {
  const folders = readdirSync(releases).filter((name) => name.startsWith('v'));

  for (const release of folders) {
    it(`reads and writes objects stored under ${release}`, async () => {
      const kube = await kubectl();
      const group = `${release.replaceAll('.', '-')}.upgrade.test`;
      const old = await definitionsOf(path.join(releases, release), group);
      const text = await readFile(path.join(releases, release, 'objects.yaml'), 'utf8');
      const objects = parseAllDocuments(text).map((document) => ({
        ...(document.toJS() as Stored),
        apiVersion: `${group}/v1alpha1`,
      }));
      expect(objects).to.have.length(old.length);
      const kindOf = ({ kind }: Stored) => `${kind.toLowerCase()}.${group}`;
      const read = (object: Stored) => kube.json<Stored>(['get', kindOf(object), object.metadata.name]);
      try {
        await kube.apply(...old);
        // A definition is served shortly after it was accepted.
        await waitUntil(() => kube.apply(...objects.map(({ status: _, ...object }) => object)).catch(() => undefined), {
          what: 'the old definitions',
        });
        for (const { kind, metadata, status } of objects) {
          const patch = ['patch', `${kind.toLowerCase()}.${group}`, metadata.name, '--subresource=status'];
          await kube.run([...patch, '--type=merge', '--patch', JSON.stringify({ status })]);
        }
        const before = await Promise.all(objects.map(read));
        before.forEach((stored, index) => expect(stored.status).to.deep.equal(objects[index]!.status));

        await kube.apply(...(await definitionsOf(definitions, group)));
        for (const [index, object] of objects.entries()) {
          const { spec, status } = await read(object);
          expect({ spec, status }).to.deep.equal({ spec: before[index]!.spec, status: before[index]!.status });
          // Writing the whole object back runs all validations of the new definition.
          const annotated = {
            ...before[index],
            metadata: { name: object.metadata.name, annotations: { seen: 'true' } },
          };
          await waitUntil(() => kube.apply(annotated).catch(() => undefined), { what: 'the new definitions' });
          const after = await read(object);
          expect(after.spec).to.deep.equal(spec);
          expect(after.metadata.generation).to.equal(before[index]!.metadata.generation);
        }
      } finally {
        const names = old.map(({ metadata }) => metadata.name);
        await kube.run(['delete', 'crd', '--ignore-not-found', '--wait=false', ...names]);
      }
    });
  }
});
