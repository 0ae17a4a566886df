// Runs every script in examples/rest/ as documented. Each must succeed and print the expected output.
import { execFile } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect } from 'chai';
import { checkout } from '../../dev/stack/paths.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';

const run = promisify(execFile);
const folder = join(checkout, 'examples/rest');

/** Expected output of each script. */
const shows: Record<string, RegExp> = {
  'anchors.sh': /"batches":\[/,
  'attributes.sh': /"shared":\{"interval":\{"value":60[^]*"attributes_changed"[^]*"client":\{"board"[^]*"shared":\{\}/,
  'customers.sh': /"name":"Pier 4"[^]*"numeric_values":\{"wind_speed":7\.5\}[^]*"code":"NOT_FOUND"/,
  'devices.sh': /"name":"Roof, north"[^]*"api_key":"sk_live_/,
  'fleet.sh':
    /"summary":\{"created":2[^]*"api_key":"sk_live_[^]*"summary":\{"created":0,"unchanged":2,"rejected":0\}[^]*\nPier 2,[^]*"changed":2[^]*"total":2[^]*"deliveries":\[\]/,
  'gateway.sh': /"created":true[^]*"accepted":1[^]*"method":"calibrate"[^]*"status":"successful"[^]*\{\}/,
  'health.sh': /"status":"ok"[^]*"postgres":"healthy"[^]*"openapi":"3\.1\.0"/,
  'keys-and-users.sh': /PERMISSION_DENIED[^]*"role":"viewer"/,
  'live.sh': /"channel":"telemetry\.live"/,
  'mqtt.sh':
    /the point is stored[^]*downloaded 200000 bytes[^]*carrying out ota_start[^]*carrying out blink[^]*"status":"successful"/,
  'ota.sh': /"status":"available"[^]*206 Partial Content[^]*"status":"completed"/,
  'profiles.sh': /"site":"pier"/,
  'provisioning.sh': /"api_key":"sk_live_[^]*"api_key":""/,
  'rpc.sh': /"method":"set_interval"[^]*"status":"successful"/,
  'rules.sh': /"valid":false[^]*"matched":true[^]*"status":"acknowledged"[^]*"status":"cleared"[^]*"method":"fan_on"/,
  'sign-in.sh': /"current":true[^]*"valid":true/,
  'stream.sh': /carrying out blink[^]*"status":"successful"/,
  'telemetry.sh': /"accepted":1[^]*"data_hash":"[0-9a-f]{64}"/,
  'tenants.sh': /"rate_limit_per_minute":1200[^]*"offline_after_seconds":120/,
  'verify.sh': /"verified":true[^]*\nproven\n[^]*"proofs":\[/,
};

describe('examples of the REST API', () => {
  it('are all tested', () => {
    const scripts = readdirSync(folder).filter((name) => name.endsWith('.sh') && name !== 'common.sh');
    expect(scripts.sort()).to.deep.equal(Object.keys(shows).sort());
  });

  for (const [script, pattern] of Object.entries(shows)) {
    it(script, async () => {
      const { stdout, stderr } = await run('bash', [join(folder, script)], {
        cwd: checkout,
        env: { ...process.env, KELLET_DEV_JSON: stack().infoPath },
        timeout: 60_000,
      });
      expect(stdout + stderr).to.match(pattern);
    });
  }
});
