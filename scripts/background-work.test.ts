// Compares the table of docs/performance.md, "What a process looks at", with the loops of the code.
import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { expect } from 'chai';

const root = path.dirname(import.meta.dirname);
const source = path.join(root, 'apiserver/src');

interface LoopOfCode {
  readonly name: string;
  /** Undefined if it is an option of which the default stands elsewhere. */
  readonly milliseconds: number | undefined;
}

/** Returns the value of a constant of a file, which may be a number or a product. */
function constantOf(text: string, name: string): number | undefined {
  const value = new RegExp(`const ${name} = ([0-9_]+)( \\* ([0-9_]+))?;`).exec(text);
  const number = (digits: string) => Number(digits.replaceAll('_', ''));
  return value ? number(value[1]!) * (value[3] === undefined ? 1 : number(value[3])) : undefined;
}

/** The intervals that are not constants beside their loop. */
const timing = readFileSync(path.join(source, 'chain-anchor/pipeline/timing.ts'), 'utf8');
const intervalOf = (text: string, expression: string): number | undefined => {
  if (/^[0-9_]+$/.test(expression)) return Number(expression.replaceAll('_', ''));
  const [object, property] = expression.split('.');
  const paced = object === 'pace' && new RegExp(`^  ${property}: ([0-9_]+),`, 'm').exec(timing);
  return paced ? Number(paced[1]!.replaceAll('_', '')) : constantOf(text, expression);
};

/** Returns the loops that a process starts, and the workers of queues, which are loops with the name of their queue. */
function loopsOfCode(): LoopOfCode[] {
  const files = readdirSync(source, { recursive: true, encoding: 'utf8' }).filter(
    (file) => file.endsWith('.ts') && !/\.test\.ts$|(^|\/)testing\//.test(file),
  );
  return files.flatMap((file) => {
    const text = readFileSync(path.join(source, file), 'utf8');
    const loops = [...text.matchAll(/new Loop\(\s*[\w.]+,\s*('[^']+'|[\w.]+),\s*([\w.]+)/g)];
    expect(loops.length, `${file}: a loop that cannot be read`).to.equal(text.split('new Loop(').length - 1);
    const workers = /new FairWorker\b/.test(text) ? [...text.matchAll(/name: '([^']+)', most:/g)] : [];
    return [
      ...loops
        .filter(([, name]) => name!.startsWith(`'`))
        .map(([, name, interval]) => ({ name: name!.slice(1, -1), milliseconds: intervalOf(text, interval!) })),
      ...workers.map(([, name]) => ({ name: name!, milliseconds: undefined })),
    ];
  });
}

/** Returns the seconds of each loop of the table by its name. */
function loopsOfPage(): Map<string, number> {
  const page = readFileSync(path.join(root, 'docs/performance.md'), 'utf8');
  const [, table = ''] = /^\| work, as the log names it [^\n]*\n\|[^\n]*\n((?:\|[^\n]*\n)+)/m.exec(page) ?? [];
  const rows = table.split('\n').map((row) => row.split(' | '));
  return new Map(
    rows.flatMap(([work = '', every = '']) =>
      [...work.matchAll(/`([^`]+)`/g)]
        .map(([, name]) => name!)
        // Not a loop: connections.
        .filter((name) => !name.startsWith('/'))
        .map((name) => [name, parseFloat(every.replaceAll(',', ''))] as const),
    ),
  );
}

describe('the table of what a process looks at', () => {
  it('has each loop of the code with its interval, and no other', () => {
    const page = loopsOfPage();
    const code = loopsOfCode();
    expect(code.map(({ name }) => name).sort()).to.deep.equal([...page.keys()].sort());
    for (const { name, milliseconds } of code)
      if (milliseconds !== undefined) expect(page.get(name), name).to.equal(milliseconds / 1000);
  });
});
