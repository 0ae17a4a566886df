import { expect } from 'chai';
import { methodField } from './command-method.ts';

describe('the method of a command', () => {
  it('is a text that Kellet does not use itself', () => {
    const problemOf = (method: string): string => {
      try {
        return methodField('method', method) === method ? 'none' : 'changed';
      } catch (error) {
        return (error as Error).message;
      }
    };
    const table: [string, string][] = [
      ['reboot', 'none'],
      ['😀'.repeat(128), 'none'],
      ['😀'.repeat(129), 'method must have at most 128 characters'],
      ['', 'method is required'],
      ['a\0b', 'method must not contain NUL'],
      ['ota_start', 'method must not be ota_start, which only Kellet itself sends'],
      ['attributes_changed', 'method must not be attributes_changed, which only Kellet itself sends'],
      ['ota_started', 'none'],
    ];
    for (const [method, problem] of table) expect(problemOf(method), method).to.equal(problem);
  });
});
