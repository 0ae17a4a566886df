import { expect } from 'chai';
import { commands, commandSummary, isRecorded, unknownFlag } from './commands.ts';
import { createTestDatabase, type TestDatabase } from './platform/testing/test-database.ts';
import { TestProcesses } from './testing/test-process.ts';

describe('commands in a pod of one target', function () {
  this.timeout(120_000);
  let test: TestDatabase;
  let processes: TestProcesses;
  // What the chart gives to a gateway alone, and to all others but the gateway (`targets: split`).
  const withoutGateway = { KELLET_CALLBACK_HMAC_SECRET: '' };
  const gatewayAlone = { KELLET_JWT_PRIVATE_KEY: '' };

  before(async () => {
    test = await createTestDatabase();
    processes = await TestProcesses.create(test.url);
  });
  after(async () => {
    await processes.remove();
    await test.drop();
  });

  for (const words of ['events list', 'fsck', 'artifacts status', 'publish-points list', 'keys list', 'keys rotate']) {
    it(`${words} works`, () => processes.run(words.split(' '), withoutGateway));
  }

  it('wallet address works where the key is', () =>
    processes.run(['wallet', 'address'], { ...withoutGateway, KELLET_WALLET_KEY: 'a1'.repeat(32) }));

  it('work in that of a gateway too, but for those that need a key', async () => {
    await processes.run(['fsck'], gatewayAlone);
    const refused = await processes.run(['keys', 'rotate'], gatewayAlone).catch((error: Error) => error.message);
    expect(refused).to.match(/^keys rotate: exit code 1\n$/);
  });
});

describe('the help of a command', () => {
  for (const [name, { usage }] of Object.entries(commands)) {
    it(`${name}: says what each of its words does, as the program's help promises`, () => {
      const [lines, ...description] = usage.split('\n\n');
      const verbs = [...lines!.matchAll(/(?:usage:| {6}) kellet-apiserver \S+ (.+)$/gm)]
        .flatMap(([, words]) => words!.split(' | '))
        .flatMap((words) => /^[a-z]+/.exec(words)?.[0] ?? []);
      expect(description.join('\n\n')).to.match(/[a-z]{4}/);
      const described = description.join('\n').match(/^ {2}[a-z]+(?= )/gm) ?? [];
      if (verbs.length > 1) expect(described.map((verb) => verb.trim())).to.include.members(verbs);
    });
  }

  it('adds nothing to the list of commands', () =>
    expect(commandSummary()).to.match(/^( {7}kellet-apiserver [a-z-]+( \S+)+(\n|$))+$/));
});

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
