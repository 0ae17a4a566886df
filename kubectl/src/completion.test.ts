import { expect } from 'chai';
import { candidates, completionScript, completionText, shells } from './completion.ts';

describe('completion', () => {
  for (const [words, has, lookup] of [
    [[''], ['status', 'rollback', 'help'], undefined],
    [['-n', 'x', ''], ['status'], undefined],
    [['-n', ''], [], 'namespaces'],
    [['--context', ''], [], 'contexts'],
    [['--kubeconfig', ''], [], 'files'],
    [['status', ''], [], 'resources'],
    [['status', 'a', ''], [], undefined],
    [['pause', 'a', ''], [], 'rollouts'],
    [['upload', ''], [], 'packages'],
    [['upload', 'a', ''], [], 'files'],
    [['-n', 'x', 'upload', 'a', ''], [], 'files'],
    [['plan', '-f', ''], [], 'files'],
    [['devices', 'a', '--state', ''], ['timed_out', 'failure'], undefined],
    [['devices', 'a', '--state=t'], ['--state=timed_out'], undefined],
    [['resume', '--'], ['--canary-percent', '--namespace'], undefined],
    [['completion', ''], ['bash', 'zsh', 'fish'], undefined],
    [['help', ''], ['status'], undefined],
    [['proof', ''], [], undefined],
    [['nothing', ''], [], undefined],
  ] as const) {
    it(words.join(' '), () => {
      const found = candidates(words);
      expect(found.lookup).to.equal(lookup);
      if (has.length > 0) expect(found.words).to.include.members([...has]);
      else expect(found.words).to.deep.equal([]);
    });
  }

  it('offers only the options of the command', () => {
    expect(candidates(['pause', '--']).words).not.to.include('--state');
  });

  it('follows the protocol of kubectl', () => {
    expect(completionText(['pause', 'plan', 'resume'], 'p', 4)).to.equal('pause\nplan\n:4\n');
  });

  it('has a script for each supported shell', () => {
    for (const shell of shells) expect(completionScript(shell)).to.contain('__complete');
    expect(() => completionScript('csh')).to.throw('unsupported shell csh: must be bash, zsh, fish');
  });
});
