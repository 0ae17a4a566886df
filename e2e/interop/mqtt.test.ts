// `make interop`: the examples of docs/mqtt.md and docs/credentials.md with mosquitto's clients and openssl, and a device
// with paho. What cannot be installed is skipped with a line that says so.
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { expect } from 'chai';
import { certificateOf, newKeys } from '../../apiserver/src/auth/testing/test-certificates.ts';
import { mintProvisionKey } from '../../apiserver/src/device-link/provisioning/provision-key.ts';
import {
  applyProfile,
  applyTemplate,
  provisioningDispatcher,
} from '../../apiserver/src/device-link/provisioning/testing/test-fixtures.ts';
import { tenant, TestLink } from '../../apiserver/src/device-link/testing/test-link.ts';
import { eventually } from '../../apiserver/src/platform/testing/eventually.ts';
import { checkout } from '../../dev/stack/paths.ts';
import { mosquittoClients, pythonWithPaho } from '../testing/interop-programs.ts';
import { needs } from '../testing/interop-skip.ts';

/** Returns the command of a page that begins with a program. */
function example(page: string, program: string): string {
  const text = readFileSync(path.join(checkout, 'docs', page), 'utf8');
  const line = text.split('\n').find((one) => one.startsWith(`$ ${program}`));
  if (line === undefined) throw new Error(`docs/${page} has no example of ${program}`);
  return line.slice(2);
}

describe('other programs', function () {
  this.timeout(180_000);
  const folder = mkdtempSync(path.join(tmpdir(), 'kellet-interop-'));
  let link: TestLink;
  let environment: NodeJS.ProcessEnv;

  before(async () => {
    const keys = await newKeys();
    const files = { certFile: path.join(folder, 'tls.crt'), keyFile: path.join(folder, 'tls.key') };
    writeFileSync(files.certFile, await certificateOf(keys, 'localhost', { isAuthority: true }));
    writeFileSync(files.keyFile, keys.pem);
    link = await TestLink.start({ KELLET_TLS_CERT_FILE: files.certFile, KELLET_TLS_KEY_FILE: files.keyFile });
  });
  after(async () => {
    await link?.stop();
    rmSync(folder, { recursive: true });
  });

  /** Runs a command in a shell and returns its output. Throws unless it succeeds. */
  const shell = async (command: string, variables: Record<string, string> = {}): Promise<string> => {
    const child = spawn('sh', ['-c', command], { cwd: folder, env: { ...environment, ...variables } });
    let output = '';
    for (const stream of [child.stdout, child.stderr]) stream.on('data', (text: Buffer) => (output += text.toString()));
    const [code] = (await once(child, 'close')) as [number];
    if (code !== 0) throw new Error(`${command}: exit code ${code}\n${output}`);
    return output;
  };
  const local = (command: string): string => command.replace('-p 1883', `-p ${link.process.ports.mqttPort}`);
  const secure = (command: string): string =>
    command.replace('-h HOST -p 8883', `-h localhost -p ${link.process.ports.mqttTlsPort}`);
  const stored = async (deviceId: string) => {
    const { points } = await link.operate<{ points: { numeric_values: object }[] }>('GET', `telemetry/${deviceId}`);
    return points.map(({ numeric_values: values }) => values);
  };

  describe('mosquitto', () => {
    before(async function () {
      environment = await needs(this, 'mosquitto-clients', mosquittoClients);
    });

    it('publishes a point and takes a command, as in docs/mqtt.md', async () => {
      const device = await link.device();
      const variables = { DEVICE_ID: device.deviceId, DEVICE_KEY: device.key };
      await shell(local(example('mqtt.md', 'mosquitto_pub')), variables);
      expect(await stored(device.deviceId)).to.deep.equal([{ temperature: 21.5 }]);
      const sent = await link.send(device.deviceId);
      const output = await shell(`${local(example('mqtt.md', 'mosquitto_sub'))} -C 1 -W 30`, variables);
      expect(JSON.parse(output)).to.include({ correlation_id: sent, method: 'reboot' });
    });

    it('refuses a wrong key', async () => {
      const device = await link.device();
      const variables = { DEVICE_ID: device.deviceId, DEVICE_KEY: 'sk_live_wrong' };
      const refused = await shell(local(example('mqtt.md', 'mosquitto_pub')), variables).catch((error: Error) => error);
      expect(String(refused)).to.contain('not authorised');
    });

    it('claims an identity, as in docs/mqtt.md', async () => {
      const dispatcher = provisioningDispatcher(link.test.database);
      await applyProfile(dispatcher, { tenantId: tenant, name: 'pumps' });
      const key = mintProvisionKey();
      await applyTemplate(dispatcher, { tenantId: tenant, name: 'pumps' }, key);
      const claim = example('mqtt.md', 'mosquitto_rr').replace('"provision_key":"…"', `"provision_key":"${key}"`);
      const result = JSON.parse(await shell(local(claim))) as { device_id: string; api_key: string };
      const variables = { DEVICE_ID: result.device_id, DEVICE_KEY: result.api_key };
      await shell(local(example('mqtt.md', 'mosquitto_pub')), variables);
      expect(await stored(result.device_id)).to.have.length(1);
    });

    it('uses a pre-shared key, as in docs/credentials.md', async () => {
      const made = await link.operate<{ device: { device_id: string }; psk_identity: string; psk: string }>(
        'POST',
        'devices',
        { hardware_id: 'psk', credential_type: 'psk' },
      );
      const variables = { PSK_IDENTITY: made.psk_identity, PSK: made.psk };
      await shell(secure(example('credentials.md', 'mosquitto_pub')), variables);
      expect(await stored(made.device.device_id)).to.deep.equal([{ temperature: 21.5 }]);
    });

    it('uses a certificate for a request that openssl made, as in docs/credentials.md', async function () {
      if (spawnSync('openssl', ['version']).status !== 0) {
        process.stderr.write('\n    SKIPPED: openssl was not found\n\n');
        return this.skip();
      }
      await shell(example('credentials.md', 'openssl genpkey'));
      await shell(example('credentials.md', 'openssl req'));
      const csr = readFileSync(path.join(folder, 'device.csr'), 'utf8');
      const made = await link.operate<{ device: { device_id: string }; certificate: string }>('POST', 'devices', {
        ...{ hardware_id: 'certified', credential_type: 'certificate', csr },
      });
      writeFileSync(path.join(folder, 'device.crt'), made.certificate);
      const point = `-t kellet/v1/telemetry -m '{"numeric_values":{"a":1}}'`;
      const identity = '--cafile tls.crt --cert device.crt --key device.key';
      await shell(secure(`mosquitto_pub -h HOST -p 8883 ${identity} -q 1 ${point}`));
      expect(await stored(made.device.device_id)).to.deep.equal([{ a: 1 }]);
    });
  });

  for (const version of ['3.1.1', '5']) {
    it(`paho sends a point and responds to a command over MQTT ${version}`, async function () {
      const python = await needs(this, 'paho-mqtt', pythonWithPaho);
      const device = await link.device();
      const child = spawn(python, [path.join(import.meta.dirname, 'paho-device.py'), version], {
        env: {
          ...process.env,
          ...{ DEVICE_ID: device.deviceId, DEVICE_KEY: device.key, MQTT_PORT: String(link.process.ports.mqttPort) },
        },
      });
      let output = '';
      for (const stream of [child.stdout, child.stderr])
        stream.on('data', (text: Buffer) => (output += text.toString()));
      const ended = once(child, 'close');
      await eventually(() => output.includes('stored'), 30_000);
      expect(await stored(device.deviceId)).to.deep.equal([{ version: Number(version[0]) }]);
      const sent = await link.send(device.deviceId, { params: { n: 7 } });
      expect(await ended, output).to.deep.equal([0, null]);
      const record = await link.operate('GET', `devices/rpc/${sent}`);
      expect(record).to.deep.include({ status: 'successful', response: { echo: { n: 7 } } });
    });
  }
});
