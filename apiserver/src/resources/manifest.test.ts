import { expect } from 'chai';
import { resourceOf } from '../platform/kubernetes/kubernetes.ts';
import { applyRequest } from './manifest.ts';

describe('requests to apply a manifest', () => {
  it('carry the identity of the resource', () => {
    const metadata = {
      name: 'cold-store-1a2b3',
      namespace: 'kellet-acme',
      uid: 'u',
      generation: 7,
      annotations: { 'kellet.dev/display-name': 'Cold store', 'kellet.dev/intent': 'i' },
    };
    expect(applyRequest('DeviceProfile', 'acme', resourceOf('DeviceProfile', metadata, {})).meta).to.deep.include({
      tenantId: 'acme',
      namespace: 'kellet-acme',
      name: 'cold-store-1a2b3',
      uid: 'u',
      generation: 7n,
      displayName: 'Cold store',
      intentId: 'i',
    });
  });
});
