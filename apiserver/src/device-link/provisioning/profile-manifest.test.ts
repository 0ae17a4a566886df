import { equals, fromJson, toJson, type JsonObject } from '@bufbuild/protobuf';
import { ProfileSchema } from '@kellet/proto/es/kellet/v1/profile_pb.ts';
import { expect } from 'chai';
import { applyRequest } from '../../resources/manifest.ts';
import { resourceOf } from '../../platform/kubernetes/kubernetes.ts';
import { manifestOf, profileFromSpec } from './profile-manifest.ts';

/** Passes a profile through the custom resource and control, as a creation does. */
function throughKubernetes(json: JsonObject) {
  const manifest = manifestOf(fromJson(ProfileSchema, json));
  const object = resourceOf('DeviceProfile', { name: 'p', namespace: 'kellet-acme' }, manifest);
  const { spec } = applyRequest('DeviceProfile', 'acme', object);
  if (spec.case !== 'deviceProfile') throw new Error('another kind');
  return { manifest, profile: profileFromSpec(spec.value) };
}

describe('profiles as manifests', () => {
  const cases: [title: string, json: JsonObject][] = [
    ['nothing set', {}],
    ['tags and type', { type: 'thermometer', default_tags: { site: 'north' } }],
    ['every anchoring mode: merkle', { anchoring_policy: { mode: 'merkle' } }],
    ['every anchoring mode: per_event', { anchoring_policy: { mode: 'per_event' } }],
    ['every anchoring mode: chain', { anchoring_policy: { mode: 'chain' } }],
    [
      'a telemetry schema',
      {
        telemetry_schema: {
          keys: {
            temperature: { type: 'number', required: true, min: -40, max: 0, unit: '°C' },
            state: { type: 'string', enum: ['on', 'off'], max_length: 3 },
          },
          additional_keys: 'reject',
        },
        offline_after_seconds: 60,
      },
    ],
    ['a schema that allows more', { telemetry_schema: { additional_keys: 'allow' } }],
    [
      'an update policy',
      {
        ota_policy: {
          device_timeout_seconds: 600,
          max_attempts: 3,
          window: { start: '22:00', end: '04:30', days: ['mon', 'wed', 'sun'], time_zone: 'Europe/Berlin' },
          require_signature: true,
        },
      },
    ],
    ['an empty update policy', { ota_policy: {} }],
  ];
  for (const [title, json] of cases) {
    it(`round-trip: ${title}`, () => {
      const { profile } = throughKubernetes(json);
      expect(toJson(ProfileSchema, profile, { useProtoFieldName: true })).to.deep.equal(json);
      expect(equals(ProfileSchema, profile, fromJson(ProfileSchema, json))).to.equal(true);
    });
  }

  it('omit unset fields, so that the manifest does not own them', () => {
    expect(throughKubernetes({}).manifest).to.deep.equal({});
    expect(throughKubernetes({ telemetry_schema: {} }).manifest).to.deep.equal({
      telemetrySchema: { additionalKeys: 'Allow' },
    });
  });

  it('are rejected with an unknown enum value', () => {
    const { spec } = applyRequest('DeviceProfile', 'acme', resourceOf('DeviceProfile', { name: 'p' }, {}));
    if (spec.case !== 'deviceProfile') throw new Error('another kind');
    for (const mode of ['sometimes', 'mode_unspecified', 'toString']) {
      expect(() => profileFromSpec({ ...spec.value, anchoringMode: mode })).to.throw('anchoring_policy.mode');
    }
  });
});
