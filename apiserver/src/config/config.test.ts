import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { expect } from 'chai';
import { newSigningKey } from '../auth/testing/test-platform.ts';
import { readConfig, unknownSettings } from './config.ts';
import { runConfigCommand } from './config-command.ts';

const required = {
  KELLET_DATABASE_URL: 'postgres://x',
  KELLET_NATS_URL: 'nats://x',
  KELLET_CONTROL_SECRET: 'control'.repeat(5),
  KELLET_JWT_PRIVATE_KEY: 'k',
  KELLET_CALLBACK_HMAC_SECRET: 'h',
};
const read = (environment: Record<string, string>, flags: string[] = []) =>
  readConfig({ ...required, ...environment }, flags);

describe('configuration', () => {
  it('reports all missing settings', () => {
    expect(() => readConfig({}, []))
      .to.throw(/KELLET_DATABASE_URL is required/)
      .with.property('message')
      .contain('KELLET_CALLBACK_HMAC_SECRET is required');
  });

  it('rejects a control secret that could be guessed', () => {
    const read31 = () => read({ KELLET_CONTROL_SECRET: 'x'.repeat(31) });
    expect(read31).to.throw('KELLET_CONTROL_SECRET must have at least 32 characters');
    expect(() => read({ KELLET_CONTROL_SECRET: 'x'.repeat(32) })).not.to.throw();
  });

  it('prefers a flag to the environment', () => {
    expect(read({ KELLET_REST_PORT: '1' }, ['--rest-port=2'])).to.include({ restPort: 2, grpcPort: 9090 });
  });

  for (const [given, want] of [
    ['', ''],
    ['https://dashboard.test', 'https://dashboard.test'],
    ['https://Dashboard.TEST/', 'https://dashboard.test'],
    ['https://dashboard.test:443', 'https://dashboard.test'],
    ['http://127.0.0.1:8081', 'http://127.0.0.1:8081'],
  ] as const) {
    it(`takes the dashboard's origin ${JSON.stringify(given)} as browsers write it`, () => {
      expect(read({ KELLET_DASHBOARD_ORIGIN: given }).dashboardOrigin).to.equal(want);
    });
  }

  const local = { KELLET_NETWORK: 'local', KELLET_ENVIRONMENT: 'development' };
  for (const [what, environment, message] of [
    ['an origin with a path', { KELLET_DASHBOARD_ORIGIN: 'https://dashboard.test/app' }, 'must be an origin'],
    ['any origin', { KELLET_DASHBOARD_ORIGIN: '*' }, 'must be an origin'],
    ['the origin null', { KELLET_DASHBOARD_ORIGIN: 'null' }, 'must be an origin'],
    ['an origin with a password', { KELLET_DASHBOARD_ORIGIN: 'https://a:b@dashboard.test' }, 'must be an origin'],
    ['a proxy that is not an address', { KELLET_TRUSTED_PROXIES: '10.0.0.0/8, proxy.test' }, '"proxy.test"'],
    ['a proxy range too long', { KELLET_TRUSTED_PROXIES: '10.0.0.0/33' }, '"10.0.0.0/33"'],
    ['a malformed port', { KELLET_REST_PORT: 'x' }, 'KELLET_REST_PORT must be a whole number'],
    [
      'unsigned callbacks on the main network',
      { KELLET_CALLBACK_SKIP_VALIDATION: 'true', KELLET_ENVIRONMENT: 'development' },
      'SKIP_VALIDATION',
    ],
    [
      'unsigned callbacks on the test network',
      { ...local, KELLET_CALLBACK_SKIP_VALIDATION: '1', KELLET_NETWORK: 'test' },
      'SKIP_VALIDATION',
    ],
    [
      'unsigned callbacks in production',
      { ...local, KELLET_CALLBACK_SKIP_VALIDATION: 'true', KELLET_ENVIRONMENT: 'production' },
      'SKIP_VALIDATION',
    ],
    ['a funding service on the main network', { KELLET_FUNDING_URL: 'http://127.0.0.1:1' }, 'FUNDING_URL'],
    ['a URL as a host of artifacts', { KELLET_ARTIFACT_HOSTS: 'a.test,https://b.test' }, '"https://b.test" is a URL'],
    [
      'all addresses as hosts of artifacts',
      { KELLET_ARTIFACT_HOSTS: '0.0.0.0/0' },
      'KELLET_ARTIFACT_HOSTS: "0.0.0.0/0"',
    ],
    ['artifacts of more than 4 GiB', { KELLET_ARTIFACT_MAX_BYTES: '4294967296' }, 'from 1 to 4294967295'],
    ['cold storage in a database', { KELLET_COLD_URL: 'postgres' }, 'KELLET_COLD_URL must have the form file:///'],
    ['cold storage in S3 without keys', { KELLET_COLD_URL: 's3://cold' }, 'KELLET_COLD_URL in S3 needs'],
    ['a broker that is not a URL', { KELLET_NATS_URL: 'nats.test:4222' }, 'KELLET_NATS_URL must be a URL such as'],
    ['more replicas than NATS has', { KELLET_NATS_REPLICAS: '6' }, 'KELLET_NATS_REPLICAS must be from 0 to 5'],
    ['hours that are not a number', { KELLET_HOT_HOURS: '1e3' }, 'KELLET_HOT_HOURS must be a number'],
    ['negative hours', { KELLET_HOT_HOURS: '-1' }, 'KELLET_HOT_HOURS must be a number'],
    ['no concurrent artifact', { KELLET_ARTIFACT_TRANSFERS: '0' }, 'KELLET_ARTIFACT_TRANSFERS must be from 1'],
  ] as const) {
    it(`rejects ${what}`, () => expect(() => read(environment)).to.throw(message));
  }

  it('accepts hosts of artifacts, in production too', () => {
    const artifactHosts = 'artifacts.internal, *.build.internal:8443,10.1.0.0/16,[fd00::1]:80';
    expect(read({ KELLET_ARTIFACT_HOSTS: artifactHosts })).to.include({
      artifactHosts,
      artifactMaxBytes: 4_294_967_295,
    });
  });

  it('accepts unsigned callbacks on the local network if configured', () => {
    expect(read(local).callbackSkipValidation).to.equal(false);
    expect(read({ ...local, KELLET_CALLBACK_SKIP_VALIDATION: 'true' }).callbackSkipValidation).to.equal(true);
  });
});

describe('the configuration file', () => {
  let folder: string;
  before(() => (folder = mkdtempSync(path.join(tmpdir(), 'kellet-config-test-'))));
  after(() => rmSync(folder, { recursive: true }));

  const write = (text: string, name = 'kellet.yaml'): string => {
    const file = path.join(folder, name);
    writeFileSync(file, text);
    return file;
  };
  const readFile = (text: string, environment: Record<string, string> = {}, flags: string[] = []) =>
    read(environment, ['--config', write(text), ...flags]);

  it('takes precedence over defaults, the environment over it, and flags over all', () => {
    const text = 'restPort: 1\ngrpcPort: 2\nmqttPort: 3\n';
    expect(readFile(text, { KELLET_GRPC_PORT: '4', KELLET_MQTT_PORT: '5' }, ['--mqtt-port=6'])).to.include({
      ...{ restPort: 1, grpcPort: 4, mqttPort: 6, controlPort: 9091 },
    });
  });

  it('is named by a variable, or by a flag, which takes precedence', () => {
    const [first, second] = [write('restPort: 1', 'first.yaml'), write('restPort: 2', 'second.yaml')];
    expect(read({ KELLET_CONFIG_FILE: first }).restPort).to.equal(1);
    expect(read({ KELLET_CONFIG_FILE: first }, [`--config=${second}`]).restPort).to.equal(2);
    expect(read({ KELLET_CONFIG_FILE: '' }).restPort).to.equal(8080);
  });

  for (const [what, text, want] of [
    ['JSON', '{\n\t"restPort": 1,\n\t"network": "test",\n\t"publishPoints": ["a", "b"]\n}', 'a,b'],
    ['YAML', '---\n# A comment\nrestPort: 1\nnetwork: test\npublishPoints:\n  - a\n  - "b"\n', 'a,b'],
    ['quoted numbers', "restPort: '1'\nnetwork: test\npublishPoints: '*'", '*'],
    ['empty text', `restPort: 1\nnetwork: test\npublishPoints: ''`, ''],
  ] as const) {
    it(`may have ${what}`, () => {
      expect(readFile(text)).to.include({ restPort: 1, network: 'test', publishPoints: want });
    });
  }

  it('may be empty', () => expect(readFile('# nothing\n').restPort).to.equal(8080));

  it('keeps every digit of a secret that looks like a number', () => {
    const walletKey = '1234567890'.repeat(6) + '1234';
    expect(readFile(`walletKey: ${walletKey}`).walletKey).to.equal(walletKey);
  });

  it('may name files with secrets', () => {
    const secret = write('from a file'.repeat(5) + '\n', 'secret');
    expect(readFile(`redisUrlFile: ${secret}`).redisUrl).to.equal('from a file'.repeat(5));
    expect(readFile(`redisUrlFile: ${secret}`, { KELLET_REDIS_URL: 'redis://x' }).redisUrl).to.equal('redis://x');
  });

  for (const [what, text, message] of [
    ['an unknown key', 'restProt: 1', 'unknown key restProt; did you mean restPort?'],
    ['a nested key', 'rest: { port: 1 }', 'unknown key rest; did you mean'],
    ['a variable as key', 'KELLET_REST_PORT: 1', 'unknown key KELLET_REST_PORT'],
    ['a key twice', 'restPort: 1\nrestPort: 2', 'line 2, column 1: the key occurs twice'],
    ['a map as value', 'restPort: { a: 1 }', 'restPort must be a text, a number, true, false or a list'],
    ['a list of maps', 'publishPoints: [{ a: 1 }]', 'publishPoints must be a text'],
    ['no value', 'restPort:', 'restPort must be a text'],
    ['null', '{"coldUrl": null}', 'coldUrl must be a text'],
    ['a list as document', '- restPort', 'must consist of keys and values'],
    ['text as document', 'restPort', 'must consist of keys and values'],
    ['two documents', 'restPort: 1\n---\nrestPort: 2', 'not valid YAML (MULTIPLE_DOCS)'],
    ['an invalid value', 'restPort: many', 'kellet.yaml: restPort must be a whole number'],
    ['a file for a setting that is not a secret', 'restPortFile: /a', 'unknown key restPortFile'],
    ['a file that is not there', 'redisUrlFile: /does/not/exist', 'redisUrlFile: ENOENT'],
  ] as const) {
    it(`is refused with ${what}`, () => expect(() => readFile(text)).to.throw(message));
  }

  it('is refused if it does not exist', () => {
    expect(() => read({}, ['--config', '/does/not/exist'])).to.throw('/does/not/exist: ENOENT');
    expect(() => read({}, ['--config'])).to.throw('--config needs a value');
  });

  it('is not quoted, as it may contain secrets', () => {
    for (const text of [
      'redisUrl: "hunter2',
      'redisUrl: *hunter2',
      'redisUrl: !hunter2 x: y',
      'hunter2',
      'redisUrl: {hunter2: 1}',
    ]) {
      expect(() => readFile(text), text)
        .to.throw()
        .with.property('message')
        .not.contain('hunter2');
    }
  });
});

describe('unknown settings', () => {
  for (const [flag, message] of [
    [['--rest-prot=1'], 'unknown flag --rest-prot; did you mean --rest-port?'],
    [['--rest-prot', '1'], 'unknown flag --rest-prot; did you mean --rest-port?'],
    [['--confg=x'], 'unknown flag --confg; did you mean --config?'],
    [['--database-url', 'hunter2'], '--database-url is a secret: use KELLET_DATABASE_URL or KELLET_DATABASE_URL_FILE'],
    [['hunter2'], 'every argument must be a flag, or the value of one'],
  ] as const) {
    it(`are refused: ${flag[0]}`, () => {
      const refused = expect(() => read({}, [...flag])).to.throw(message);
      refused.with.property('message').not.contain('hunter2');
    });
  }

  it('do not hide the flag that follows', () => {
    expect(() => read({}, ['--foo', '--rest-port=x'])).to.throw('--rest-port must be a whole number');
  });

  const service = { KELLET_CONTROL_SERVICE_HOST: '10.0.0.1', KELLET_CONTROL_SERVICE_PORT: '9091' };
  for (const [name, value, isUnknown, others] of [
    ['KELLET_REST_PROT', '1', true, {}],
    ['KELLET_REST_PROT', '', true, {}],
    ['KELLET_', '1', true, {}],
    ['KELLET_REST_PORT', '1', false, {}],
    ['KELLET_DATABASE_URL_FILE', '/a', false, {}],
    ['KELLET_CONFIG_FILE', '', false, {}],
    ['KELLETS_ARE_SHIPS', '1', false, {}],
    ['KELLET_TEST_ANYTHING', '1', false, {}],
    ['KELLET_DEV_RATE_LIMIT', '1', false, {}],
    ['KELLET_CONTROL_ADDRESS', 'a:1', false, {}],
    ['KELLET_CONTROL_SERVICE_HOST', '10.0.0.1', false, service],
    ['KELLET_CONTROL_SERVICE_PORT_GRPC', '9091', false, service],
    ['KELLET_CONTROL_PORT_9091_TCP_ADDR', '10.0.0.1', false, service],
    ['KELLET_CONTROL_PORT_9091_TCP', 'tcp://10.0.0.1:9091', false, service],
    ['KELLET_PORT', 'tcp://10.0.0.1:80', false, { KELLET_SERVICE_HOST: '10.0.0.1', KELLET_SERVICE_PORT: '80' }],
    ['KELLET_PORT', '8080', true, { KELLET_SERVICE_HOST: '10.0.0.1', KELLET_SERVICE_PORT: '80' }],
    // Without the variables that come with it, it is a mistake.
    ['KELLET_GATEWAY_PORT', 'tcp://10.0.0.1:80', true, {}],
  ] as const) {
    it(`${isUnknown ? 'include' : 'do not include'} the variable ${name}=${value}`, () => {
      const unknown = unknownSettings({ ...others, [name]: value });
      expect(unknown.map((line) => line.split(' ')[0])).to.deep.equal(isUnknown ? [name] : []);
    });
  }

  it('are listed with the nearest name', () => {
    expect(unknownSettings({ KELLET_REST_PROT: '1' })).to.deep.equal([
      'KELLET_REST_PROT is not a setting; did you mean KELLET_REST_PORT?',
    ]);
  });

  it('do not include variables that Kubernetes sets for Services, even of the name of a setting', () => {
    const link = { ...service, KELLET_CONTROL_PORT: 'tcp://10.0.0.1:9091' };
    expect(read(link).controlPort).to.equal(9091);
    expect(unknownSettings(link)).to.deep.equal([]);
    expect(read({ ...service, KELLET_CONTROL_PORT: '7000' }).controlPort).to.equal(7000);
  });
});

describe('kellet-apiserver config check', () => {
  const valid = {
    ...required,
    KELLET_DATABASE_URL: 'postgres://user:hunter2@db/kellet',
    KELLET_JWT_PRIVATE_KEY: newSigningKey(),
  };
  const check = (environment: Record<string, string>, ...args: string[]) => {
    const lines: string[] = [];
    const code = runConfigCommand(args, {
      environment: { ...valid, ...environment },
      write: (line) => lines.push(line),
    });
    return { code, lines };
  };

  it('returns 0 and prints nothing for valid settings', () => {
    expect(check({}, 'check', '--rest-port=1')).to.deep.equal({ code: 0, lines: [] });
  });

  it('returns 1 and prints a line for each problem, and no secret', () => {
    const { code, lines } = check(
      { KELLET_REST_PROT: '1', KELLET_GRPC_PORT: 'x', KELLET_CONTROL_SECRET: 'hunter2' },
      ...['check', '--config=/does/not/exist', '--bar', '1'],
    );
    expect(code).to.equal(1);
    expect(lines.map((line) => line.split(/[ :]/)[0])).to.deep.equal([
      ...['unknown', '/does/not/exist', 'KELLET_GRPC_PORT', 'KELLET_CONTROL_SECRET', 'KELLET_REST_PROT'],
    ]);
    expect(lines.join()).not.to.contain('hunter2');
  });

  for (const [environment, problem] of [
    [{ KELLET_JWT_PRIVATE_KEY: 'hunter2' }, 'KELLET_JWT_PRIVATE_KEY must be an Ed25519 key'],
    [{ KELLET_WALLET_KEY: 'hunter2' }, 'KELLET_WALLET_KEY must have 64 hex digits'],
    [{ KELLET_DATABASE_URL: 'hunter2' }, 'KELLET_DATABASE_URL must be a URL'],
    [{ KELLET_TLS_CERT_FILE: '/a', KELLET_TLS_KEY_FILE: '/b' }, 'KELLET_TLS_CERT_FILE and KELLET_TLS_KEY_FILE must be'],
    [{ KELLET_FUNDING_URL: 'http://127.0.0.1:1' }, 'KELLET_FUNDING_URL is only for the local network'],
    [{ KELLET_REST_PROT: '1' }, 'KELLET_REST_PROT is not a setting; did you mean KELLET_REST_PORT?'],
  ] as const) {
    it(`returns 1 for a wrong ${Object.keys(environment)[0]}`, () => {
      const { code, lines } = check(environment, 'check');
      expect(code).to.equal(1);
      expect(lines).to.have.length(1);
      expect(lines[0]).to.contain(problem).and.not.contain('hunter2');
    });
  }

  for (const args of [[], ['chekc'], ['check', 'x'], ['--config', '/a']]) {
    it(`returns 2 for ${JSON.stringify(args)}`, () => {
      const { code, lines } = check({}, ...args);
      expect(code).to.equal(2);
      expect(lines.join()).to.contain('usage: kellet-apiserver config check');
    });
  }
});
