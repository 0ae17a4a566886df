import { readdir, readFile } from 'node:fs/promises';
import { expect } from 'chai';
import { parse } from 'yaml';
import { incompatibilities, type Schema } from './compatibility.ts';
import { crdManifests } from './src/index.ts';

interface Definition {
  metadata: { name: string };
  spec: { scope: string; versions: { name: string; served: boolean; schema: { openAPIV3Schema: Schema } }[] };
}

const text: Schema = { type: 'string', maxLength: 8 };

describe('compatibility of definitions', () => {
  const cases: [string, Schema, Schema, string[]][] = [
    ['nothing', text, text, []],
    ['a longer text', text, { ...text, maxLength: 9 }, []],
    ['a shorter text', text, { ...text, maxLength: 7 }, ['.: maxLength was lowered']],
    ['a bound where none was', { type: 'string' }, text, ['.: maxLength was lowered']],
    ['a higher minimum', { type: 'integer' }, { type: 'integer', minimum: 1 }, ['.: minimum was raised']],
    ['another type', text, { ...text, type: 'integer' }, ['.: type has changed']],
    ['one choice more', { enum: ['A'] }, { enum: ['A', 'B'] }, []],
    ['one choice less', { enum: ['A', 'B'] }, { enum: ['A'] }, ['.: enum lost B']],
    ['choices where none were', text, { ...text, enum: ['A'] }, ['.: enum is new']],
    ['a new field', { properties: {} }, { properties: { a: text } }, []],
    ['a field less', { properties: { a: text } }, { properties: {} }, ['.: a is gone']],
    ['a new required field', {}, { required: ['a'] }, ['.: a was not required']],
    ['a field required no more', { required: ['a'] }, {}, []],
    [
      'a new rule deep inside',
      { properties: { a: { items: {} } } },
      { properties: { a: { items: { 'x-kubernetes-validations': [{ rule: 'self' }] } } } },
      ['.a[]: new rule self'],
    ],
    [
      'a list that is no map any more',
      { 'x-kubernetes-list-type': 'map' },
      { 'x-kubernetes-list-type': 'atomic' },
      ['.: x-kubernetes-list-type has changed'],
    ],
    ['a map of other values', { additionalProperties: text }, {}, ['.: additionalProperties is gone']],
  ];
  for (const [what, earlier, later, wanted] of cases) {
    it(`${wanted.length > 0 ? 'refuses' : 'takes'} ${what}`, () => {
      expect(incompatibilities(earlier, later)).to.deep.equal(wanted);
    });
  }

  it('holds: the definitions take what every release stored', async () => {
    const releases = new URL('released/', import.meta.url);
    const folders = (await readdir(releases)).filter((name) => name.startsWith('v'));
    expect(folders).to.not.deep.equal([]);
    for (const release of folders) {
      for (const [name, path] of Object.entries(crdManifests())) {
        const released = parse(await readFile(new URL(`${release}/${name}.yaml`, releases), 'utf8')) as Definition;
        const current = parse(await readFile(path, 'utf8')) as Definition;
        expect(current.spec.scope).to.equal(released.spec.scope);
        for (const version of released.spec.versions) {
          const now = current.spec.versions.find((candidate) => candidate.name === version.name && candidate.served);
          expect(now, `${name}: ${version.name} is served no more`).to.not.equal(undefined);
          const found = incompatibilities(version.schema.openAPIV3Schema, now!.schema.openAPIV3Schema);
          expect(found, `${name} since ${release}`).to.deep.equal([]);
        }
      }
    }
  });
});
