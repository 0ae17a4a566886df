import { status } from '@grpc/grpc-js';
import { apiVersion, type DeviceProfile, finalizer } from '@kellet/crds';
import { expect } from 'chai';
import { deviceProfileReconciler } from './controllers/device-profile.ts';
import { overtakenRetryMilliseconds } from './data-plane.ts';
import { type Environment, Reconciler } from './reconciler.ts';
import type { ReconcileContext } from './runtime/controller.ts';
import { TestClock } from './runtime/testing/test-clock.ts';

describe('a reconcile whose Apply fails', () => {
  const object: DeviceProfile = {
    apiVersion,
    kind: 'DeviceProfile',
    metadata: {
      name: 'pumps',
      namespace: 'ns',
      uid: 'u',
      generation: 2,
      resourceVersion: '9',
      finalizers: [finalizer],
    },
    spec: {},
  };
  /** Reconciles against a data plane that fails with this error. Returns the reasons written to status. */
  const reconcile = async (code: status) => {
    const written: string[] = [];
    const environment = {
      cluster: { get: () => object, isTerminating: () => false, tenancyOf: () => ({ tenantId: 'acme' }) },
      dataPlane: { apply: () => Promise.reject(Object.assign(new Error('refused'), { code })) },
      statuses: {
        staleFor: () => undefined,
        write: async (_object: DeviceProfile, { conditions = [] }: NonNullable<DeviceProfile['status']>) => {
          written.push(...conditions.map(({ type, reason }) => `${type} ${reason}`));
          return 'written';
        },
      },
      events: { record: () => undefined },
      clock: new TestClock(),
    } as unknown as Environment;
    const reconciler = new Reconciler(environment, deviceProfileReconciler);
    const ending = await reconciler
      .reconcile({ namespace: 'ns', name: 'pumps' }, {} as ReconcileContext)
      .catch((error: Error) => error.message);
    return { ending, written };
  };

  it('reports it for a resource without conditions, and is retried', async () => {
    const { ending, written } = await reconcile(status.UNAVAILABLE);
    expect(ending).to.equal('refused');
    expect(written).to.include('Synced DataPlaneUnavailable');
  });

  it('is requeued silently if a newer version has been applied', async () => {
    expect(await reconcile(status.ABORTED)).to.deep.equal({
      ending: { requeueAfterMilliseconds: overtakenRetryMilliseconds },
      written: [],
    });
  });
});
