import { execFileSync } from 'node:child_process';
import { expect } from 'chai';
import { provisionKeyBinding } from './key-binding.ts';

describe('binding of a provision key', () => {
  it('equals the output of the documented shell command', () => {
    const command = 'printf %s "kellet-provision-key:$TENANT:$KEY" | sha256sum | cut -d" " -f1';
    const env = { ...process.env, TENANT: 'acme', KEY: 'pk_söme key' };
    const printed = execFileSync('sh', ['-c', command], { env, encoding: 'utf8' });
    expect(provisionKeyBinding('acme', 'pk_söme key')).to.equal(printed.trim());
  });

  it('differs by tenant and by key', () => {
    const bindings = ['a', 'b'].flatMap((tenant) => ['k', 'l'].map((key) => provisionKeyBinding(tenant, key)));
    expect(new Set(bindings).size).to.equal(4);
  });
});
