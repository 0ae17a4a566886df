import { expect } from 'chai';
import { numberOption, optionOf, parseCommandLine } from './arguments.ts';
import { PluginError } from './errors.ts';
import { helpText } from './help.ts';

const words = (line: string) => line.split(' ').filter(Boolean);
const failure = (run: () => unknown): PluginError => {
  try {
    run();
  } catch (error) {
    if (error instanceof PluginError) return error;
    throw error;
  }
  throw new Error('not rejected');
};

describe('the command line', () => {
  for (const [line, command, args, option] of [
    ['status', 'status', [], undefined],
    ['-n kellet-demo status all', 'status', ['all'], ['namespace', 'kellet-demo']],
    ['status all -n=kellet-demo', 'status', ['all'], ['namespace', '=kellet-demo']],
    ['status --namespace=kellet-demo', 'status', [], ['namespace', 'kellet-demo']],
    ['status x -w', 'status', ['x'], ['watch', 'true']],
    ['pause a b', 'pause', ['a', 'b'], undefined],
    ['retry a --device 1 --device 2', 'retry', ['a'], ['device', '2']],
    ['plan -f -', 'plan', [], ['filename', '-']],
    ['upload -- p -file', 'upload', ['p', '-file'], undefined],
    ['resume a --help', 'help', ['resume'], undefined],
    ['--help', 'help', [], undefined],
    ['', 'help', [], undefined],
  ] as const) {
    it(line || '(nothing)', () => {
      const parsed = parseCommandLine(words(line));
      expect(parsed).to.deep.include({ command, args });
      if (option) expect(optionOf(parsed, option[0])).to.equal(option[1]);
    });
  }

  it('collects all values of a repeated option', () => {
    const { options } = parseCommandLine(words('skip a --device 1 --device 2'));
    expect(options.get('device')).to.deep.equal(['1', '2']);
  });

  for (const [line, message] of [
    ['fly', 'unknown command fly'],
    ['pause', 'pause needs ROLLOUT…'],
    ['status a b', 'status takes [all | KIND | KIND/NAME | ROLLOUT], not a b'],
    ['version a', 'version takes no arguments, not a'],
    ['pause a --state sent', 'pause has no option --state'],
    ['status a -o table', '--output takes json, yaml, wide or name, not table'],
    ['pause a -o wide', '--output takes json, yaml or name, not wide'],
    ['status --fly', "unknown option '--fly'"],
    ['status -n', "option '-n, --namespace <value>' argument missing"],
    ['constructor', 'unknown command constructor'],
  ] as const) {
    it(`rejects: ${line}`, () => {
      const error = failure(() => parseCommandLine(words(line)));
      expect(error.message).to.equal(message);
      expect(error).to.include({ outcome: 'usage' });
      expect(error.hint).to.contain('--help');
    });
  }

  for (const [text, want] of [
    ['1', 1],
    ['100', 100],
    ['0', undefined],
    ['101', undefined],
    ['1.5', undefined],
    ['1e1', undefined],
    ['all', undefined],
  ] as const) {
    it(`parses a number from 1 to 100: ${text}`, () => {
      const line = parseCommandLine(['resume', 'a', '--canary-percent', text]);
      if (want === undefined) expect(() => numberOption(line, 'canary-percent', 1, 100)).to.throw(PluginError);
      else expect(numberOption(line, 'canary-percent', 1, 100)).to.equal(want);
    });
  }
});

describe('help', () => {
  it('has a valid example of every command', () => {
    const names = [...helpText().matchAll(/^ {2}([a-z]+) {2,}/gm)].map(([, name]) => name!);
    expect(names).to.include.members([
      'status',
      'plan',
      'rollback',
      'proof',
      'upload',
      'completion',
      'version',
      'help',
    ]);
    for (const name of names) {
      const text = helpText(name);
      expect(text, name).to.contain(`usage: kubectl kellet ${name}`);
      const examples = [...text.matchAll(/^ {2}kubectl kellet (.*)$/gm)].map(([, line]) => line!);
      expect(examples.length + (text.match(/source <\(/)?.length ?? 0), name).to.be.above(0);
      for (const example of examples) {
        expect(parseCommandLine(words(example.replace(/ \|.*/, ''))).command, example).to.equal(name);
      }
    }
  });

  it('limits the length of lines', () => {
    for (const line of helpText('plan').split('\n')) expect(line.length, line).to.be.below(125);
  });
});
