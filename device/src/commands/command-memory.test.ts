import { expect } from 'chai';
import { CommandMemory } from './command-memory.ts';

describe('a device’s memory of commands', () => {
  it('recognises a repeated command and returns its response', () => {
    const memory = new CommandMemory();
    expect(memory.begin('a')).to.deep.equal({ kind: 'new' });
    expect(memory.begin('a')).to.deep.equal({ kind: 'repeat', response: undefined });
    memory.responded('a', { success: true });
    expect(memory.begin('a')).to.deep.equal({ kind: 'repeat', response: { success: true } });
    expect(memory.begin('b')).to.deep.equal({ kind: 'new' });
  });

  it('treats a command that failed without effect as new', () => {
    const memory = new CommandMemory();
    memory.begin('a');
    memory.forget('a');
    expect(memory.begin('a')).to.deep.equal({ kind: 'new' });
  });

  it('keeps only the latest commands', () => {
    const memory = new CommandMemory(2);
    for (const id of ['a', 'b', 'c']) memory.begin(id);
    memory.responded('a', { success: true });
    expect(memory.begin('c').kind).to.equal('repeat');
    expect(memory.begin('b').kind).to.equal('repeat');
    expect(memory.begin('a').kind).to.equal('new');
  });
});
