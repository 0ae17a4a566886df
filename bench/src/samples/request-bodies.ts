// Request and response bodies of the gateway benchmarks, the same for every server.
import { samplePoint } from './sample-points.ts';

/** Points per request. */
export const pointsPerRequest = 100;

export const deviceId = '0198c7a4-5b1e-7d3a-9c42-1f0e8d6b7a55';

/** A device as returned by the registry: 620 bytes of JSON. */
export const deviceJson = {
  device_id: deviceId,
  name: 'boiler room, north',
  hardware_id: 'esp32-84:f7:03:a1:5c:20',
  profile_id: '5f2b8f0e-9f0a-5d7e-8f3b-6b1d2c3a4e5f',
  tags: { building: 'b7', floor: '2' },
  effective_tags: { building: 'b7', floor: '2', site: 'hamburg' },
  group_ids: ['0198c7a4-6001-7c11-8a2b-3c4d5e6f7081'],
  status: 'online',
  last_seen: '2026-01-02T03:04:05.678Z',
  firmware_version: '1.4.2',
  software_version: '',
  gateway_device_id: '',
  credential_type: 'api_key',
  customer_id: '',
  created_at: '2025-11-01T08:00:00Z',
  updated_at: '2026-01-01T00:00:00Z',
};

/** The latest values of a device after the first sample point, as returned by telemetry. */
export const latestJson = (() => {
  const { device_id, timestamp, numeric_values, string_values } = samplePoint(deviceId, 0);
  const names = [...Object.keys(numeric_values), ...Object.keys(string_values)];
  const updated = Object.fromEntries(names.map((name) => [name, timestamp]));
  return { device_id, timestamp, numeric_values, string_values, updated };
})();

/** Bodies of telemetry requests, each different; `firstPoint` is the number of their first point. */
export function telemetryBodies(
  deviceIds: readonly string[],
  count: number,
  firstPoint = 0,
  points = pointsPerRequest,
): string[] {
  return Array.from({ length: count }, (_, request) =>
    JSON.stringify({
      points: Array.from({ length: points }, (_, offset) => {
        const n = firstPoint + request * points + offset;
        return samplePoint(deviceIds[n % deviceIds.length]!, n);
      }),
    }),
  );
}
