import type { ManagedFields } from '@kellet/crds';
import { expect } from 'chai';
import type { KubernetesObject } from '../platform/kubernetes/kubernetes.ts';
import { foreignManager } from './field-ownership.ts';

const entry = (manager: string, operation: 'Apply' | 'Update', ...parents: string[]): ManagedFields => ({
  manager,
  operation,
  fieldsV1: Object.fromEntries(parents.map((parent) => [`f:${parent}`, { 'f:type': {} }])),
});

const resource = (createdBy: 'api' | undefined, ...managedFields: ManagedFields[]): KubernetesObject => ({
  apiVersion: 'kellet.dev/v1alpha1',
  kind: 'DeviceProfile',
  metadata: { name: 'p', labels: createdBy ? { 'kellet.dev/created-by': createdBy } : {}, managedFields },
  spec: {},
});

describe('to whom a resource belongs', () => {
  const api = entry('kellet-api', 'Update', 'spec');
  const cases: [string, KubernetesObject, string | undefined][] = [
    ['made through REST', resource('api', api), undefined],
    ['and then patched by hand', resource('api', api, entry('kubectl-patch', 'Update', 'spec')), undefined],
    ['and then labelled by hand', resource('api', api, entry('kubectl-label', 'Update', 'metadata')), undefined],
    ['and then applied on the server', resource('api', api, entry('argocd', 'Apply', 'spec')), 'argocd'],
    [
      'and then applied by kubectl',
      resource('api', api, entry('kubectl-client-side-apply', 'Update', 'spec')),
      'kubectl-client-side-apply',
    ],
    ['made by hand', resource(undefined, entry('kubectl-create', 'Update', 'spec')), 'kubectl-create'],
    [
      'made by hand, status aside',
      resource(undefined, { ...entry('x', 'Update', 'spec'), subresource: 'status' }),
      undefined,
    ],
    ['held by the operator alone', resource(undefined, entry('kellet-operator', 'Apply', 'spec')), undefined],
  ];
  for (const [what, object, manager] of cases) {
    it(`${what}: ${manager ?? 'to REST'}`, () => expect(foreignManager(object)).to.equal(manager));
  }
});
