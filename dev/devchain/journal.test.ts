import { appendFileSync, mkdtempSync, readFileSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect } from 'chai';
import { openJournal } from './journal.ts';

describe('journal', () => {
  let directory: string;
  let path: string;

  beforeEach(() => {
    directory = join(mkdtempSync(join(tmpdir(), 'devchain-')), 'state');
    path = join(directory, 'journal.jsonl');
  });

  function reopen(): unknown[] {
    const { journal, entries } = openJournal<unknown>(directory);
    journal.close();
    return entries;
  }

  it('returns the appended entries in order, and is readable only by its owner', () => {
    const { journal, entries } = openJournal<number>(directory);
    expect(entries).to.deep.equal([]);
    journal.append([1, 2]);
    journal.append([]);
    journal.append([3]);
    journal.close();
    expect(reopen()).to.deep.equal([1, 2, 3]);
    expect(statSync(path).mode & 0o777).to.equal(0o600);
  });

  it('truncates a torn last line, and appends after the complete ones', () => {
    const { journal } = openJournal<object>(directory);
    journal.append([{ whole: 1 }]);
    journal.close();
    appendFileSync(path, '{"torn":');
    const second = openJournal<object>(directory);
    expect(second.entries).to.deep.equal([{ whole: 1 }]);
    second.journal.append([{ whole: 2 }]);
    second.journal.close();
    expect(readFileSync(path, 'utf8')).to.equal('{"whole":1}\n{"whole":2}\n');
  });

  it('rejects a file that is damaged before its end', () => {
    openJournal(directory).journal.close();
    appendFileSync(path, '{}\nnonsense\n{}\n');
    expect(reopen).to.throw('line 2');
  });
});
