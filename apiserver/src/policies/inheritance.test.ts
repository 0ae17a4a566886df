import { create } from '@bufbuild/protobuf';
import { OtaPolicySchema, TelemetrySchemaSchema } from '@kellet/proto/es/kellet/v1/common_pb';
import { expect } from 'chai';
import { inherit, type OwnFacts, type TenantDefaultFacts } from './inheritance.ts';
import type { ProfileFacts } from './profile-reader.ts';

const own = (overrides: Partial<OwnFacts> = {}): OwnFacts => ({
  deviceId: 'd',
  name: 'pump',
  hardwareId: 'hw',
  profileId: '',
  gatewayDeviceId: '',
  customerId: '',
  tags: {},
  ...overrides,
});
const profile = (overrides: Partial<ProfileFacts> = {}): ProfileFacts => ({
  profileId: 'p',
  name: 'pumps',
  type: 'pump',
  defaultTags: {},
  telemetrySchema: undefined,
  anchoringMode: undefined,
  offlineAfterSeconds: 0,
  otaPolicy: undefined,
  ...overrides,
});
const tenant = (overrides: Partial<TenantDefaultFacts> = {}): TenantDefaultFacts => ({
  tags: {},
  telemetrySchema: undefined,
  anchoringMode: undefined,
  offlineAfterSeconds: 0,
  otaPolicy: undefined,
  ...overrides,
});
const schema = create(TelemetrySchemaSchema);
const policy = create(OtaPolicySchema, { maxAttempts: 7 });

describe('inheritance', () => {
  const cases: [string, Parameters<typeof inherit>, Partial<ReturnType<typeof inherit>>][] = [
    [
      'the platform if no other level sets a value',
      [own(), undefined, tenant()],
      { type: '', effectiveTags: {}, anchoringMode: 'merkle', offlineAfterSeconds: 300, telemetrySchema: undefined },
    ],
    [
      'the tenant without a profile',
      [
        own({ tags: { site: 'b' } }),
        undefined,
        tenant({
          tags: { site: 'a', floor: '1' },
          anchoringMode: 'chain',
          offlineAfterSeconds: 60,
          telemetrySchema: schema,
          otaPolicy: policy,
        }),
      ],
      {
        effectiveTags: { site: 'b', floor: '1' },
        anchoringMode: 'chain',
        offlineAfterSeconds: 60,
        telemetrySchema: schema,
        otaPolicy: policy,
      },
    ],
    [
      'the profile before the tenant',
      [
        own({ profileId: 'p' }),
        profile({ defaultTags: { kind: 'p' }, anchoringMode: 'per_event', offlineAfterSeconds: 5 }),
        tenant({ anchoringMode: 'chain', offlineAfterSeconds: 60 }),
      ],
      { type: 'pump', effectiveTags: { kind: 'p' }, anchoringMode: 'per_event', offlineAfterSeconds: 5 },
    ],
    [
      "the tenant's anchoring mode and offline time where the profile leaves them open",
      [own({ profileId: 'p' }), profile(), tenant({ anchoringMode: 'chain', offlineAfterSeconds: 60 })],
      { anchoringMode: 'chain', offlineAfterSeconds: 60 },
    ],
    [
      "none of the tenant's tags, schema and policy under a profile",
      [own({ profileId: 'p' }), profile(), tenant({ tags: { site: 'a' }, telemetrySchema: schema, otaPolicy: policy })],
      { effectiveTags: {}, telemetrySchema: undefined, otaPolicy: undefined },
    ],
  ];
  for (const [name, given, want] of cases) {
    it(`accepts ${name}`, () =>
      expect(inherit(...given))
        .to.include.deep.keys(Object.keys(want))
        .and.deep.include(want));
  }
});
