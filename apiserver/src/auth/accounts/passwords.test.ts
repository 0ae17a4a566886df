import { expect } from 'chai';
import { hashPassword, verifyPassword } from './passwords.ts';

describe('passwords', () => {
  it('match their hash alone', async () => {
    const [right, other] = await Promise.all([hashPassword('correct horse'), hashPassword('battery staple')]);
    expect(await verifyPassword([other, right], 'correct horse', 'a')).to.deep.equal([1]);
    expect(await verifyPassword([], 'correct horse', 'a')).to.deep.equal([]);
  });

  it('of one owner wait in bounded number, without holding up others', async () => {
    const outcome = (owner: string) =>
      hashPassword('correct horse', owner).then(
        () => 'hashed',
        (error: { code?: string }) => error.code,
      );
    const outcomes = Array.from({ length: 20 }, () => outcome('a'));
    expect(await outcome('b')).to.equal('hashed');
    const all = await Promise.all(outcomes);
    expect(all.slice(0, 18)).to.deep.equal(Array.from({ length: 18 }, () => 'hashed'));
    expect(all.slice(18)).to.deep.equal(['UNAVAILABLE', 'UNAVAILABLE']);
  });
});
