// The real services around one rollout, for the model test: each run starts on an emptied fleet with device ids that depend
// only on their number, so that a run can be repeated.
import { create, type MessageInitShape } from '@bufbuild/protobuf';
import {
  type AdvanceRolloutRequest,
  AdvanceRolloutRequestSchema,
  ObjectMetaSchema,
} from '@kellet/proto/es/kellet/control/v1/control_pb';
import { OtaReport_Status, OtaReportSchema } from '@kellet/proto/es/kellet/v1/ota_pb';
import { createDevice, fleetFacts } from '../../../device-registry/devices/devices.ts';
import { newId } from '../../../platform/ids.ts';
import { Paging } from '../../../platform/requests/paging.ts';
import { Delivery } from '../../rpc/delivery.ts';
import { Overrides } from '../delivery/overrides.ts';
import { RolloutMembership } from '../rollouts/membership.ts';
import { Reports } from '../rollouts/reports.ts';
import { RolloutApplier } from '../rollouts/rollout-applier.ts';
import { RolloutDriver } from '../rollouts/rollout-driver.ts';
import { Rollouts } from '../rollouts/rollouts.ts';
import { type RolloutFixture, tenant } from './rollout-fixture.ts';
import { deviceTimeoutSeconds, type ModelSpec } from './rollout-model.ts';

type Action = AdvanceRolloutRequest['action']['case'];

/** The id of a run's n-th device. */
export const deviceIdOf = (n: number): string => `01900000-0000-7000-9000-${String(n).padStart(12, '0')}`;

/** The services of one process, created again by a restart. */
const servicesOf = ({ test: { database }, profiles, clock }: RolloutFixture) => {
  const membership = new RolloutMembership(clock);
  return {
    membership,
    rollouts: new Rollouts({
      ...{ database, profiles, clock, paging: new Paging(Buffer.alloc(32)) },
      // Creation through REST is tested on the whole system.
      writer: undefined as never,
    }),
    reports: new Reports(database, membership, clock),
    driver: new RolloutDriver(database, profiles, clock),
    applier: new RolloutApplier(database, profiles, clock),
    delivery: new Delivery(database, profiles, clock),
    overrides: new Overrides(database, profiles, membership),
  };
};

/** A rollout of the package `two` to the profile `sensor`. */
export class RolloutSubject {
  private readonly fixture: RolloutFixture;
  private readonly profileId: string;
  private readonly name = newId();
  services: ReturnType<typeof servicesOf>;
  rolloutId = '';
  private devices = 0;

  constructor(fixture: RolloutFixture, profileId: string) {
    this.fixture = fixture;
    this.profileId = profileId;
    this.services = servicesOf(fixture);
  }

  /** Begins a rollout on a fleet of new devices. */
  async start(devices: number, spec: ModelSpec): Promise<void> {
    const { fixture } = this;
    for (const table of ['ota_rollouts', 'ota_rollout_cohort', 'ota_assignments', 'device_commands', 'ota_results']) {
      await fixture.rows(`DELETE FROM ${table}`);
    }
    await fixture.rows('DELETE FROM devices');
    await fixture.rows('DELETE FROM outbox');
    for (let n = 0; n < devices; n += 1) await this.add();
    this.rolloutId = await this.apply(spec);
  }

  restart(): void {
    this.services = servicesOf(this.fixture);
  }

  /** Adds a device as a claim does. */
  async add(): Promise<string> {
    const deviceId = deviceIdOf(this.devices);
    this.devices += 1;
    await this.fixture.test.database.tenant(tenant, async (tx) => {
      const row = await createDevice(tx, {
        ...{ tenantId: tenant, deviceId, name: 'd', hardwareId: deviceId, profileId: this.profileId },
        ...{ groupIds: [], credentialType: 'api_key' },
      });
      await this.services.membership.devicesChanged(tx, tenant, [{ after: fleetFacts(row) }]);
    });
    return deviceId;
  }

  async apply({ steps, ...spec }: ModelSpec): Promise<string> {
    const { name } = this;
    const meta = create(ObjectMetaSchema, { tenantId: tenant, namespace: 'kellet-acme', name, uid: newId() });
    const { id } = await this.services.applier.apply(meta, {
      packageRef: { name: 'two' },
      targetProfileRef: { name: 'sensor' },
      rollbackPackageRef: { name: 'one' },
      deviceTimeoutSeconds,
      ...spec,
      steps: steps.map((step) => ({ ...step, soakSeconds: 0 })),
    });
    return id;
  }

  schedule(): Promise<void> {
    return this.fixture.schedule(this.rolloutId);
  }

  /** Carries out an operator's action at the current revision. Reports whether it was carried out. */
  async advance(action: NonNullable<Action>, stepIndex: number): Promise<boolean> {
    const { revision } = await this.fixture.row(this.rolloutId);
    const value = action === 'beginStep' || action === 'requestApproval' ? { stepIndex } : {};
    const request: MessageInitShape<typeof AdvanceRolloutRequestSchema> = {
      ...{ tenantId: tenant, rolloutId: this.rolloutId, revision: revision as bigint },
      action: { case: action, value } as MessageInitShape<typeof AdvanceRolloutRequestSchema>['action'],
    };
    const { applied } = await this.services.driver.advance(create(AdvanceRolloutRequestSchema, request));
    return applied === true;
  }

  /** The device asks for its commands, once all of them are due. Reports whether it gets one of the rollout. */
  async poll(deviceId: string): Promise<boolean> {
    await this.fixture.rows(
      `UPDATE device_commands SET not_before = now() WHERE device_id = $1 AND status = 'scheduled' AND not_before < 'infinity'`,
      deviceId,
    );
    const { commands } = await this.services.delivery.take(tenant, deviceId);
    return commands.some((command) => command.rollout_id === this.rolloutId);
  }

  report(deviceId: string, firmwareVersion: string, success: boolean): Promise<unknown> {
    const status = success ? OtaReport_Status.success : OtaReport_Status.failure;
    const report = create(OtaReportSchema, { rolloutId: this.rolloutId, firmwareVersion, status });
    return this.services.reports.report(tenant, deviceId, report);
  }

  progress(deviceId: string): Promise<unknown> {
    const report = create(OtaReportSchema, { rolloutId: this.rolloutId, progressPercent: 40 });
    return this.services.reports.report(tenant, deviceId, report);
  }
}
