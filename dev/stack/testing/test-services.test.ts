import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { expect } from 'chai';
import { checkout } from '../paths.ts';
import { withFolder } from './scratch.ts';

describe('the servers of unit tests', function () {
  this.timeout(60_000);

  it('skip only the tests that need Redis if there is none', async () => {
    await withFolder(async (folder) => {
      const { KELLET_TEST_REDIS_SERVER: _unset, ...environment } = process.env;
      const gateway = join(checkout, 'apiserver/src/gateway');
      const mocha = join(checkout, 'node_modules/mocha/bin/mocha.js');
      const plugin = join(checkout, 'dev/stack/testing/test-services.ts');
      const tests = ['rate-limit/redis-rate-counter', 'http/byte-range'].map((name) =>
        join(gateway, `${name}.test.ts`),
      );
      const output = await new Promise<string>((resolve) =>
        execFile(
          process.execPath,
          [mocha, '--no-config', '--reporter', 'spec', '--require', plugin, ...tests],
          // Neither a server nor Python is found; PostgreSQL and NATS are those of this run.
          { cwd: folder, env: { ...environment, PATH: folder, KELLET_CACHE: folder } },
          (_error, standardOutput) => resolve(standardOutput),
        ),
      );
      expect(output).to.match(/[1-9]\d* passing/);
      expect(output).to.match(/ 1 failing/);
      expect(output).to.contain('no Redis server for the tests: install redis-server or valkey-server');
    });
  });
});
