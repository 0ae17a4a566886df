// The operator's client of the control port over TLS, against the data plane's server.
import { rmSync } from 'node:fs';
import { expect } from 'chai';
import { ControlServer } from '../../apiserver/src/control/server.ts';
import { InternalServer } from '../../apiserver/src/internal/server.ts';
import { writeControlTls } from '../../apiserver/src/internal/testing/test-control-tls.ts';
import { createLogger } from '../../apiserver/src/platform/observability/logger.ts';
import { ControlClient, type ControlTlsFiles } from '../../operator/src/data-plane.ts';
import { systemClock } from '../../operator/src/runtime/clock.ts';
import { createLogger as createOperatorLogger } from '../../operator/src/runtime/logger.ts';

describe('the control port over TLS', () => {
  it('serves an operator with a certificate of its authority, and no other', async () => {
    const [ours, foreign] = [await writeControlTls(), await writeControlTls()];
    const [logger, secret] = [createLogger('silent'), 'a control secret of 32 characters'];
    const server = new InternalServer(secret, logger, ours);
    const unused = () => {
      throw new Error('not called');
    };
    const parts = { dispatcher: {}, changes: {}, rolloutDriver: unused, workingCopies: async function* () {} };
    new ControlServer(server, parts as unknown as ConstructorParameters<typeof ControlServer>[1], logger);
    const port = await server.listen('127.0.0.1', 0);
    const outcome = async (tls: ControlTlsFiles | undefined): Promise<unknown> => {
      const client = new ControlClient({
        ...{ address: `127.0.0.1:${port}`, secret, tls, clock: systemClock, deadlineMilliseconds: 10_000 },
        logger: createOperatorLogger('silent'),
      });
      try {
        return (await client.listWorkingCopies('', 10)).copies;
      } catch (error) {
        return (error as { code: number }).code;
      } finally {
        client.close();
      }
    };
    try {
      expect(await outcome(ours)).to.deep.equal([]);
      for (const tls of [undefined, { ...foreign, caFile: ours.caFile }, { ...ours, caFile: foreign.caFile }]) {
        expect(await outcome(tls)).to.equal(14);
      }
    } finally {
      await server.close();
      for (const { folder } of [ours, foreign]) rmSync(folder, { recursive: true });
    }
  });
});
