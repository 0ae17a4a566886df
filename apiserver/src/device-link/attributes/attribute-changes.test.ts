import { expect } from 'chai';
import { applyUpdate, attributeLimits, checkUpdate, type StoredAttributes } from './attribute-changes.ts';

describe('an update of attributes', () => {
  const stored: StoredAttributes = {
    interval: { value: 60, updated_at: 1 },
    place: { value: { floor: 2, room: 'b' }, updated_at: 2 },
  };
  const cases: [title: string, update: Parameters<typeof applyUpdate>[2], expected: unknown][] = [
    ['adds', { mode: 'eco' }, { changed: { mode: 'eco' }, removed: [] }],
    ['replaces', { interval: 30 }, { changed: { interval: 30 }, removed: [] }],
    ['removes', { interval: null }, { changed: {}, removed: ['interval'] }],
    ['does both', { interval: null, mode: [] }, { changed: { mode: [] }, removed: ['interval'] }],
    ['ignores an equal number', { interval: 60 }, undefined],
    ['ignores an equal object in another order', { place: { room: 'b', floor: 2 } }, undefined],
    ['tells a number from a text', { interval: '60' }, { changed: { interval: '60' }, removed: [] }],
    ['replaces an object whole', { place: { floor: 2 } }, { changed: { place: { floor: 2 } }, removed: [] }],
    ['keeps null within a value', { place: { floor: null } }, { changed: { place: { floor: null } }, removed: [] }],
    ['ignores the removal of an unknown name', { mode: null }, undefined],
    ['ignores nothing', {}, undefined],
    ['sets false and 0', { on: false, level: 0 }, { changed: { on: false, level: 0 }, removed: [] }],
    [
      'takes names of Object.prototype',
      JSON.parse('{"__proto__": 1, "constructor": 2}') as Record<string, number>,
      { changed: JSON.parse('{"__proto__": 1, "constructor": 2}') as unknown, removed: [] },
    ],
  ];
  for (const [title, update, expected] of cases) {
    it(title, () => expect(applyUpdate('shared', stored, update, 9)?.delta).to.deep.equal(expected));
  }

  it('changes the time of what it sets and of nothing else', () => {
    expect(
      applyUpdate('shared', stored, { interval: 30, place: { room: 'b', floor: 2 } }, 9)?.attributes,
    ).to.deep.equal({
      interval: { value: 30, updated_at: 9 },
      place: stored['place'],
    });
  });

  const many = (count: number, value: unknown = 1) =>
    Object.fromEntries(Array.from({ length: count }, (_, index) => [`n${index}`, value])) as Record<string, number>;
  const full = Object.fromEntries(
    Object.keys(many(attributeLimits.names)).map((name) => [name, { value: 1, updated_at: 1 }]),
  );

  it('is refused if the scope would have too many attributes', () => {
    expect(() => applyUpdate('client', full, { more: 1 }, 9)).to.throw('client: a device has at most 256 attributes');
    expect(applyUpdate('client', full, { more: 1, n0: null }, 9)?.delta.removed).to.deep.equal(['n0']);
  });

  it('is refused if the scope would be too large', () => {
    const large = 'x'.repeat(attributeLimits.valueBytes - 2);
    const of = (count: number) =>
      Object.fromEntries(Object.keys(many(count)).map((name) => [name, { value: large, updated_at: 1 }]));
    expect(applyUpdate('server', of(2), { more: large }, 9)).not.to.equal(undefined);
    expect(() => applyUpdate('server', of(3), { more: large }, 9)).to.throw('take at most 65536 bytes');
    expect(applyUpdate('server', of(5), { n0: null }, 9), 'what shrinks is accepted').not.to.equal(undefined);
  });

  const malformed: [title: string, update: Parameters<typeof checkUpdate>[1], message: string][] = [
    ['too many names', many(257), 'shared must have at most 256 attributes'],
    ['an empty name', { '': 1 }, 'shared: the name of an attribute is required'],
    ['a long name', { ['x'.repeat(129)]: 1 }, 'shared: the name of an attribute must have at most 128 characters'],
    ['NUL in a name', { 'a\0': 1 }, 'shared: the name of an attribute must not contain NUL'],
    ['NUL in a value', { a: ['\0'] }, 'shared["a"] must not contain NUL'],
    ['a number that JSON lacks', { a: NaN }, 'shared["a"]: numbers must be finite'],
    ['a large value', { a: 'x'.repeat(16 * 1024 - 1) }, 'shared["a"] must have at most 16384 bytes'],
    ['much in total', many(5, 'x'.repeat(16_000)), 'shared must have at most 65536 bytes'],
  ];
  for (const [title, update, message] of malformed) {
    it(`is refused for ${title}`, () => expect(() => checkUpdate('shared', update)).to.throw(message));
  }

  it('is accepted at the limits', () => {
    checkUpdate('shared', many(256));
    checkUpdate('shared', { ['x'.repeat(128)]: 'x'.repeat(16 * 1024 - 2) });
  });
});
