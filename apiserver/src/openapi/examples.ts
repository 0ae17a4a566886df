// A request of each kind that a newcomer makes, by method. Tests decode them all.
import type { JsonObject } from '@bufbuild/protobuf';

const profileId = '6f1b6f9e-5c0b-5a55-9b3e-0d6c3c1f4a10';
const packageId = '1c2f9a54-66a1-5d0c-8f0a-4f4b8b1f6f21';
const deviceId = '0199f3c2-7f1e-7c2a-9c55-0c9d8e1f2a3b';

/** Bodies by method name. */
export const requestExamples: Record<string, JsonObject> = {
  Login: { email: 'admin@demo.example', password: 'correct horse battery staple' },
  CreateUser: { email: 'viewer@demo.example', name: 'A viewer', role: 'viewer', password: 'correct horse battery' },
  CreateApiKey: { name: 'reporting', scopes: ['devices:read', 'telemetry:read'], expires_in_seconds: 2_592_000 },
  CreateProfile: {
    name: 'weather-station',
    type: 'weather-station',
    default_tags: { site: 'harbour' },
    anchoring_policy: { mode: 'merkle' },
    telemetry_schema: { keys: { temperature: { type: 'number', required: true, min: -40, max: 85, unit: '°C' } } },
  },
  CreateTemplate: {
    name: 'weather-stations',
    profile_id: profileId,
    hardware_id_pattern: 'WS-*',
    one_time: false,
    expires_in_seconds: 86_400,
  },
  ClaimDevice: { provision_key: '<PROVISION_KEY>', device_name: 'Pier 4', hardware_id: 'WS-0001' },
  CreateDevice: { hardware_id: 'WS-0002', name: 'Pier 5', profile_id: profileId, tags: { row: 'north' } },
  UpdateDevice: { name: 'Pier 5, north', tags: { row: 'north', height: '3m' } },
  Ingest: {
    points: [
      {
        device_id: deviceId,
        timestamp: '2026-01-31T12:00:00Z',
        numeric_values: { temperature: 4.5, wind_speed: 11 },
        string_values: { state: 'calm' },
      },
    ],
  },
  SendRpc: { method: 'set_interval', params: { seconds: 30 }, persistent: true },
  RespondRpc: { success: true, response: { seconds: 30 } },
  UpdateAttributes: { shared: { interval_seconds: 30 } },
  CreatePackage: {
    type: 'fw',
    version: '1.2.0',
    artifact_uri: 'https://artifacts.example/weather-station-1.2.0.bin',
    sha256: 'e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855',
    size_bytes: 150_000,
    compatibility: { device_type: 'weather-station', min_version: '1.0.0' },
    release_notes: 'Reads the new wind sensor.',
  },
  CreateRollout: {
    package_id: packageId,
    target_profile_id: profileId,
    canary_percent: 10,
    failure_threshold_percent: 10,
    steps: [{ percent: 100, soak_seconds: 3600, approval: true }],
  },
  ReportOta: { device_id: deviceId, rollout_id: profileId, firmware_version: '1.2.0', status: 'success' },
  VerifyRaw: {
    device_id: deviceId,
    timestamp: '2026-01-31T12:00:00Z',
    numeric_values: { temperature: 4.5, wind_speed: 11 },
    string_values: { state: 'calm' },
  },
  CreateTenant: {
    tenant_id: 'acme',
    name: 'Acme',
    admin_email: 'admin@acme.example',
    admin_password: 'a long first one',
  },
};
