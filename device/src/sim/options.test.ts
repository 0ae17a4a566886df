import { expect } from 'chai';
import { parseOptions, usage, UsageError } from './options.ts';

describe('the flags of kellet-sim', () => {
  const base = ['--url', 'https://kellet.example'];
  const accepted: [string[], object][] = [
    [base, { url: 'https://kellet.example', devices: 10, rate: 1, batch: 1, failures: 0, commands: false }],
    [[...base, '--devices', '10000', '--failures', '2%'], { devices: 10_000, rate: 1000, failures: 0.02 }],
    [[...base, '--protocol', 'grpc'], { url: 'grpcs://kellet.example:9090', connections: 1, commands: true }],
    [[...base, '--protocol', 'mqtt'], { url: 'mqtts://kellet.example:8883', restUrl: 'https://kellet.example' }],
    [['--url', 'http://h:8080', '--protocol', 'mqtt'], { url: 'mqtt://h:1883' }],
    [['--url', 'mqtt://h:1', '--protocol', 'mqtt', '--devices', '3'], { url: 'mqtt://h:1', restUrl: '' }],
    [['--url', 'grpc://h:1', '--devices', '1001'], { connections: 3 }],
    [['--url', 'grpc://h:1', '--rest-url', 'http://h:2'], { url: 'grpc://h:1', restUrl: 'http://h:2' }],
    [[...base, '--commands', '--devices', '100'], { commands: true, connections: 164 }],
    [[...base, '--key', 'a', '--key', 'b', '--duration', '0.5'], { keys: ['a', 'b'], durationSeconds: 0.5 }],
  ];
  for (const [flags, expected] of accepted) {
    it(`${flags.join(' ')}`, () => expect(parseOptions(flags, {})).to.include(noArrays(expected)));
  }

  const refused: [string[], RegExp][] = [
    [[], /--url is missing/],
    [['--url', 'ftp://h'], /ftp:/],
    [[...base, '--devices', '0'], /--devices 0/],
    [[...base, '--devices', '1e9'], /--devices 1e9/],
    [[...base, '--devices', '200001'], /--devices 200001/],
    [[...base, '--rate', '-1'], /--rate/],
    [[...base, '--rate', 'NaN'], /--rate NaN/],
    [[...base, '--duration', '9999999'], /--duration 9999999/],
    [[...base, '--failures', '2'], /--failures 2 is not a percentage/],
    [[...base, '--failures', '101%'], /--failures/],
    [[...base, '--protocol', 'coap'], /coap/],
    [['--url', 'mqtt://h', '--protocol', 'grpc'], /does not go with/],
    [[...base, '--speed', '1'], /--speed/],
  ];
  for (const [flags, expected] of refused) {
    it(`refuses ${flags.join(' ') || 'none at all'}`, () =>
      expect(() => parseOptions(flags, {})).to.throw(UsageError, expected));
  }

  it('are all in the help text', () => {
    expect(parseOptions(['--help'], {})).to.equal(undefined);
    const { url } = parseOptions([], { KELLET_URL: 'http://h' })!;
    expect(url).to.equal('http://h');
    for (const flag of ['url', 'protocol', 'devices', 'rate', 'batch', 'profile', 'failures', 'duration', 'state']) {
      expect(usage).to.include(`--${flag}`);
    }
  });
});

/** chai compares included properties strictly. */
const noArrays = (value: object) => Object.fromEntries(Object.entries(value).filter(([, one]) => !Array.isArray(one)));
