import { expect } from 'chai';
import { isRecorded, unknownFlag } from './commands.ts';

describe('the record of a command', () => {
  const usage =
    'usage: kellet-apiserver keys list | rotate\n       kellet-apiserver keys --all\n  keys [--of KEY] on|off';
  for (const [words, recorded] of [
    ['rotate', true],
    ['rotate now', true],
    ['--all', true],
    ['--of=key on', true],
    ['off --of key', true],
    ['list', false],
    ['rotat', false],
    ['', false],
  ] as const) {
    it(`${words || 'nothing'}: ${recorded}`, () => {
      expect(isRecorded(words === '' ? [] : words.split(' '), usage, ['list'])).to.equal(recorded);
    });
  }
});

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
