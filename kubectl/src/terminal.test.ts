import { expect } from 'chai';
import { painter } from './format/paint.ts';
import { formatTable } from './format/table.ts';
import { Screen } from './screen.ts';
import { guarded, type Terminal, visible } from './terminal.ts';

describe('text for a terminal', () => {
  for (const [what, given, want] of [
    ['is shown as it is', 'Grüße, 世界 ✓\tx\n', 'Grüße, 世界 ✓\tx\n'],
    ['keeps the styles of the plugin', painter(true)('red', 'failure'), '\u001b[31mfailure\u001b[0m'],
    ['cannot move the cursor', 'a\u001b[2J\u001b[Hb', 'a\\u001b[2J\\u001b[Hb'],
    ['cannot write to the clipboard', '\u001b]52;c;cm0gLXJm\u0007', '\\u001b]52;c;cm0gLXJm\\u0007'],
    ['cannot hide', '\u001b[8msecret', '\\u001b[8msecret'],
    ['cannot overwrite its line', 'failure\rsuccess\b', 'failure\\u000dsuccess\\u0008'],
    ['cannot use controls of one character', '\u009b2J\u007f', '\\u009b2J\\u007f'],
    ['cannot be reordered', 'a\u202eb\u2066', 'a\\u202eb\\u2066'],
  ] as const) {
    it(what, () => expect(visible(given)).to.equal(want));
  }

  const recorded = () => {
    const written: string[] = [];
    const terminal: Terminal = {
      write: (text) => void written.push(text),
      control: (sequence) => void written.push(sequence),
      say: (line) => void written.push(line),
      draw: () => undefined,
      ...{ isInteractive: true, showsProgress: true, hasColor: true, hasUnicode: true, columns: 20 },
    };
    return { terminal: guarded(terminal), written };
  };

  it('is not carried out, whichever way it comes', () => {
    const { terminal, written } = recorded();
    const ofDevice = 'no space\u001b[2J';
    terminal.write(formatTable(['ERROR'], [[ofDevice]], painter(true)));
    terminal.say(`error: ${ofDevice}`);
    expect(written).to.deep.equal(['ERROR\nno space\\u001b[2J\n', 'error: no space\\u001b[2J']);
  });

  it('is not carried out when it is redrawn in place, and fits into its line', () => {
    const { terminal, written } = recorded();
    const screen = new Screen(terminal);
    screen.draw('a\u001b[2J\n');
    screen.draw(`b${'\u001b'.repeat(30)}\n`);
    expect(written.slice(0, 3)).to.deep.equal(['\r\u001b[J', 'a\\u001b[2J\n', '\u001b[1A\r\u001b[J']);
    expect(written[3]).to.have.length((process.stdout.columns || 20) + 1);
  });
});
