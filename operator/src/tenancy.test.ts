import { expect } from 'chai';
import type { Namespace } from './resources.ts';
import { chooseNamespace, decideTenancy, type Tenancy } from './tenancy.ts';

function makeNamespace(name: string, given: { created?: number; tenant?: string; deleted?: boolean } = {}): Namespace {
  return {
    metadata: {
      name,
      creationTimestamp: `2026-01-01T00:00:0${given.created ?? 0}Z`,
      labels: given.tenant ? { 'kellet.dev/tenant': given.tenant } : {},
      ...(given.deleted && { deletionTimestamp: '2026-01-02T00:00:00Z' }),
    },
  };
}

describe('chooseNamespace', () => {
  const [a, b, own] = [
    makeNamespace('a', { created: 2 }),
    makeNamespace('b', { created: 1 }),
    makeNamespace('kellet-acme', { created: 3 }),
  ];
  const gone = makeNamespace('old', { deleted: true });
  const cases: [string, string | undefined, Namespace[], string | undefined][] = [
    ['none', undefined, [], undefined],
    ['the recorded one', 'a', [own, b, a], 'a'],
    ['the recorded one lost the label', 'gone', [b, own], 'kellet-acme'],
    ['the one named after the tenant', undefined, [a, b, own], 'kellet-acme'],
    ['the oldest', undefined, [a, b], 'b'],
    ['the recorded one on its way out', 'old', [a, gone], 'old'],
    ['none on its way out anew', undefined, [gone], undefined],
  ];
  for (const [name, recorded, labelled, want] of cases) {
    it(name, () => expect(chooseNamespace('acme', recorded, labelled)?.metadata.name).to.equal(want));
  }
});

describe('decideTenancy', () => {
  const ours = makeNamespace('ns', { tenant: 'acme' });
  const cases: [string, Parameters<typeof decideTenancy>[0], Tenancy | string][] = [
    ['not seen yet', { namespace: undefined, tenantExists: false, chosen: undefined }, 'not known yet'],
    [
      'no label',
      { namespace: makeNamespace('ns'), tenantExists: false, chosen: undefined },
      'does not carry the label',
    ],
    ['no Tenant', { namespace: ours, tenantExists: false, chosen: ours }, 'no such Tenant'],
    ['a second namespace', { namespace: ours, tenantExists: true, chosen: makeNamespace('first') }, 'a tenant has one'],
    ['its namespace', { namespace: ours, tenantExists: true, chosen: ours }, { tenantId: 'acme' }],
    [
      'on its way out',
      { namespace: makeNamespace('ns', { tenant: 'acme', deleted: true }), tenantExists: true, chosen: ours },
      { tenantId: 'acme' },
    ],
  ];
  for (const [name, facts, want] of cases) {
    it(name, () => {
      const got = decideTenancy(facts);
      if (typeof want === 'string') expect('problem' in got && got.problem).to.include(want);
      else expect(got).to.deep.equal(want);
    });
  }
});
