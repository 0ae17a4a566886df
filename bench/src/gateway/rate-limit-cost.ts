// rate-limit-cost: CPU time of the server and PostgreSQL for counting requests exactly across gateways, measured with
// and without the rate limit at the request rate of the GET benchmark.
import { cpuMicroseconds } from '../cpu-time.ts';
import { startEnvironment } from '../environment.ts';
import { type Benchmark } from '../harness.ts';
import { deviceId } from '../samples/request-bodies.ts';
import { costOf } from './cost.ts';
import { getRequest, HttpLoad, type Load } from './http-load.ts';
import { MeasuredServer } from './measured-server.ts';

/** The benchmark. */
export const rateLimitCost: Benchmark = {
  name: 'rate-limit-cost',
  unit: 'µs CPU',
  baseline: 'the request without the rate limit',
  rounds: 9,
  prepare: async () => {
    const generator = new HttpLoad();
    const environment = await startEnvironment((line) => console.error(line), 1);
    const gateway = await MeasuredServer.start('gateway-server.ts', { databaseUrl: environment.databaseUrl });
    const load: Load = {
      host: '127.0.0.1',
      port: gateway.port,
      requests: [getRequest(`/api/v1/devices/${deviceId}`, { 'X-API-Key': `sk_live_${'a'.repeat(36)}` })],
      connections: 64,
      seconds: 3,
    };
    const perSecond = 4000;
    const processes = [() => gateway.cpu(), () => cpuMicroseconds(environment.pids['postgres']!)];
    const measure = async (limited: boolean, rate?: number): Promise<number[]> => {
      await gateway.tell({ limited });
      return (await costOf(generator, { ...load, perSecond: rate }, processes)).microseconds;
    };
    // Warm up at full speed until the code is compiled.
    await measure(false);
    await measure(true);
    let without: number[] = [];
    let remarks = {};
    return {
      baseline: async () => {
        without = await measure(false, perSecond);
        return without[0]!;
      },
      ours: async () => {
        const limited = await measure(true, perSecond);
        const [server, postgres] = limited.map((figure, index) => figure - without[index]!) as [number, number];
        remarks = { 'of it PostgreSQL µs': postgres };
        return server + postgres;
      },
      // With scarce CPU time, more requests share an increment.
      beside: {
        'at full speed over 64 connections': async () => {
          const [server, postgres] = await measure(false);
          const limited = await measure(true);
          return limited[0]! - server! + limited[1]! - postgres!;
        },
      },
      remarks: () => remarks,
      close: async () => {
        generator.close();
        gateway.close();
        await environment.close();
      },
    };
  },
};
