import { apiVersion, type Tenant } from '@kellet/crds';
import { expect } from 'chai';
import type { Namespace } from './resources.ts';
import { chooseNamespace, decideTenancy, namespaceSeal, namespaceSealAnnotation, type Tenancy } from './tenancy.ts';

const secret = 's'.repeat(32);

function makeNamespace(
  name: string,
  given: { tenant?: string; owner?: string; seal?: string; uid?: string; deleted?: boolean } = {},
): Namespace {
  const { tenant, owner, seal, uid = `uid of ${name}`, deleted } = given;
  return {
    metadata: {
      name,
      uid,
      labels: tenant ? { 'kellet.dev/tenant': tenant } : {},
      ...(owner && { ownerReferences: [{ apiVersion, kind: 'Tenant', name: 'acme', uid: owner }] }),
      ...(seal !== undefined && { annotations: { [namespaceSealAnnotation]: seal } }),
      ...(deleted && { deletionTimestamp: '2026-01-02T00:00:00Z' }),
    },
  };
}

describe('chooseNamespace', () => {
  const makeTenant = (namespace?: string, status?: Tenant['status']): Tenant => ({
    apiVersion,
    kind: 'Tenant',
    metadata: { name: 'acme', uid: 'acme-uid' },
    spec: { ...(namespace && { namespace }) },
    ...(status && { status }),
  });
  const tenant = 'acme';
  const seal = namespaceSeal(secret, makeTenant());
  const made = makeNamespace('kellet-acme', { tenant, owner: 'acme-uid', seal });
  const planted = makeNamespace('kellet-acme', { tenant });
  const own = makeNamespace('own', { tenant });
  const former = { namespace: 'kellet-acme', namespaceUid: 'uid of the one that was deleted' };
  const madeAfter = (status: Tenant['status']) =>
    makeNamespace('kellet-acme', { tenant, seal: namespaceSeal(secret, makeTenant(undefined, status)) });
  const madeAfterOwn = madeAfter({ namespace: 'own' });
  const cases: [string, Tenant, Namespace[], Namespace | undefined][] = [
    ['none', makeTenant(), [], undefined],
    ['the one created for it', makeTenant(), [own, made], made],
    ['not one that only has the label', makeTenant(), [own], undefined],
    ['not one with the label and the default name', makeTenant(), [planted], undefined],
    [
      'not one created for an earlier Tenant',
      makeTenant(),
      [
        makeNamespace('kellet-acme', {
          tenant,
          owner: 'acme-uid',
          seal: namespaceSeal(secret, { ...makeTenant(), metadata: { name: 'acme', uid: 'before' } }),
        }),
      ],
      undefined,
    ],
    [
      'not one that claims the Tenant as its owner',
      makeTenant(),
      [makeNamespace('kellet-acme', { tenant, owner: 'acme-uid' })],
      undefined,
    ],
    [
      'not one sealed with another secret',
      makeTenant(),
      [makeNamespace('kellet-acme', { tenant, owner: 'acme-uid', seal: namespaceSeal('x', makeTenant()) })],
      undefined,
    ],
    ['not one of another name with a copied seal', makeTenant(), [makeNamespace('own', { tenant, seal })], undefined],
    ['not one of the same name with the seal of the recorded one', makeTenant(undefined, former), [made], undefined],
    ['the one created after the recorded one', makeTenant(undefined, former), [madeAfter(former)], madeAfter(former)],
    ['the one it names', makeTenant('own'), [made, own], own],
    ['the one it names, with the default name', makeTenant('kellet-acme'), [planted], planted],
    [
      'not the one it names without the label',
      makeTenant('own'),
      [makeNamespace('own', { tenant: 'other' })],
      undefined,
    ],
    ['not one that is being deleted', makeTenant('own'), [makeNamespace('own', { tenant, deleted: true })], undefined],
    ['the recorded one', makeTenant(undefined, { namespace: 'own', namespaceUid: 'uid of own' }), [made, own], own],
    ['the one recorded only by name', makeTenant(undefined, { namespace: 'own' }), [made, own], own],
    [
      'the recorded one rather than the one it names',
      makeTenant('kellet-acme', { namespace: 'own' }),
      [planted, own],
      own,
    ],
    ['the recorded one lost the label', makeTenant(undefined, { namespace: 'own' }), [madeAfterOwn], madeAfterOwn],
    [
      'the recorded one was recreated',
      makeTenant(undefined, { namespace: 'own', namespaceUid: 'uid before' }),
      [own],
      undefined,
    ],
    [
      'the recorded one is being deleted',
      makeTenant(undefined, { namespace: 'own' }),
      [makeNamespace('own', { tenant, deleted: true })],
      makeNamespace('own', { tenant, deleted: true }),
    ],
  ];
  for (const [name, of, labelled, want] of cases) {
    it(name, () => expect(chooseNamespace(of, labelled, secret)).to.deep.equal(want));
  }
});

describe('decideTenancy', () => {
  const ours = makeNamespace('ns', { tenant: 'acme' });
  const cases: [string, Parameters<typeof decideTenancy>[0], Tenancy | string][] = [
    ['not observed yet', { namespace: undefined, tenantExists: false, chosen: undefined }, 'not been observed yet'],
    ['no label', { namespace: makeNamespace('ns'), tenantExists: false, chosen: undefined }, 'does not have the label'],
    ['no Tenant', { namespace: ours, tenantExists: false, chosen: ours }, 'no such Tenant'],
    ['only a label', { namespace: ours, tenantExists: true, chosen: undefined }, 'the Tenant does not name it'],
    [
      'a second namespace',
      { namespace: ours, tenantExists: true, chosen: makeNamespace('first') },
      'a tenant can have only one',
    ],
    ['its namespace', { namespace: ours, tenantExists: true, chosen: ours }, { tenantId: 'acme' }],
    [
      'being deleted',
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
