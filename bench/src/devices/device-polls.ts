// device-polls: polls per second of devices that have no commands, and their CPU time, on a complete apiserver.
import { cpuMicroseconds } from '../cpu-time.ts';
import { startEnvironment } from '../environment.ts';
import { costOf } from '../gateway/cost.ts';
import { getRequest, HttpLoad, type Load } from '../gateway/http-load.ts';
import { format, median, type Suite } from '../harness.ts';
import { mintDeviceKeys } from '../streams/device-keys.ts';

const devices = 1000;
const rounds = 5;

/** hawkBit 0.9.0 with its in-memory database: polls per second of targets without actions, measured apart. */
const hawkBit = 311;

/** The suite. */
export const devicePolls: Suite = {
  name: 'device-polls',
  run: async (report) => {
    report('device-polls: preparing');
    const environment = await startEnvironment(report, devices);
    const generator = new HttpLoad();
    try {
      const keys = await mintDeviceKeys(environment);
      const load: Load = {
        ...environment.rest,
        requests: environment.deviceIds.map((id, index) =>
          getRequest(`/api/v1/devices/${id}/rpc/pending?wait_seconds=0`, { 'X-API-Key': keys[index]! }),
        ),
        expected: '{"commands":[]}',
        ...{ connections: 64, seconds: 3 },
      };
      const processes = ['apiserver', 'postgres'].map((name) => () => cpuMicroseconds(environment.pids[name]!));
      // Warms up the code and the cache of keys.
      await generator.run(load);
      const measured: { perSecond: number; p99: number; server: number; postgres: number }[] = [];
      for (let round = 1; round <= rounds; round += 1) {
        const result = await costOf(generator, load, processes);
        const [server, postgres] = result.microseconds as [number, number];
        const { perSecond, p99 } = result;
        measured.push({ perSecond, p99, server, postgres });
        report(
          `device-polls: round ${round}/${rounds}: ${format(perSecond)} polls/s, p99 ${format(p99)} ms, CPU per poll: ` +
            `apiserver ${format(server)} µs, PostgreSQL ${format(postgres)} µs`,
        );
      }
      const of = (figure: keyof (typeof measured)[number]) => median(measured.map((each) => each[figure]));
      const value = of('perSecond');
      const remarks = {
        'apiserver µs CPU per poll': of('server'),
        'PostgreSQL µs CPU per poll': of('postgres'),
        'p99 ms': of('p99'),
      };
      return [
        {
          ...{ name: 'device-polls', value, unit: 'polls/s', baseline: 'hawkBit', baseline_value: hawkBit },
          ...{ ratio: value / hawkBit, rounds, remarks },
        },
      ];
    } finally {
      generator.close();
      await environment.close();
    }
  },
};
