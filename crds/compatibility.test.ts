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
    ['a new bound', { type: 'string' }, text, ['.: maxLength was lowered']],
    ['a higher minimum', { type: 'integer' }, { type: 'integer', minimum: 1 }, ['.: minimum was raised']],
    ['another type', text, { ...text, type: 'integer' }, ['.: type changed']],
    ['an additional enum value', { enum: ['A'] }, { enum: ['A', 'B'] }, []],
    ['a removed enum value', { enum: ['A', 'B'] }, { enum: ['A'] }, ['.: enum lost B']],
    ['a new enum', text, { ...text, enum: ['A'] }, ['.: enum is new']],
    ['a new field', { properties: {} }, { properties: { a: text } }, []],
    ['a removed field', { properties: { a: text } }, { properties: {} }, ['.: a was removed']],
    ['a new required field', {}, { required: ['a'] }, ['.: a was not required']],
    ['a field that is no longer required', { required: ['a'] }, {}, []],
    [
      'a new nested rule',
      { properties: { a: { items: {} } } },
      { properties: { a: { items: { 'x-kubernetes-validations': [{ rule: 'self' }] } } } },
      ['.a[]: new rule self'],
    ],
    [
      'a changed list type',
      { 'x-kubernetes-list-type': 'map' },
      { 'x-kubernetes-list-type': 'atomic' },
      ['.: x-kubernetes-list-type changed'],
    ],
    ['a removed map value type', { additionalProperties: text }, {}, ['.: additionalProperties was removed']],
  ];
  for (const [what, earlier, later, wanted] of cases) {
    it(`${wanted.length > 0 ? 'rejects' : 'accepts'} ${what}`, () => {
      expect(incompatibilities(earlier, later)).to.deep.equal(wanted);
    });
  }

  it('accepts everything that previous releases stored', async () => {
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
          expect(now, `${name}: ${version.name} is no longer served`).to.not.equal(undefined);
          const found = incompatibilities(version.schema.openAPIV3Schema, now!.schema.openAPIV3Schema);
          expect(found, `${name} since ${release}`).to.deep.equal([]);
        }
      }
    }
  });
});
