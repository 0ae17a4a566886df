import { expect } from 'chai';
import { unknownFlag } from './commands.ts';

describe('the flags of a command', () => {
  const usage = `usage: kellet-apiserver fsck [--tenant TENANT_ID] [--json]`;
  const cases: [words: string[], problem: string | undefined][] = [
    [[], undefined],
    [['--json', '--tenant', 'acme'], undefined],
    [['--tenant=acme'], undefined],
    [['--jsn'], 'unknown flag --jsn; did you mean --json?'],
    [['--tennant=acme', '--json'], 'unknown flag --tennant; did you mean --tenant?'],
    [['-j'], 'unknown flag -j; did you mean --json?'],
    [['--hepl'], 'unknown flag --hepl; did you mean --help?'],
  ];
  for (const [words, problem] of cases) {
    it(`${words.join(' ') || 'none'}: ${problem ?? 'accepted'}`, () => {
      expect(unknownFlag(words, usage)).to.equal(problem);
    });
  }
});
