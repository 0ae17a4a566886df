import { expect } from 'chai';
import { readConfig } from './config.ts';

describe('readConfig', () => {
  const least = { KELLET_CONTROL_ADDRESS: 'data-plane:9091', KELLET_CONTROL_SECRET: 's'.repeat(32) };

  it('applies defaults', () => {
    expect(readConfig(least, 'id')).to.deep.include({ metricsPort: 9464, leaderElection: true, logLevel: 'info' });
    expect(readConfig({ ...least, KELLET_LEADER_ELECTION: 'false' }, 'id').leaderElection).to.equal(false);
  });

  it('uses KELLET_IDENTITY if set, else a unique identity', () => {
    expect(readConfig({ ...least, KELLET_IDENTITY: 'pod-1' }, 'id').identity).to.equal('pod-1');
    expect(readConfig(least, 'a').identity).not.to.equal(readConfig(least, 'b').identity);
  });

  it('rejects a short shared secret', () => {
    const secret = (length: number) => () => readConfig({ ...least, KELLET_CONTROL_SECRET: 's'.repeat(length) }, 'id');
    expect(secret(31)).to.throw('KELLET_CONTROL_SECRET must have at least 32 characters');
    expect(secret(32)).not.to.throw();
  });

  it('takes the files of TLS together or not at all', () => {
    const files = {
      KELLET_CONTROL_TLS_CERT_FILE: 'tls.crt',
      KELLET_CONTROL_TLS_KEY_FILE: 'tls.key',
      KELLET_CONTROL_TLS_CA_FILE: 'ca.crt',
    };
    expect(readConfig(least, 'id').controlTls).to.equal(undefined);
    expect(readConfig({ ...least, ...files }, 'id').controlTls).to.deep.equal({
      ...{ certFile: 'tls.crt', keyFile: 'tls.key', caFile: 'ca.crt' },
    });
    expect(() => readConfig({ ...least, ...files, KELLET_CONTROL_TLS_CA_FILE: '' }, 'id')).to.throw('given together');
  });

  it('reports all problems at once', () => {
    const wrong = { KELLET_METRICS_PORT: 'x', KELLET_LOG_LEVEL: 'loud', KELLET_CONTROL_SECRET_FILE: '/nonexistent' };
    expect(() => readConfig(wrong, 'id')).to.throw(
      /KELLET_CONTROL_ADDRESS[^]*KELLET_CONTROL_SECRET_FILE[^]*KELLET_METRICS_PORT[^]*KELLET_LOG_LEVEL/,
    );
  });
});
