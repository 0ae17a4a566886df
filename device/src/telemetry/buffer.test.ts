import { spawn } from 'node:child_process';
import { once } from 'node:events';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { expect } from 'chai';
import type { Point } from '../messages.ts';
import { MemoryBuffer, type TelemetryBuffer } from './buffer.ts';
import { FileBuffer } from './file-buffer.ts';

const point = (value: number): Point => ({ timestamp: '2026-01-01T00:00:00Z', numeric_values: { value } });
const valuesOf = (points: readonly Point[]) => points.map(({ numeric_values }) => numeric_values!['value']);
const lineBytes = Buffer.byteLength(`${JSON.stringify(point(10))}\n`);

describe('buffers of points', () => {
  let folder: string;
  beforeEach(() => (folder = fs.mkdtempSync(path.join(os.tmpdir(), 'kellet-buffer-'))));
  afterEach(() => fs.rmSync(folder, { recursive: true }));

  const kinds: [string, () => TelemetryBuffer][] = [
    ['in memory', () => new MemoryBuffer(80)],
    ['on disk', () => new FileBuffer(folder, { maximumBytes: 80 * lineBytes })],
  ];
  for (const [kind, open] of kinds) {
    describe(kind, () => {
      it('return the oldest points first until they are removed', () => {
        const buffer = open();
        for (const value of [1, 2, 3]) buffer.add(point(value));
        const batch = buffer.peek(2);
        expect(valuesOf(batch.points)).to.deep.equal([1, 2]);
        expect(valuesOf(buffer.peek(2).points)).to.deep.equal([1, 2]);
        buffer.remove(batch.end);
        expect(valuesOf(buffer.peek(9).points)).to.deep.equal([3]);
        buffer.remove(buffer.peek(9).end);
        expect(buffer.peek(9).points).to.deep.equal([]);
        buffer.add(point(4));
        expect([valuesOf(buffer.peek(9).points), buffer.size]).to.deep.equal([[4], 1]);
        buffer.close();
      });

      it('drop the oldest points when they are full, and no later ones', () => {
        const buffer = open();
        buffer.add(point(10));
        const batch = buffer.peek(1);
        for (let value = 11; value < 99; value++) buffer.add(point(value));
        expect(buffer.size + buffer.dropped).to.equal(89);
        expect(buffer.dropped).to.be.within(9, 30);
        const before = buffer.size;
        // The batch was dropped while it was being sent: its acknowledgement removes nothing else.
        buffer.remove(batch.end);
        expect(buffer.size).to.equal(before);
        const kept: (number | undefined)[] = [];
        for (let next = buffer.peek(7); next.points.length > 0; next = buffer.peek(7)) {
          kept.push(...valuesOf(next.points));
          buffer.remove(next.end);
        }
        expect(kept).to.deep.equal(Array.from({ length: before }, (_, index) => 99 - before + index));
        buffer.close();
      });
    });
  }

  it('on disk keep their points when they are opened again, and repeat those without acknowledgement', () => {
    const first = new FileBuffer(folder);
    for (const value of [1, 2, 3]) first.add(point(value));
    first.remove(first.peek(1).end);
    first.close();
    const second = new FileBuffer(folder);
    expect(valuesOf(second.peek(9).points)).to.deep.equal([2, 3]);
    second.add(point(4));
    second.remove(second.peek(3).end);
    second.close();
    const third = new FileBuffer(folder);
    expect(third.size).to.equal(0);
    third.add(point(5));
    expect(valuesOf(third.peek(9).points)).to.deep.equal([5]);
    third.close();
  });

  const damages: [string, (file: string) => void, number[], number][] = [
    ['a torn last line', (file) => fs.appendFileSync(file, '{"timest'), [1, 2, 3], 0],
    [
      'a damaged line',
      (file) => fs.writeFileSync(file, fs.readFileSync(file, 'utf8').replace('"value":2', '"value":')),
      [1, 3],
      1,
    ],
    ['zeros at the end, as after a loss of power', (file) => fs.appendFileSync(file, Buffer.alloc(512)), [1, 2, 3], 0],
    ['a damaged position', (file) => fs.writeFileSync(path.join(path.dirname(file), 'sent'), '\0'), [1, 2, 3], 0],
    [
      'an unfinished position',
      (file) => fs.writeFileSync(path.join(path.dirname(file), 'sent.new'), '9'),
      [1, 2, 3],
      0,
    ],
    ['only damaged lines', (file) => fs.writeFileSync(file, 'x\ny\n'), [], 2],
    ['no points any more', (file) => fs.rmSync(file), [], 0],
  ];
  for (const [what, damage, values, dropped] of damages) {
    it(`on disk survive ${what}`, () => {
      const first = new FileBuffer(folder);
      for (const value of [1, 2, 3]) first.add(point(value));
      first.close();
      damage(path.join(folder, `${'0'.repeat(16)}.ndjson`));
      const second = new FileBuffer(folder);
      expect([valuesOf(second.peek(9).points), second.dropped]).to.deep.equal([values, dropped]);
      second.add(point(4));
      expect(valuesOf(second.peek(9).points)).to.deep.equal([...values, 4]);
      second.remove(second.peek(9).end);
      second.close();
    });
  }

  it('on disk lose no point that was added before `kill -9`', async () => {
    const program = `
      import { FileBuffer } from ${JSON.stringify(path.join(import.meta.dirname, 'file-buffer.ts'))};
      import { writeSync } from 'node:fs';
      const buffer = new FileBuffer(${JSON.stringify(folder)}, { maximumBytes: 1e9 });
      for (let value = 0; ; value++) {
        buffer.add({ timestamp: '2026-01-01T00:00:00Z', numeric_values: { value } });
        writeSync(1, value + '\\n');
      }`;
    const child = spawn(process.execPath, ['--input-type=module-typescript', '--eval', program], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    let text = '';
    child.stdout.on('data', (data: Buffer) => {
      text += data.toString();
      if (text.length > 20_000) child.kill('SIGKILL');
    });
    await once(child, 'close');
    const last = Number(text.slice(0, text.lastIndexOf('\n')).split('\n').at(-1));
    expect(last).to.be.above(100);
    const buffer = new FileBuffer(folder, { maximumBytes: 1e9 });
    const values = valuesOf(buffer.peek(1e9).points);
    expect(values.slice(0, last + 1)).to.deep.equal(Array.from({ length: last + 1 }, (_, value) => value));
    buffer.close();
  });
});
